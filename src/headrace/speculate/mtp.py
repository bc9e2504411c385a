"""Drafts by the multi-token head that Qwen3.5 checkpoints have (`plan.mtp`): one layer, applied as often as drafts are wanted.

    x = fc(cat(norm(embedding of the token at p + 1), norm(h_p)));  g = norm(layer(x));  logits of token p + 2 = head of g

h_p is what the target makes of the tokens up to p, after its last norm; a further draft takes g for it, and its own token.
Embedding and head are the target's. Source: Qwen3.5's published layout, and DeepSeek-V3's report (2024), section 2.2.

What the layer keeps of x is a function of the tokens up to p + 1, so it lies where the target's layers keep theirs of token
p + 1: the pages of a prefix hold all that there is of it, whatever follows. Place 0 stays empty, and is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from headrace.kernels.angles import angles
from headrace.kernels.joined_norms import Before, joined_norms, keep_last
from headrace.kernels.linear import linear
from headrace.kernels.paged_attention import plan_rows
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.qk_norm_rope_kv_write import Heads
from headrace.kernels.rms_norm import Activations, NormWeight, finished
from headrace.layers.arena import settle
from headrace.layers.attention import Attention
from headrace.layers.batch import Pools
from headrace.layers.linear import Linear
from headrace.layers.norm import RmsNorm
from headrace.layers.rope import frequencies
from headrace.models.decoder import Decoder, DecoderLayer
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.quant import LinearFormat
from headrace.quant.unquantized import Plain
from headrace.speculate.drafter import Asked, Proposal, Seen, Surroundings
from headrace.types import Admission

FIRST_PLACE = 1
"""Where the head's keys and values begin in a sequence's pages."""
_NEVER = -1e4
"""A logit of what is not drafted, which has a number in every type and no share at any temperature."""


def build_mtp(
    target: ModelSpec, layer: LayerSpec, index: int, *, dtype: torch.dtype, device: torch.device,
    formats: Mapping[str, LinearFormat] | None = None,
) -> MtpModule:
    """The head's module on `device`, parameters uninitialised. index: of its layer in the pools. formats: of its linear layers
    by path; plain where nothing is said.
    """
    module = MtpModule(target, layer, index, dtype=dtype, device=device)
    for path, part in module.named_modules():
        if isinstance(part, Linear):
            part.allocate((formats or {}).get(path, Plain()))
    settle(module, device)
    return module


class MtpModule(nn.Module):
    """The head without what it shares. spec: the target's. Parameters are outlines until `build_mtp` gives them memory."""

    def __init__(
        self, target: ModelSpec, layer: LayerSpec, index: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.spec = target
        hidden, eps, offset, outline = target.hidden, target.norm_eps, target.norm_offset, torch.device("meta")
        self.embedding_norm, self.hidden_norm, self.norm = (
            RmsNorm(hidden, eps=eps, offset=offset, dtype=dtype, device=outline) for _ in range(3)
        )
        self.fc = Linear(2 * hidden, hidden, dtype=dtype, device=outline)
        self.layer = DecoderLayer(target, layer, index, dtype=dtype, device=outline)
        self._frequencies, self._wide = frequencies(self.attention.spec.rope, device), accumulation_dtype(dtype)

    @property
    def attention(self) -> Attention:
        assert isinstance(self.layer.mixer, Attention)
        return self.layer.mixer

    def prepare(self) -> None:
        """To be called once, when the weights are there and before the head is used."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepare()
        self.layer.tell_norms()

    def join(self, tokens: Tensor, table: Tensor, hidden: Tensor, before: Before | None = None) -> Tensor:
        """x [T, hidden] of tokens [T], whose embeddings are in table, and of hidden states, see kernels.joined_norms."""
        token_norm, hidden_norm = (NormWeight(n.weight, n.eps, n.offset) for n in (self.embedding_norm, self.hidden_norm))
        x: Tensor = self.fc(joined_norms(tokens, table, hidden, token_norm, hidden_norm, before))
        return x

    def keep(self, x: Tensor, places: Tensor, pools: Pools, write_at: Tensor) -> None:
        """Keys and values of the tokens at `places` [T], 1 or later, to write_at [T] of the layer's pools."""
        attention = self.attention
        normed = self.layer.mixer_norm(x)
        weight, heads = attention.qkv.plain_weight, attention.heads
        if weight is None:
            projected: Tensor = attention.qkv(normed)
        else:
            alone = Heads(0, heads.keys, heads.dim)
            projected, heads = linear(normed, weight[-alone.width :]), alone
        attention.store(projected, heads, self._angles(places), pools, write_at)

    def forward(self, x: Tensor, places: Tensor, pools: Pools, page_table: Tensor, write_at: Tensor) -> Tensor:
        """What the head makes of R tokens, each the last of its row, [R, hidden]: the others are kept, as these are here.

        page_table [R, pages]: of the rows, in the layer's group.
        """
        attention, rows = self.attention, len(places)
        qkv: Tensor = attention.qkv(self.layer.mixer_norm(x))
        q = attention.store(qkv, attention.heads, self._angles(places), pools, write_at)
        keys = pools.keys[attention.index]
        assert keys is not None
        offsets = torch.arange(rows + 1, dtype=torch.int32, device=places.device)
        paged = plan_rows(page_table, (places + 1).int(), offsets, (1,) * rows, keys.shape[1], first=FIRST_PLACE)
        mixed = attention.attend(q, qkv, pools, paged)
        normed, x = self.layer.mlp_norm.behind(attention.out, mixed, x)
        made: tuple[Activations, Tensor] = self.layer.mlp(normed, x, self.norm)
        return finished(made[0])

    def _angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Of the positions that hidden states come from: -1 for place 0, whose key nobody reads."""
        return angles(places - FIRST_PLACE, self._frequencies, self._wide)


class MtpDrafter:
    """Drafts by the head. Of every slot it keeps the target's hidden state before its next token, which lies in the pools, so
    that it goes where the slot's state goes; keys and values are pages like others'.

    What a step has computed is taken in at once, as far as keys and values go, which is a seventh of a proposal's work. So
    there is nothing to catch up with, and no page without its part.
    """

    taps: tuple[int, ...] = ()
    reads_pages = True
    draws = True

    def __init__(self, module: MtpModule, around: Surroundings, most: int, vocabulary: int | None = None) -> None:
        """vocabulary: only the first tokens are drafted, so many; reading the target's head is half of a proposal's time."""
        self.most, self.depths = most, tuple(range(1, most + 1))
        self._module, self._decoder, self._pools = module, around.decoder, around.pools
        (self._group,) = around.groups
        layout = around.layout
        self._page_tokens, self._padding = layout.page_tokens, layout.pages[self._group] * layout.page_tokens
        self._scores = _scores_of(around.decoder, vocabulary)
        (self._hidden,) = around.pools.windows  # [slots, hidden], checkpoints behind them

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(self._module.parameters())

    def admit(self, admissions: Sequence[Admission]) -> None:
        """A slot's hidden state comes with its checkpoint; before a first token there is none, and none is read."""

    def settle(self, slots: Sequence[int]) -> None:
        """All that there is of a sequence is taken in at once."""

    def observe(self, seen: Seen) -> None:
        batch = seen.batch
        before = Before(batch.row_offsets, batch.slots, self._hidden)
        x = self._module.join(batch.tokens, self._decoder.embedding.weight, seen.final, before)
        self._module.keep(x, batch.positions, self._pools, batch.write_at[self._group])
        keep_last(before, seen.kept, seen.final)

    def propose(self, asked: Asked) -> Proposal:
        table = asked.page_tables[self._group]
        tokens, hidden, drafts = asked.tokens, self._hidden[asked.slots], list[Tensor]()
        for draft in range(asked.most):
            # Rows that want fewer have no pages there: they stay where they are, and write to the padding page.
            places = (asked.positions + (asked.counts - 1).clamp(0, draft)).clamp(min=FIRST_PLACE)
            at = self._write_at(table, places, draft < asked.counts)
            x = self._module.join(tokens, self._decoder.embedding.weight, hidden)
            hidden = self._module(x, places, self._pools, table, at)
            tokens = asked.draw(self._scores(hidden), draft)
            drafts.append(tokens)
        return Proposal(torch.stack(drafts, 1))

    def _write_at(self, table: Tensor, places: Tensor, wanted: Tensor) -> Tensor:
        pages = table.gather(1, (places // self._page_tokens)[:, None])[:, 0]
        return torch.where(wanted, pages * self._page_tokens + places % self._page_tokens, self._padding)


def _scores_of(decoder: Decoder, vocabulary: int | None) -> Callable[[Tensor], Tensor]:
    """What makes scores [R, vocabulary of the model] of hidden states; those behind the first tokens, so many, are _NEVER."""
    if vocabulary is None:
        return decoder.scores
    table, head = decoder.embedding.weight[:vocabulary], decoder.head and decoder.head.first(vocabulary)

    def scores(hidden: Tensor) -> Tensor:
        found = linear(hidden, table) if head is None else head(hidden)
        return pad(found, (0, decoder.spec.vocab_size - vocabulary), value=_NEVER)

    return scores
