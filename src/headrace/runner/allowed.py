"""Masks of the tokens that sequences may draw, which the host fills: what structured output is made of.

Which tokens are allowed follows from those before, the newest among them, and the drafts. An overlapped loop launches a step
before the host has seen what the one before it drew. So masks are filled as late as can be: behind the launch of the model's
part of a step, which needs none of them, the host waits for the tokens of the step before, has them followed, and sends masks
for the draw. The device computes meanwhile. Rows without masks are not held up, but for those that share a step with such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.errors import RequestError
from headrace.kernels.forbid_tokens import TokenMasks, forbid_tokens
from headrace.runner.followed import Failure, Followed
from headrace.runner.sequence_masks import MakeMasks, Words
from headrace.types import Admission, Row


class Sampled(Protocol):
    """A step that was launched."""

    def sampled(self) -> dict[int, tuple[int, ...]]:
        """Tokens by sequence. Waits for the device."""
        ...


@dataclass(frozen=True, slots=True)
class _Unmade:
    """Stands for masks that could not be made."""

    error: RequestError

    def advance(self, tokens: Sequence[int]) -> None:
        raise self.error

    def fill(self, drafts: Sequence[int], words: Words) -> int:
        raise self.error


class AllowedTokens:
    """masks: of `slots` slots (`plan.mask_memory.mask_bytes` each) whose rows yield up to `places` tokens, on the device.

    In this order, for every step: `admit`, `expect`, `take` if drafts were proposed on the device, `send` if it draws anything,
    `follow`.
    """

    def __init__(self, make: MakeMasks, slots: int, places: int, vocab_size: int, device: torch.device) -> None:
        self.masks = TokenMasks.allocate(slots, places, vocab_size, device)
        self._make, self._vocab_size = make, vocab_size
        self._cuda = device.type == "cuda"
        self._sent = tuple(
            torch.empty_like(x, device="cpu", pin_memory=True).copy_(x) if self._cuda else x
            for x in (self.masks.places, self.masks.words)
        )
        self._places, self._words = (x.numpy() for x in self._sent)
        self._copied = torch.cuda.Event() if self._cuda else None  # type: ignore[no-untyped-call]
        self._of: dict[int, Followed] = {}  # by slot
        self._step: dict[int, tuple[Row, Followed]] = {}  # by sequence, of the step that is being launched
        self._before: tuple[Sampled, dict[int, Followed]] | None = None  # the last that draws, until it is read
        self._proposed: Tensor | None = None
        self._any = False  # whether masks lie on the device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """On the device."""
        return self.masks.places, self.masks.words

    def forbid(self, logits: Tensor, slots: Tensor, positions: Tensor) -> None:
        """See `kernels.forbid_tokens`. No host is needed, so that a graph can hold it."""
        forbid_tokens(logits, slots, positions, self.masks)

    def admit(self, admission: Admission) -> None:
        """A request takes a slot."""
        try:
            masks = self._make(admission.request)
        except RequestError as error:
            masks = _Unmade(error)
        self._of.pop(admission.slot, None)
        if masks is not None:
            followed = self._of[admission.slot] = Followed(admission.request, masks, self._vocab_size)
            followed.advance(admission.output)

    def expect(self, rows: Iterable[Row]) -> None:
        """These rows are about to be computed."""
        found = ((row, self._of.get(row.slot)) for row in rows)
        self._step = {row.sequence: (row, followed) for row, followed in found if followed is not None}
        self._proposed = None

    def take(self, proposed: Tensor) -> None:
        """Drafts [slots, K] int64 of rows that were asked for some are there, or will be when the device has come this far."""
        if any(row.asked for row, _ in self._step.values()):
            self._proposed = proposed.to("cpu", non_blocking=True)
            self._mark_copied()

    def send(self) -> None:
        """Of the rows that are expected the masks, for what is launched next. Waits for what their sequences drew before."""
        if not self._step and not self._any:
            return
        self._read()
        if self._copied is not None:
            self._copied.synchronize()
        self._places.fill(-1)
        used = 0
        for row, followed in self._step.values():
            if row.samples:
                used += self._put(row, followed, used)
        self._any = used > 0
        if self._cuda:
            places, words = self._sent
            self.masks.places.copy_(places, non_blocking=True)
            self.masks.words[:used].copy_(words[:used], non_blocking=True)
            self._mark_copied()

    def follow(self, step: Sampled) -> None:
        """The step is launched that was expected."""
        drawn = {sequence: followed for sequence, (row, followed) in self._step.items() if row.samples}
        if drawn:
            self._before = step, drawn

    @property
    def failures(self) -> dict[int, Failure]:
        """By sequence, of those that are expected."""
        return {sequence: each.failure for sequence, (_, each) in self._step.items() if each.failure is not None}

    def _read(self) -> None:
        if self._before is not None:
            (step, followed), self._before = self._before, None
            for sequence, tokens in step.sampled().items():
                if sequence in followed:
                    followed[sequence].advance(tokens)

    def _put(self, row: Row, followed: Followed, used: int) -> int:
        """The row's masks behind `used` others. Returns how many they are."""
        drafts = row.drafts or self._proposals(row)
        count = followed.fill(drafts, self._words[used : used + 1 + len(drafts)])
        if count:
            self._places[row.slot, 0] = len(followed.request.prompt) + followed.generated
            self._places[row.slot, 1 : 1 + count] = range(used, used + count)
        return count

    def _proposals(self, row: Row) -> tuple[int, ...]:
        if not row.asked:
            return ()
        assert self._proposed is not None
        return tuple(self._proposed[row.slot, : row.asked].tolist())

    def _mark_copied(self) -> None:
        if self._copied is not None:
            self._copied.record()
