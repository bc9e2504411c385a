"""Which keys each packed row sees, as implementations of paged attention are given it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from torch import Tensor

Made = TypeVar("Made")
Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""q, keys, values, and the scales of 8-bit ones."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedRows:
    """The rows of one step and cache group, R of them.

    page_table [R, max pages] int64, lengths [R] and row_offsets [R + 1] int32 are the truth, on the device. row_tokens is what
    the host knows: exact for the reference; for kernels it need only be bounds, one of rows that decode (a captured step is
    replayed with other counts), exact for rows that a step prefills. first: the first key that there is, of every row; for
    kernels only with rows of few tokens, which are split. bounded: row_tokens are bounds, however many tokens rows have, all of
    which are split. others: more rows of the step, planned apart.
    """

    page_table: Tensor
    lengths: Tensor
    row_offsets: Tensor
    row_tokens: Sequence[int]
    page_tokens: int
    window: int | None
    first: int = 0
    bounded: bool = False
    others: PagedRows | None = None
    _made: dict[Any, Any] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], Made]) -> Made:
        """What an implementation derives from the rows alone: made by the step's first layer that asks, kept for the others."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])
