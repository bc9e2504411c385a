"""What whoever masks a sequence's tokens implements. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.types import Request

Words = NDArray[np.int32]


class SequenceMasks(Protocol):
    """What one sequence may draw, wherever it is. Both may raise RequestError, which ends the request."""

    def advance(self, tokens: Sequence[int]) -> None:
        """These tokens were generated, one after the other: at first those before a preemption, if there was any. Nothing is
        asked any more behind one that ends the message.
        """
        ...

    def fill(self, drafts: Sequence[int], words: Words) -> int:
        """Fill words[0] with the tokens that are allowed next, words[i] with those behind i of the drafts: int32
        [1 + len(drafts), ceil(vocabulary / 32)], bit t % 32 of word t // 32 set where token t is allowed, all of it written.

        Returns how many were filled: behind a draft that is not allowed none is wanted. The sequence is where it was.
        """
        ...


MakeMasks = Callable[[Request], SequenceMasks | None]
"""Of a request that takes a slot, an engine's own at its start among them; None where every token is allowed. May raise
RequestError, which ends the request.
"""
