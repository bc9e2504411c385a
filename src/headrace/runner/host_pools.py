"""Pages and states in host memory, and their way there and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from weakref import finalize

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.errors import ConfigError
from headrace.layers.batch import Pools
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes
from headrace.runner.pools import allocate_pools
from headrace.types import HostCopies, PageCopy


class HostPools:
    """layout: pages of each group, and states as checkpoints; the device's pools have their checkpoints behind `slots` slots.

    On a GPU a stream of its own copies to host memory, from behind all that was launched before; what comes back is copied in
    the stream of the steps, which waits for the other one before. Pages that lie side by side on both sides are one copy.
    """

    def __init__(
        self, spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, pools: Pools, slots: int, device: torch.device
    ) -> None:
        self._pools, self._slots = pools, slots
        try:
            self._host = allocate_pools(spec, layout, dtypes, torch.device("cpu"))
        except (OSError, OverflowError, RuntimeError) as error:  # more than there is, or than there are addresses
            tokens, why = layout.pages[0] * layout.page_tokens, str(error).partition("\n")[0]
            raise ConfigError(f"there is no host memory for {tokens:,} tokens ({why}): give --ram-cache-bytes less") from error
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copied: torch.cuda.Event | None = None
        self._unpin: finalize[..., HostPools] | None = None
        if self._stream is not None:
            memory = _memory(self._host)
            _pin(memory)
            self._unpin = finalize(self, _unpin, memory.data_ptr())  # before the memory is somebody else's
            self._unpin.atexit = False

    def close(self) -> None:
        """Let go of the memory, once nothing is copied any more."""
        if self._unpin is not None:
            self._unpin()

    def save(self, copies: HostCopies) -> None:
        """What goes to host memory. With `waits` the steps' stream goes on when that is done, and what was saved before."""
        if copies.to_host or copies.states:
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
                self._copy_pages(copies.to_host, self._pools, self._host)
                for copy in copies.states:
                    self._copy_state(self._pools, self._slots + copy.slot, self._host, copy.checkpoint)
                if self._stream is not None:
                    self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    self._copied.record()
        if copies.waits:
            self._wait()

    def load(self, copies: HostCopies) -> None:
        """The pages that come back."""
        if copies.from_host:
            self._wait()
            self._copy_pages(copies.from_host, self._host, self._pools)

    def resume_state(self, slot: int, checkpoint: int) -> None:
        """Make a state the slot's, with an empty ring."""
        self._wait()
        self._copy_state(self._host, checkpoint, self._pools, slot)
        if self._pools.pending is not None:
            self._pools.pending[slot] = 0

    def _wait(self) -> None:
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def _copy_pages(self, copies: Sequence[PageCopy], source: Pools, target: Pools) -> None:
        for group, first, into, count in runs(copies):
            for layer, owner in enumerate(source.group_of):
                if owner == group:
                    for pages, places in zip(_pages(source, layer), _pages(target, layer), strict=True):
                        places[into : into + count].copy_(pages[first : first + count], non_blocking=True)

    @staticmethod
    def _copy_state(source: Pools, at: int, target: Pools, to: int) -> None:
        for ours, theirs in ((source.states, target.states), (source.conv_tails, target.conv_tails)):
            for tensor, place in zip(ours, theirs, strict=True):
                if tensor is not None and place is not None:
                    place[to].copy_(tensor[at], non_blocking=True)


def runs(copies: Sequence[PageCopy]) -> Iterator[tuple[int, int, int, int]]:
    """(group, first source, first target, count) of copies that lie side by side on both sides."""
    ordered = sorted(copies, key=lambda each: (each.group, each.source, each.target))
    begin = 0
    for end in range(1, len(ordered) + 1):
        count, first = end - begin, ordered[begin]
        if end < len(ordered) and ordered[end] == PageCopy(first.group, first.source + count, first.target + count):
            continue
        yield first.group, first.source, first.target, count
        begin = end


def _pages(pools: Pools, layer: int) -> list[Tensor]:
    found = (pools.keys[layer], pools.values[layer], *pools.scales(layer))
    return [tensor for tensor in found if tensor is not None]


def _pin(memory: torch.UntypedStorage) -> None:
    """Have the driver keep the memory where it is. Raises ConfigError where it cannot."""
    error = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes(), 0))  # type: ignore[no-untyped-call]
    if error:
        raise ConfigError(
            f"{memory.nbytes():,} bytes of host memory cannot be pinned (CUDA error {error}): give --ram-cache-bytes less"
        )


def _unpin(address: int) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _memory(pools: Pools) -> torch.UntypedStorage:
    """The one piece that all tensors lie in."""
    return next(tensor for tensor in (*pools.keys, *pools.states) if tensor is not None).untyped_storage()
