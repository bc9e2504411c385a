"""Prompts that are being computed: a request that begins like one of them waits for it instead of computing the same."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.tokens import TOKEN_BYTES, common_tokens


@dataclass(frozen=True, slots=True)
class Ahead:
    """Once `lease`'s prompt is computed so far, a waiting one can be resumed at `tokens` tokens."""

    lease: Lease
    tokens: int


@dataclass(slots=True)
class _Prefill:
    """places: rising token counts of checkpoints to be taken, None for a model that needs none."""

    lease: Lease
    key: bytes
    places: list[int] | None


class Prefills:
    """Running sequences whose prompts are not computed yet, and where copies of their states will be taken.

    split_tokens: the fewest tokens that waiting must save, and that a checkpoint for it must.
    """

    def __init__(self, page_tokens: int, split_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._split_tokens = split_tokens
        self._running: dict[Lease, _Prefill] = {}

    def begin(self, lease: Lease, key: bytes, places: Sequence[int] | None = None) -> None:
        """A prompt, as `encode` gives it, of a lease that writes, and where checkpoints of it are to be taken."""
        self._running[lease] = _Prefill(lease, key, None if places is None else list(places))

    def end(self, lease: Lease) -> None:
        """Its prompt is computed, or will not be. Leases without a prompt here are passed over."""
        self._running.pop(lease, None)

    def places(self, lease: Lease) -> Sequence[int]:
        """Where the prompt of this lease has checkpoints: its chunks end there."""
        prefill = self._running.get(lease)
        return (prefill.places or ()) if prefill else ()

    def wait_for(self, salt: str, key: bytes, cached: int, most: int) -> Ahead | None:
        """The running prompt that will let a waiting one be resumed furthest, but at most at `most` tokens; None if no running
        one will get it further than what is `cached` for it now.

        Where both go different ways, and the running one is not there yet, it will have a checkpoint: two have come by. Without
        checkpoints only whole pages count: a partial one stays with its writer until that ends.
        """
        best: tuple[int, _Prefill] | None = None
        least = key[: self._split_tokens * TOKEN_BYTES]
        for prefill in self._running.values():
            if prefill.lease.salt == salt and prefill.key.startswith(least):
                tokens = self._reach(prefill, min(most, common_tokens(prefill.key, key)))
                if tokens >= (best[0] + 1 if best else cached + self._split_tokens):
                    best = tokens, prefill
        if best is None:
            return None
        self._add_place(*best)
        return Ahead(best[1].lease, best[0])

    def _reach(self, prefill: _Prefill, common: int) -> int:
        """Where a sequence with so many tokens in common will be able to start, 0 if only where it already is."""
        computed = prefill.lease.recorded(self._page_tokens)
        if prefill.places is None:
            return common // self._page_tokens * self._page_tokens if common > computed else 0
        at = bisect_right(prefill.places, common)
        planned = prefill.places[at - 1] if at and prefill.places[at - 1] > computed else 0
        return common if common > computed and common - planned >= self._split_tokens else planned

    @staticmethod
    def _add_place(tokens: int, prefill: _Prefill) -> None:
        places = prefill.places
        if places is not None and tokens not in places[bisect_left(places, tokens) :][:1]:
            insort(places, tokens)
