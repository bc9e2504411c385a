"""A decoder that a graph can hold, of whole numbers: every step's token depends on all that the runner keeps for a sequence.

The state is a number mod 97 that folds in each token; a key is its token plus its position; attention is the sum of all keys,
each times its position plus one, mod 101. So a wrong slot, page, position or length shows in the tokens, and a CPU and a GPU
agree exactly.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from headrace.layers.batch import Batch, Pools
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec

VOCAB = 53
SPEC = ModelSpec(
    "stub", VOCAB, 4,
    (LayerSpec(GatedDeltaSpec(1, 1, 1, 1, 2), MlpSpec(1)), LayerSpec(AttentionSpec(1, 1, 1, RopeSpec(1e4, 1)), MlpSpec(1))),
    1e-6, 1024,
)


class StubDecoder:
    """Stands for models.decoder.Decoder over the pools of SPEC in float32. embedding: on a CPU, so nothing is rehearsed."""

    embedding = SimpleNamespace(weight=torch.zeros(VOCAB, 2))

    def outline(self) -> StubDecoder:
        return self

    def __call__(self, batch: Batch, pools: Pools, wanted: Tensor | None = None) -> Tensor:
        """hidden [T, 2]: state and attention after each token, or after those that are wanted."""
        keys = pools.keys[1]
        assert keys is not None
        keys.view(-1)[batch.write_at[0]] = batch.tokens.float() + batch.positions
        counts = batch.row_offsets.diff()
        place = torch.arange(max(batch.host_row_tokens), device=counts.device)
        at = (batch.row_offsets[:-1, None] + place).clamp(max=len(batch.tokens) - 1).long()  # [R, n]
        inside = place < counts[:, None]
        states = self._states(batch, pools, batch.tokens[at], counts, inside)
        attended = self._attend(batch, keys, batch.positions[at])
        hidden = torch.zeros(len(batch.tokens) + 1, 2, device=counts.device)
        hidden[torch.where(inside, at, len(batch.tokens))] = torch.stack([states, attended], 2)
        return hidden[:-1] if wanted is None else hidden[wanted]

    def tapped(self, batch: Batch, pools: Pools, taps: tuple[int, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """No drafter reads what is behind a layer of this decoder."""
        assert not taps
        return self(batch, pools), ()

    def _states(self, batch: Batch, pools: Pools, tokens: Tensor, counts: Tensor, inside: Tensor) -> Tensor:
        """[R, n] behind each token. A slot's own is that behind its certain tokens; its ring keeps those behind its drafts."""
        kept = pools.states[0]
        assert kept is not None
        state, found = kept.view(-1)[batch.slots], []
        ring = pools.rings[0].deltas.flatten(2) if batch.deferred and pools.rings[0] else None  # [slots, 2, K]
        half = pools.parity[batch.slots].long() if pools.parity is not None else None
        if ring is not None and half is not None and pools.pending is not None:
            pending = pools.pending[batch.slots].long()
            state = torch.where(pending > 0, ring[batch.slots, half, (pending - 1).clamp(min=0)], state)
        for n in range(tokens.shape[1]):
            state = torch.where(inside[:, n], (state * 3 + tokens[:, n] + 1) % 97, state)
            found.append(state)
        behind = torch.stack(found, 1)
        sure = batch.deferred.certain.long() if batch.deferred else counts.long()
        kept.view(-1)[batch.slots] = behind.gather(1, (sure[:, None] - 1).clamp(min=0))[:, 0]
        if ring is not None and half is not None:
            draft = torch.arange(ring.shape[2], device=ring.device)
            ring[batch.slots, 1 - half] = behind.gather(1, (sure[:, None] + draft).clamp(max=behind.shape[1] - 1))
        return behind

    def _attend(self, batch: Batch, keys: Tensor, positions: Tensor) -> Tensor:
        """[R, n] at positions [R, n]."""
        table, page_tokens = batch.page_tables[0], keys.shape[1]
        at = torch.arange(table.shape[1] * page_tokens, device=keys.device)
        read = keys.view(-1)[table[:, at // page_tokens] * page_tokens + at % page_tokens]  # [R, L]
        sums = (read * (at + 1)).double().cumsum(1)
        return sums.gather(1, positions.clamp(max=len(at) - 1)).remainder(101).float()

    def scores(self, hidden: Tensor) -> Tensor:
        tokens = torch.arange(VOCAB, device=hidden.device)
        return (hidden[:, :1] * 7 + hidden[:, 1:] * 5 + tokens * 31) % VOCAB / 8

    def logits(self, hidden: Tensor) -> Tensor:
        return self.scores(hidden)
