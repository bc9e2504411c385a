"""The drafter by DFlash or DFlash2: a block of tokens in one pass, over what it makes of the target's hidden states.

Every slot has, of each of the drafter's layers, a ring of keys and values of the sequence's last tokens: as many as its window,
or the context. Hidden states of decoding rows first wait, in a ring of RING_TOKENS tokens by slot: making keys and values of
them reads 0.37 GB of weights on the 27B shape, which a step without drafts is spared. Every proposal takes the newest that
wait, as many of each row as its shape has room for; others stay, for the next, until newer ones take their places. A token
that is in no ring is masked. Prompts' hidden states do not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.angles import angles
from headrace.kernels.block_attention import KeyRing
from headrace.kernels.gated_delta_verify import MAX_TOKENS
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.top_tokens import top_tokens
from headrace.layers.arena import Arena, in_one_piece
from headrace.layers.block_attention import Rotary
from headrace.layers.rope import frequencies
from headrace.plan.drafters import KEPT_TOGETHER, RING_TOKENS
from headrace.plan.workspace import LOGIT_ROWS
from headrace.speculate.dflash_model import DFlashModel
from headrace.speculate.drafter import Asked, Proposal, Seen, Surroundings
from headrace.types import Admission

_TOGETHER = 256
"""Waiting tokens that a proposal takes at once, or more if a step adds more to its rows: reading the weights takes as long."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """hidden [slots, RING_TOKENS, taps * hidden], and whose they are: positions [slots, RING_TOKENS] int64, -1 for nobody's."""

    hidden: Tensor
    positions: Tensor


