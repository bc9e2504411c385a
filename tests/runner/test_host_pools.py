"""Which pages are copied together, and memory that there is not."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.runner.test_copies import HYBRID, make
from tests.support.simulated_streams import Device
from tests.support.tiny import make_tiny_checkpoint
from torch import Tensor

from headrace import LLM
from headrace.cache.layout import CacheLayout
from headrace.engine import build
from headrace.errors import ConfigError
from headrace.layers.batch import Pools
from headrace.models import qwen3_5
from headrace.plan.dtypes import Dtypes
from headrace.runner.host_pools import HostPools, runs
from headrace.types import HostCopies, PageCopy, StateCopy


def test_pages_side_by_side_are_one_copy() -> None:
    copies = [PageCopy(0, 5, 2), PageCopy(0, 4, 1), PageCopy(0, 6, 4), PageCopy(1, 7, 5), PageCopy(1, 8, 6), PageCopy(0, 3, 0)]
    assert list(runs(copies)) == [(0, 3, 0, 3), (0, 6, 4, 1), (1, 7, 5, 2)]
    assert list(runs([])) == []


def test_every_page_goes_where_it_should() -> None:
    rng = random.Random(2)
    for _ in range(50):
        targets = rng.sample(range(20), 12)
        copies = [PageCopy(rng.randrange(2), rng.randrange(20), target) for target in targets]
        found = {(group, to + i): at + i for group, at, to, count in runs(copies) for i in range(count)}
        assert found == {(copy.group, copy.target): copy.source for copy in copies}
        assert sum(count for *_, count in runs(copies)) == len(copies)


@pytest.mark.parametrize("given", [10**18, 10**20])
def test_more_host_memory_than_can_be_had(given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has it, as far as is known, and does not give it."""
    monkeypatch.setattr(build, "ram_bytes", lambda: given)
    checkpoint = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=3)
    with pytest.raises(ConfigError, match="give --ram-cache-bytes less"):
        LLM(str(checkpoint), device="cpu", context=64, max_seqs=1, ram_cache_bytes=given)


