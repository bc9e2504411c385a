"""A decoder that a graph can hold, of whole numbers: every step's token depends on all that the runner keeps for a sequence.

The state is a number mod 97 that folds in each token; a key is its token plus its position; attention is the sum of all keys,
each times its position plus one, mod 101. So a wrong slot, page, position or length shows in the tokens, and a CPU and a GPU
agree exactly.
"""

from __future__ import annotations

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
    """Stands for models.decoder.Decoder over the pools of SPEC in float32."""

    def __call__(self, batch: Batch, pools: Pools) -> Tensor:
        """hidden [T, 2]: state and attention after each row's last token (other tokens' are zero)."""
        states, keys = pools.states[0], pools.keys[1]
        assert states is not None and keys is not None
        tokens = batch.tokens.float()
        keys.view(-1)[batch.write_at[0]] = tokens + batch.positions
        state = states.view(-1)[batch.slots]  # [R]
        if len(batch.tokens) == len(batch.slots):
            state = (state * 3 + tokens + 1) % 97
            last = slice(None)
        else:
            state, last = self._fold(batch, state)
        states.view(-1)[batch.slots] = state
        hidden = torch.zeros(len(batch.tokens), 2, device=tokens.device)
        hidden[last] = torch.stack([state, self._attend(batch, keys)], 1)
        return hidden

    def _fold(self, batch: Batch, state: Tensor) -> tuple[Tensor, Tensor]:
        ends = batch.row_offsets.long()
        folded = state.tolist()
        for row, tokens in enumerate(batch.tokens.tensor_split(ends[1:-1].cpu())):
            for token in tokens.tolist():
                folded[row] = (folded[row] * 3 + token + 1) % 97
        return torch.tensor(folded, device=state.device), ends[1:] - 1

    def _attend(self, batch: Batch, keys: Tensor) -> Tensor:
        table, page_tokens = batch.page_tables[0], keys.shape[1]
        at = torch.arange(table.shape[1] * page_tokens, device=keys.device)
        read = keys.view(-1)[table[:, at // page_tokens] * page_tokens + at % page_tokens]  # [R, L]
        seen = at < batch.lengths[:, None]
        return torch.where(seen, read * (at + 1), 0).double().sum(1).remainder(101).float()

    def scores(self, hidden: Tensor) -> Tensor:
        tokens = torch.arange(VOCAB, device=hidden.device)
        return (hidden[:, :1] * 7 + hidden[:, 1:] * 5 + tokens * 31) % VOCAB / 8

    def logits(self, hidden: Tensor) -> Tensor:
        return self.scores(hidden)