class DFlashDrafter:
    """Fits `speculate.drafter.DeviceDrafter`. model: with its weights, prepared. most: of a proposal, a block but one at most.

    The rings are `surroundings.pools.windows`, as `plan.dflash.dflash_cache` declares them: in zeros no token is.
    """

    reads_pages = False
    draws = True

    def __init__(self, model: DFlashModel, surroundings: Surroundings, most: int) -> None:
        spec = model.spec
        self.spec, self.most, self.taps = spec, most, spec.taps
        self.depths = tuple(sorted({(most + 1) // 2, most}))  # of fewer drafts the target's head makes fewer scores
        self._model, self._decoder, layout = model, surroundings.decoder, surroundings.layout
        device, dtype = model.norm.weight.device, getattr(torch, surroundings.dtypes.compute)
        positions, *pools = surroundings.pools.windows
        self._positions = positions
        self._rings = [KeyRing(keys, values, positions) for keys, values in zip(pools[::2], pools[1::2], strict=True)]
        self._size = positions.shape[1]
        self._padding, self._most_new = layout.slots, 1 + layout.drafts  # tokens that a step adds to a row

        def waiting(arena: Arena) -> _Waiting:
            shape = (layout.pool_slots, RING_TOKENS)
            return _Waiting(arena.take((*shape, len(spec.taps) * spec.hidden), dtype), arena.take(shape, torch.int64))

        self._waiting = in_one_piece(waiting, device)
        self._waiting.positions.fill_(-1)
        self._frequencies = frequencies(spec.attention.rope, device)
        self._wide = accumulation_dtype(dtype)

    @property
    def nbytes(self) -> int:
        return self._waiting.hidden.nbytes + self._waiting.positions.nbytes

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return tuple(self._model.parameters())

    def admit(self, admissions: Sequence[Admission]) -> None:
        """The rings are what the slots' states were cleared to, or resumed from."""
        for admission in admissions:
            self._waiting.positions[admission.slot].fill_(-1)

    def settle(self, slots: Sequence[int]) -> None:
        """Make what waits in these slots a part of their rings, which are about to be copied."""
        where = torch.tensor(slots).to(self._positions.device, non_blocking=True)
        newest = self._waiting.positions[where].amax(1) + 1
        self._take_waiting(where, newest, RING_TOKENS)

    def observe(self, seen: Seen) -> None:
        batch = seen.batch
        rows, token = len(batch.slots), torch.arange(len(batch.positions), device=batch.positions.device)
        owner = torch.searchsorted(batch.row_offsets[1:].long(), token, right=True).clamp_(max=rows - 1)  # [T]
        valid = token - batch.row_offsets[owner] < seen.kept[owner]
        slots = torch.where(valid, batch.slots[owner], self._padding)
        if max(batch.host_row_tokens) <= MAX_TOKENS:
            self._let_wait(seen.taps, slots, torch.where(valid, batch.positions, -1))
        else:
            ends = (seen.starts + seen.kept)[owner]
            self._keep_prompts(seen.taps, slots, torch.where(valid, batch.positions, -1), ends)

    def propose(self, asked: Asked) -> Proposal:
        rows = len(asked.slots)
        self._take_waiting(asked.slots, asked.positions, min(RING_TOKENS, max(self._most_new, _TOGETHER // rows)))
        hidden = self._block(asked)[:, 1 : 1 + asked.most].reshape(rows * asked.most, -1)
        unary, candidates = (x.view(rows, asked.most, -1) for x in self._candidates(hidden))
        selector, before, drafts = self._model.selector, asked.tokens, []
        weights = None if selector is None else selector.projection(hidden).view(rows, asked.most, -1)
        for place in range(asked.most):
            scores = unary[:, place]
            if selector is not None and weights is not None:
                scores = selector.scores(scores, candidates[:, place], before, weights[:, place])
            before = asked.draw(scores, place, candidates[:, place])
            drafts.append(before)
        return Proposal(torch.stack(drafts, 1))

    def _let_wait(self, taps: tuple[Tensor, ...], slots: Tensor, positions: Tensor) -> None:
        """taps [T, hidden] each, of tokens at positions [T] of slots [T]: padding and -1 for those that do not count."""
        places = slots * RING_TOKENS + positions % RING_TOKENS
        hidden = self._waiting.hidden.view(-1, len(taps), self.spec.hidden)
        for tap, states in enumerate(taps):
            hidden[:, tap].index_copy_(0, places, states)
        self._waiting.positions.view(-1).index_copy_(0, places, positions)

    def _keep_prompts(self, taps: tuple[Tensor, ...], slots: Tensor, positions: Tensor, ends: Tensor) -> None:
        """The same for rows of any length: of each row what the window has room for behind `ends` [T]."""
        kept = (positions >= 0) & (positions >= ends - self._size)
        for part in _slices(len(positions), KEPT_TOGETHER):
            tapped = torch.cat([states[part] for states in taps], 1)
            self._keep(tapped, slots[part], positions[part], kept[part])

    def _take_waiting(self, slots: Tensor, ends: Tensor, width: int) -> None:
        """Of slots [R], before positions `ends` [R]: the newest that wait, at most `width` of each."""
        positions, at = torch.topk(self._waiting.positions[slots], width, 1)  # [R, width]
        places = (slots[:, None] * RING_TOKENS + at).flatten()
        kept = (positions >= 0) & (positions >= ends[:, None] - self._size)
        tapped = self._waiting.hidden.view(-1, self._waiting.hidden.shape[2])[places]
        self._waiting.positions.view(-1).index_fill_(0, places, -1)
        self._keep(tapped, slots.repeat_interleave(width), positions.flatten(), kept.flatten())

    def _keep(self, tapped: Tensor, slots: Tensor, positions: Tensor, kept: Tensor) -> None:
        """tapped [T, taps * hidden]: of tokens at positions [T] of slots [T] into the rings, those that are `kept` [T]."""
        positions = torch.where(kept, positions, 0)
        places = torch.where(kept, slots, self._padding) * self._size + positions % self._size
        self._model.keep(tapped, self._rotary(positions), self._rings, places)
        # One more than the position, so that memory of zeros is a ring of no tokens.
        self._positions.view(-1).index_copy_(0, places, torch.where(kept, positions + 1, 0))

    def _block(self, asked: Asked) -> Tensor:
        """Hidden states [R, B, hidden] of the rows' next inputs, each with the masks behind it."""
        rows, block = len(asked.slots), self.spec.block
        tokens = torch.full((rows, block), self.spec.mask, device=asked.tokens.device)
        tokens[:, 0] = asked.tokens
        own = torch.arange(rows * block, device=tokens.device)
        positions = asked.positions[:, None] + own[:block]
        embedded = self._decoder.embedding(tokens.flatten())
        hidden: Tensor = self._model(
            embedded, self._rotary(positions.flatten()), self._rings, asked.slots, asked.positions, own
        )
        return hidden.view(rows, block, -1)

    def _candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [N, hidden] -> logits and ids of each place's candidates, [N, candidates]. Few logits are there at a time."""
        found = [
            top_tokens(self._decoder.scores(hidden[part]), self.spec.candidates) for part in _slices(len(hidden), LOGIT_ROWS)
        ]
        values, ids = zip(*found, strict=True)
        return torch.cat(values), torch.cat(ids)

    def _rotary(self, positions: Tensor) -> Rotary:
        return angles(positions, self._frequencies, self._wide)


def _slices(count: int, most: int) -> Iterator[slice]:
    return (slice(first, min(first + most, count)) for first in range(0, count, most))
