"""Every form of every kernel that serving can ask for is one that rehearsal compiles: told on cards that are not there."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this system")

from tests.support.pretended_card import META, Launch, pretended

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.kernels.card import Card
from headrace.kernels.forbid_tokens import TokenMasks, forbid_tokens
from headrace.kernels.variant import SHARED_BYTES
from headrace.layers.arena import Arena
from headrace.layers.batch import Batch
from headrace.layers.linear import Linear
from headrace.models.decoder import Decoder, DecoderLayer
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import Dtypes
from headrace.plan.shapes import declared_model
from headrace.quant.unquantized import Plain
from headrace.runner.pools import _pools
from headrace.runner.rehearsal import steps
from headrace.runner.sampler import Sampler

SLOTS, CHUNK_TOKENS, PAGES = 64, 2048, 80
CARDS = (Card(90, 132, SHARED_BYTES[90]), Card(86, 82, SHARED_BYTES[86]), Card(120, 170, SHARED_BYTES[120]))
Rows = tuple[int, ...]


class Masks:
    """Stands for `AllowedTokens`, without memory."""

    def __init__(self, vocab_size: int) -> None:
        self._masks = TokenMasks.allocate(SLOTS, 1, vocab_size, META)

    def forbid(self, logits: Tensor, slots: Tensor, positions: Tensor) -> None:
        forbid_tokens(logits, slots, positions, self._masks)


def bare_decoder(model: Model, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    """The model's decoder as engines have it once it is prepared, without memory."""
    decoder = Decoder(model.spec, dtype=dtype, device=META)
    for path, module in decoder.named_modules():
        if isinstance(module, Linear):
            module.allocate(model.formats.get(path, Plain()))
            module.prepared = path in model.formats
    for module in decoder.modules():
        if isinstance(module, DecoderLayer):
            module.tell_norms()
    return decoder


class Outline:
    """One layer of each kind of a published shape, its cache and a sampler with masks, without memory."""

    def __init__(self, name: str, kv: str) -> None:
        model = declared_model(name)
        decoder = bare_decoder(model)
        layout = CacheLayout(cache_groups(model.spec), 16, (4,), 4, True)
        dtypes = Dtypes("bfloat16", kv, "float16")  # type: ignore[arg-type]
        self.pools = _pools(model.spec, layout, dtypes, Arena(None, META))
        self.decoder, self.sampler = decoder.outline(), Sampler(SLOTS, model.spec.vocab_size, META, torch.float32)
        self.sampler.allowed = Masks(model.spec.vocab_size)  # type: ignore[assignment]

    def rehearse(self, rows: Rows) -> None:
        """As `rehearsal.rehearse` does."""
        hidden, count = self.decoder(batch_of(rows), self.pools), len(rows)
        ends = hidden if count == sum(rows) else hidden[numbers(count)]
        self.draw(self.decoder.logits(ends), count)
        self.sampler.draw_on_device(self.decoder.scores(ends), numbers(count), numbers(count))

    def serve(self, rows: Rows, samples: int) -> None:
        """As `Runner.launch` does where nothing is captured."""
        hidden = self.decoder(batch_of(rows), self.pools, numbers(samples))
        if samples:
            self.draw(self.decoder.logits(hidden), samples)

    def draw(self, logits: Tensor, count: int) -> None:
        self.sampler.draw_at(logits, range(count), numbers(count), numbers(count))


def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def batch_of(rows: Rows) -> Batch:
    tokens, count, short = sum(rows), len(rows), torch.int32
    return Batch(
        numbers(tokens), numbers(tokens), numbers(count + 1, dtype=short), numbers(count), numbers(count, dtype=short),
        (numbers(count, PAGES),), (numbers(tokens),), rows,
    )


def served_steps(count: int) -> Iterator[tuple[Rows, int]]:
    """Rows' tokens, and how many of them draw: prompts that end, that begin, chunks of one, beside any number that decode."""
    rng = random.Random(1)
    yield from (((1024, 1024), 2), ((1, 1, 1024, 1022), 2), ((1, 1, 1, 2, 1024, 1018), 5), ((*(1,) * 7, 10), 8), ((2048,), 0))
    for _ in range(count):
        rows = [1] * rng.choice((0, 0, 1, 2, 5, 8, 20, 63))
        tokens = rng.choice((rng.randint(2, 64), rng.randint(2, 300), rng.randint(2, CHUNK_TOKENS), CHUNK_TOKENS))
        left = max(2, tokens - len(rows))
        while left > 0 and len(rows) < SLOTS:
            rows.append(min(left, rng.choice((1, 2, rng.randint(1, 40), rng.randint(1, CHUNK_TOKENS)))))
            left -= rows[-1]
        if rng.random() < 0.3:
            rng.shuffle(rows)
        yield tuple(rows), rng.randint(0, len(rows))


@pytest.mark.parametrize(("name", "kv"), [
    ("qwen3.8-27b:w4a16-head8", "bfloat16"), ("qwen3.8-27b:w4a16", "int8"), ("qwen3.8-27b:bf16", "bfloat16"),
    ("qwen3.8-27b:w8a8", "float8_e4m3fn"),
])
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_nothing_is_left_to_compile(card: Card, name: str, kv: str) -> None:
    with pretended(card) as launches:
        outline = Outline(name, kv)
        for rows in steps(SLOTS, CHUNK_TOKENS):
            outline.rehearse(rows)
        rehearsed, late = set(launches), dict[Launch, tuple[Rows, int]]()
        assert len(rehearsed) > 25 and any("_forbid" in str(launch) for launch in rehearsed)
        for rows, samples in served_steps(120):
            launches.clear()
            outline.serve(rows, samples)
            late.update(dict.fromkeys(launches - rehearsed, (rows, samples)))
    assert not late, "\n".join(f"{launch}: {step}" for launch, step in late.items())