@pytest.mark.parametrize("seed", range(40))
def test_streams_in_any_order_that_events_allow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as the scheduler makes them, which wait where they overwrite what copies read or write: whatever runs first, every
    page and state holds what it would if all were done at once.
    """
    rng = random.Random(seed)
    device = Device(rng, monkeypatch)
    plans = Plans(device, rng)
    for step in range(25):
        plans.launch(step)
        device.run(rng.choice((0, 1, 5, 40)))
        for load in plans.coming:
            assert plans.host.landed(load) in (False, True)
        plans.host.take_times()
    device.run(10_000)
    plans.check()


Cell = tuple[str, int]


class Plans:
    """Random ones. `expected` is what cells hold once all is done: "d" device pages, "h" host pages, "c" checkpoints, "s"
    slots, "k" host checkpoints.
    """

    def __init__(self, device: Device, rng: random.Random) -> None:
        spec, dtypes = qwen3_5.spec(HYBRID), Dtypes("float32", "float32", "float32")
        self._device, self._rng = device, rng
        self._pools, layout = make(spec, dtypes, "cpu")
        host = CacheLayout(layout.groups, layout.page_tokens, (5,), 0, checkpoints=3)
        self.host = HostPools(spec, host, dtypes, self._pools, layout.pool_slots, torch.device("cpu"))
        self.host._saving, self.host._loading = device.saving, device.loading  # type: ignore[assignment]
        pages, state = self.host._copy_pages, self.host._copy_state
        methods = vars(self.host)
        methods["_copy_pages"] = lambda *given: device.launch(lambda: pages(*given))
        methods["_copy_state"] = lambda *given: device.launch(lambda: state(*given))
        self._cells: dict[str, tuple[Pools, int, int]] = {
            "d": (self._pools, 0, layout.pages[0]), "h": (self.host._host, 0, 5), "s": (self._pools, 0, layout.slots),
            "c": (self._pools, layout.pool_slots, layout.checkpoints), "k": (self.host._host, 0, 3),
        }
        self.expected: dict[Cell, float] = {}
        for kind, (_, _, count) in self._cells.items():
            for index in range(count):
                self._write((kind, index), 0.0)
        self.coming: dict[int, set[Cell]] = {}  # by step: where something comes back to, and nobody has waited for it
        self._read: set[Cell] = set()  # by copies that nobody has waited for
        self._value = 0.0

    def _tensors(self, cell: Cell) -> list[Tensor]:
        pools, first, _ = self._cells[cell[0]]
        found = (*pools.keys, *pools.values) if cell[0] in "dh" else (*pools.states, *pools.conv_tails)
        return [tensor[first + cell[1]] for tensor in found if tensor is not None]

    def _write(self, cell: Cell, value: float) -> None:
        self.expected[cell] = value
        for tensor in self._tensors(cell):
            tensor.fill_(value)

    def _some(self, kind: str, most: int, without: set[Cell]) -> list[Cell]:
        found = [(kind, index) for index in range(self._cells[kind][2]) if (kind, index) not in without]
        return self._rng.sample(found, min(len(found), self._rng.randint(0, most)))

    def _compute(self, cells: list[Cell]) -> None:
        """The steps' stream writes new numbers."""
        for cell in cells:
            self._value += 1.0
            self.expected[cell] = self._value
            for tensor in self._tensors(cell):
                self._device.launch(partial(tensor.fill_, self._value))

    def launch(self, step: int) -> None:
        rng, on_its_way = self._rng, set().union(*self.coming.values())
        taken = self._some("c", 1, set())
        saved = [(cell, ("h", i)) for cell, i in zip(self._some("d", 3, on_its_way), rng.sample(range(5), 3), strict=False)]
        kept = [(cell, ("k", i)) for cell, i in zip(self._some("c", 1, set()), rng.sample(range(3), 1), strict=False)]
        back = [(("h", rng.randrange(5)), cell) for cell in self._some("d", 2, on_its_way)]
        resumed = [(("k", rng.randrange(3)), cell) for cell in self._some("s", 1, on_its_way)]
        targets = {cell for _, cell in (*back, *resumed)}
        written = [*self._some("d", 2, targets), *self._some("s", 1, targets)]
        reads = {cell for cell, _ in (*saved, *kept)}
        waits = bool({*taken, *written, *targets} & {*self._read, *reads, *on_its_way})
        if waits:
            self.host.await_copies()
            self.coming, self._read = {}, set()
        self._compute(taken)
        self.host.save(HostCopies(
            tuple(PageCopy(0, cell[1], to[1]) for cell, to in saved), tuple(StateCopy(cell[1], to[1]) for cell, to in kept),
            waits=waits,
        ))
        self._move([*saved, *kept])
        self._read |= set() if waits else reads
        self.host.load(HostCopies(
            from_host=tuple(PageCopy(0, cell[1], to[1]) for cell, to in back),
            resumed=tuple(StateCopy(to[1], cell[1]) for cell, to in resumed),
        ), step)
        self._move([*back, *resumed])
        if targets:
            self.coming[step] = targets
        for load in [load for load in self.coming if rng.random() < 0.3]:
            self.host.await_load(load)
            for cell in self.coming.pop(load):
                self._device.launch(partial(self._agrees, cell, self.expected[cell]))
        self._compute(written)

    def _move(self, copies: list[tuple[Cell, Cell]]) -> None:
        before = dict(self.expected)
        self.expected |= {target: before[source] for source, target in copies}

    def _agrees(self, cell: Cell, value: float) -> None:
        for tensor in self._tensors(cell):
            assert bool((tensor == value).all()), f"{cell} does not hold {value}"

    def check(self) -> None:
        for cell, value in self.expected.items():
            self._agrees(cell, value)
