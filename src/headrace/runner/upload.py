"""A step's integers on their way to the device: gathered in one host buffer, sent in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.plan.uploads import SPAN_WORDS, buffer_words

Values = Sequence[int] | NDArray[np.int64]

_BUFFERS = 3
"""Host buffers in turn: a copy that the device has not made yet must not be overwritten by the next step's numbers."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where numbers lie in the buffer: `count` of `dtype` from 8-byte word `word` on."""

    word: int
    count: int
    dtype: torch.dtype


class Upload:
    """begin(), then add() the numbers, then send(): what tensor() says of a span holds them for whatever is launched next.

    words: 8-byte words of numbers that the buffers hold at most, in no more than MOST_SPANS spans (plan.uploads). The device's
    side is one buffer that every step overwrites, so the same spans are at the same addresses step after step. On a CPU nothing
    is copied.
    """

    def __init__(self, words: int, device: torch.device) -> None:
        words = buffer_words(words)
        pinned = device.type != "cpu"
        count = _BUFFERS if pinned else 1
        self._hosts = [torch.zeros(words, dtype=torch.int64, pin_memory=pinned) for _ in range(count)]
        self._copied = [torch.cuda.Event() for _ in range(count)] if pinned else None  # type: ignore[no-untyped-call]
        self._target = torch.zeros(words, dtype=torch.int64, device=device) if pinned else self._hosts[0]
        self._arrays = [host.numpy() for host in self._hosts]
        self._turn = 0
        self._used = 0

    @property
    def nbytes(self) -> int:
        """Of the device's side."""
        return self._target.nbytes

    def begin(self) -> None:
        """Start over, in a host buffer that nothing reads any more."""
        self._turn = (self._turn + 1) % len(self._hosts)
        self._used = 0
        if self._copied is not None:
            self._copied[self._turn].synchronize()

    def add(self, values: Values, dtype: torch.dtype = torch.int64) -> Span:
        """Append int64 or int32 numbers."""
        span = Span(self._used, len(values), dtype)
        words = -(-len(values) * dtype.itemsize // 8)
        array = self._arrays[self._turn][self._used : self._used + words]
        if dtype == torch.int32:
            array = array.view(np.int32)
        array[: len(values)] = values
        self._used += -(-words // SPAN_WORDS) * SPAN_WORDS
        return span

    def send(self) -> None:
        """Copy what was added; does not wait for the device."""
        if self._copied is not None:
            self._target[: self._used].copy_(self._hosts[self._turn][: self._used], non_blocking=True)
            self._copied[self._turn].record()

    def tensor(self, span: Span) -> Tensor:
        """[count] on the device."""
        if span.dtype == torch.int64:
            return self._target[span.word : span.word + span.count]
        words = -(-span.count * span.dtype.itemsize // 8)
        return self._target[span.word : span.word + words].view(span.dtype)[: span.count]
