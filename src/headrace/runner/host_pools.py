"""Pages and states in host memory, and their way there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from weakref import finalize

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.errors import ConfigError
from headrace.layers.batch import Pools
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes
from headrace.runner.pools import allocate_pools
from headrace.types import HostCopies, PageCopy, StateCopy


@dataclass(frozen=True, slots=True)
class Cells:
    """A tensor's memory as bytes, in cells of `size`: one for each page, or state."""

    memory: memoryview
    size: int

    def __getitem__(self, cell: int) -> memoryview:
        return self.memory[cell * self.size : (cell + 1) * self.size]


@dataclass(frozen=True, slots=True)
class _Copied:
    """Copies of a plan: events at their beginning and end. used: pages of host memory, by group, and states, as group -1."""

    began: torch.cuda.Event
    ended: torch.cuda.Event
    used: frozenset[tuple[int, int]]


class HostPools:
    """layout: pages of each group, and states as checkpoints; the device's pools have their checkpoints behind `slots` slots.

    On a GPU two streams of their own copy, one to host memory and one back, from behind all that was launched before. The
    stream of the steps waits for what comes back when a sequence begins with it, and for either where it will be overwritten;
    of the two each waits for what the other has to do with the same host memory. Pages that lie side by side on both sides are
    one copy.
    """

    def __init__(
        self, spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, pools: Pools, slots: int, device: torch.device
    ) -> None:
        self._pools, self._slots, self._layers = pools, slots, len(spec.layers)
        try:
            self._host = allocate_pools(spec, layout, dtypes, torch.device("cpu"))
        except (OSError, OverflowError, RuntimeError) as error:  # more than there is, or than there are addresses
            tokens, why = layout.pages[0] * layout.page_tokens, str(error).partition("\n")[0]
            raise ConfigError(f"there is no host memory for {tokens:,} tokens ({why}): give --ram-cache-bytes less") from error
        self._saving = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._loading = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._saves: list[_Copied] = []  # that are not known to have ended
        self._loads: dict[int, _Copied] = {}  # the same, by step
        self._times: list[float] = []
        self._unpin: finalize[..., HostPools] | None = None
        if self._saving is not None:
            memory = _memory(self._host)
            _pin(memory)
            self._unpin = finalize(self, _unpin, memory.data_ptr())  # before the memory is somebody else's
            self._unpin.atexit = False

    def close(self) -> None:
        """Let go of the memory, once nothing is copied any more."""
        if self._unpin is not None:
            self._unpin()

    def save(self, copies: HostCopies) -> None:
        """What goes to host memory. With `waits` the steps' stream goes on when this and all that was copied before is done."""
        if copies.to_host or copies.states:
            used = _cells_of(((copy.group, copy.target) for copy in copies.to_host), copies.states)
            with self._behind(self._saving, self._loads.values(), used):
                self._copy_pages(copies.to_host, self._pools, self._host)
                for copy in copies.states:
                    self._copy_state(self._pools, self._slots + copy.slot, self._host, copy.checkpoint)
                self._saves = [each for each in self._saves if not _over(each)]
                self._saves += _copied(_mark(self._saving), _mark(self._saving), used)
        if copies.waits:
            self.await_copies()

    def await_copies(self) -> None:
        """The steps' stream goes on when all that was copied so far is done."""
        if self._saving is not None and self._loading is not None:
            torch.cuda.current_stream().wait_stream(self._saving)
            torch.cuda.current_stream().wait_stream(self._loading)

    def load(self, copies: HostCopies, step: int) -> None:
        """The pages and states that come back with the plan of that step."""
        if not copies.from_host and not copies.resumed:
            return
        used = _cells_of(((copy.group, copy.source) for copy in copies.from_host), copies.resumed)
        with self._behind(self._loading, self._saves, used):
            began_s, began = perf_counter(), _mark(self._loading)
            self._copy_pages(copies.from_host, self._host, self._pools)
            for copy in copies.resumed:
                self._copy_state(self._host, copy.checkpoint, self._pools, copy.slot)
            for copied in _copied(began, _mark(self._loading), used):
                self._loads[step] = copied
        if self._loading is None:
            self._times.append(perf_counter() - began_s)

    def await_load(self, step: int) -> None:
        """The steps' stream goes on when what the plan of that step brings back is there."""
        if step in self._loads:
            torch.cuda.current_stream().wait_event(self._loads[step].ended)

    def landed(self, step: int) -> bool:
        return step not in self._loads or _over(self._loads[step])

    def take_times(self) -> list[float]:
        for step in [step for step, load in self._loads.items() if _over(load)]:
            load = self._loads.pop(step)
            self._times.append(load.began.elapsed_time(load.ended) / 1e3)
        times, self._times = self._times, []
        return times

    @staticmethod
    @contextmanager
    def _behind(
        stream: torch.cuda.Stream | None, others: Iterable[_Copied], used: frozenset[tuple[int, int]]
    ) -> Iterator[None]:
        """In a stream, behind all that was launched in the steps' stream, and of other copies those of the same memory."""
        if stream is None:
            yield
            return
        stream.wait_stream(torch.cuda.current_stream())
        for other in others:
            if not used.isdisjoint(other.used):
                stream.wait_event(other.ended)
        with torch.cuda.stream(stream):
            yield

    def settled(self) -> Callable[[], None]:
        """Waits, in whatever thread, for the copies that were launched so far."""
        if self._saving is None or self._loading is None:
            return lambda: None
        done = [torch.cuda.Event(blocking=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for event, stream in zip(done, (self._saving, self._loading), strict=True):
            event.record(stream)

        def wait() -> None:
            for event in done:
                event.synchronize()

        return wait

    def page_cells(self, *, drafter: bool) -> tuple[tuple[Cells, ...], ...]:
        """Of each group, the memory of its layers' pages in an order of their own: of the model's layers, or of a drafter's."""
        groups = sorted({group for group in self._host.group_of if group is not None})
        mine = [index for index in range(len(self._host.group_of)) if (index >= self._layers) == drafter]
        layers = [[layer for layer in mine if self._host.group_of[layer] == group] for group in groups]
        return tuple(tuple(_cells(tensor) for layer in each for tensor in _pages(self._host, layer)) for each in layers)

    def state_cells(self, *, drafter: bool) -> tuple[Cells, ...]:
        """The memory of states, always in the same order: of the model's part of them, or of a drafter's."""
        host = self._host
        tensors = host.windows if drafter else (*host.states, *host.conv_tails)
        return tuple(_cells(tensor) for tensor in tensors if tensor is not None and len(tensor))

    def _copy_pages(self, copies: Sequence[PageCopy], source: Pools, target: Pools) -> None:
        for group, first, into, count in runs(copies):
            for layer, owner in enumerate(source.group_of):
                if owner == group:
                    for pages, places in zip(_pages(source, layer), _pages(target, layer), strict=True):
                        places[into : into + count].copy_(pages[first : first + count], non_blocking=True)

    @staticmethod
    def _copy_state(source: Pools, at: int, target: Pools, to: int) -> None:
        for tensor, place in zip(_state_tensors(source), _state_tensors(target), strict=True):
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


def _state_tensors(pools: Pools) -> list[Tensor]:
    return [tensor for tensor in (*pools.states, *pools.conv_tails, *pools.windows) if tensor is not None]


def _cells_of(pages: Iterable[tuple[int, int]], states: Iterable[StateCopy]) -> frozenset[tuple[int, int]]:
    return frozenset((*pages, *((-1, copy.checkpoint) for copy in states)))


def _copied(
    began: torch.cuda.Event | None, ended: torch.cuda.Event | None, used: frozenset[tuple[int, int]]
) -> Iterator[_Copied]:
    """Nothing without a GPU."""
    if began is not None and ended is not None:
        yield _Copied(began, ended, used)


def _over(copied: _Copied) -> bool:
    return bool(copied.ended.query())  # type: ignore[no-untyped-call]


def _mark(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    if stream is None:
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _cells(tensor: Tensor) -> Cells:
    memory = tensor.view(torch.uint8).view(-1).numpy().data
    return Cells(memory, len(memory) // len(tensor))


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
