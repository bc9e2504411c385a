"""The decoder against transformers over random configurations, and against itself in other company."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.support import compare
from tests.support.packing import fill_decoder
from tests.support.tiny import MODEL_TYPES, checkpoint_tensors, random_config, random_model
from torch import nn

from headrace.models import MODELS, declaration_for
from headrace.models.decoder import Decoder

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK_SEEDS, LONG_SEEDS = range(5), range(5, 65)


def build(model_type: str, fields: Mapping[str, Any], seed: int, dtype: torch.dtype) -> tuple[Decoder, nn.Module]:
    """headrace's decoder and the oracle it must equal."""
    oracle = random_model(model_type, fields, seed)
    config = json.loads(oracle.config.to_json_string())
    declaration = declaration_for(config["model_type"])
    spec, tensors = declaration.spec(config), checkpoint_tensors(oracle)
    return fill_decoder(spec, declaration.weights(spec, tensors), tensors, dtype), oracle


def sequences_for(vocab_size: int, rng: random.Random, longest: int) -> list[list[int]]:
    """Three sequences of 1 to `longest` tokens, lengths near the sizes at which code changes its way among them."""
    lengths = [rng.choice((1, 2, 8, 9, 63, 64, 65, 128, rng.randint(1, longest))) for _ in range(2)] + [rng.randint(1, longest)]
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


def check_against_oracle(model_type: str, seed: int, tally: compare.Tally, longest: int) -> None:
    rng = random.Random(f"{model_type} {seed}")
    fields = random_config(model_type, rng)
    decoder, oracle = build(model_type, fields, seed, torch.float32)
    sequences = sequences_for(fields["vocab_size"], rng, longest)
    found = compare.logits_batched(decoder, sequences, torch.float32, rng)
    for tokens, logits in zip(sequences, found, strict=True):
        with torch.inference_mode():
            expected = oracle(torch.tensor([tokens]), use_cache=False).logits[0]
        assert float(expected.abs().max()) > 1, "a test on dead logits shows nothing"
        assert compare.relative_error(logits, expected) <= compare.LOGIT_TOLERANCE, (model_type, seed, len(tokens))
        tally.greedy(logits, expected)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_and_greedy_tokens_are_those_of_transformers(model_type: str) -> None:
    tally = compare.Tally()
    for seed in QUICK_SEEDS:
        check_against_oracle(model_type, seed, tally, 200)
    tally.settle()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_logits_and_greedy_tokens_over_many_configurations() -> None:
    tally = compare.Tally()
    for seed in LONG_SEEDS:
        for model_type in MODEL_TYPES:
            check_against_oracle(model_type, seed, tally, 700)
    tally.settle()


def check_company_and_chunks(model_type: str, seed: int, longest: int) -> None:
    """float64: alone, token by token, in chunks of any size, in a batch: one result."""
    rng = random.Random(f"exact {model_type} {seed}")
    fields = random_config(model_type, rng)
    decoder, _ = build(model_type, fields, seed, torch.float64)
    sequences = sequences_for(fields["vocab_size"], rng, longest)
    batched = compare.logits_batched(decoder, sequences, torch.float64, rng)
    for tokens, logits in zip(sequences, batched, strict=True):
        alone = compare.logits_alone(decoder, tokens, torch.float64, len(tokens), rng)
        for other in (logits, *(compare.logits_alone(decoder, tokens, torch.float64, size, rng)
                                for size in (1, rng.randint(2, 9), rng.randint(10, 130)))):
            assert compare.relative_error(other, alone) <= 1e-11, (model_type, seed)
            assert torch.equal(other.argmax(-1), alone.argmax(-1))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_float64_is_exact_in_any_company_and_any_chunks(model_type: str) -> None:
    for seed in range(2):
        check_company_and_chunks(model_type, seed, 100)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_float64_is_exact_over_many_configurations() -> None:
    for seed in range(2, 20):
        for model_type in MODEL_TYPES:
            check_company_and_chunks(model_type, seed, 300)


def test_suite_covers_every_model() -> None:
    served = {model_type for name in MODELS for model_type in MODELS[name].MODEL_TYPES}
    assert served == set(MODEL_TYPES)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_stay_near(model_type: str, dtype: torch.dtype) -> None:
    rng = random.Random(7)
    fields = random_config(model_type, rng)
    exact, _ = build(model_type, fields, 7, torch.float64)
    rounded, _ = build(model_type, fields, 7, dtype)
    tokens = [rng.randrange(fields["vocab_size"]) for _ in range(40)]
    expected = compare.logits_alone(exact, tokens, torch.float64, 16, rng)
    found = compare.logits_alone(rounded, tokens, dtype, 16, rng)
    assert found.dtype == torch.float32
    assert float((found - expected).square().mean().sqrt()) <= 0.05 * float(expected.square().mean().sqrt())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_taps_are_the_residual_sums_of_transformers(model_type: str) -> None:
    """Of any layers, in the order asked for; what the last norm makes is what it is without taps."""
    rng = random.Random(f"taps {model_type}")
    fields = random_config(model_type, rng)
    decoder, oracle = build(model_type, fields, 3, torch.float32)
    tokens = [rng.randrange(fields["vocab_size"]) for _ in range(40)]
    taps = tuple(rng.sample(range(len(decoder.layers) - 1), min(3, len(decoder.layers) - 1)))
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
        plain, tapped = (compare.packing_for(decoder, [tokens], torch.float32, rng) for _ in range(2))
        final, sums = decoder.tapped(tapped.pack([(0, tokens)]), tapped.pools, taps)
        assert torch.equal(final, decoder(plain.pack([(0, tokens)]), plain.pools))
    assert len(sums) == len(taps)
    for layer, found in zip(taps, sums, strict=True):
        assert compare.relative_error(found, expected[layer + 1][0]) <= compare.LOGIT_TOLERANCE, layer


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_only_what_is_wanted_behind_the_last_mixer(model_type: str) -> None:
    """The same hidden states as of all tokens, and the same cache, also where none is wanted."""
    rng = random.Random(model_type)
    fields = random_config(model_type, rng)
    decoder, _ = build(model_type, fields, 1, torch.float64)
    sequences = [[rng.randrange(fields["vocab_size"]) for _ in range(length)] for length in (9, 1, 30)]
    found, caches = [], []
    for wanted in (None, torch.tensor([8, 9, 39]), torch.tensor([], dtype=torch.int64)):
        packing = compare.packing_for(decoder, sequences, torch.float64, random.Random(0))
        with torch.inference_mode():
            found.append(decoder(packing.pack(list(enumerate(sequences))), packing.pools, wanted))
        pools = packing.pools
        caches.append([p for kind in (pools.keys, pools.values, pools.states, pools.conv_tails) for p in kind if p is not None])
    torch.testing.assert_close(found[1], found[0][[8, 9, 39]], rtol=1e-12, atol=1e-12)
    assert found[2].shape == (0, found[0].shape[1])
    for cache in caches[1:]:
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(cache, caches[0], strict=True))
