"""A GPU that others use: who is named, what is waited for, and for how long."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Timer

import pytest
from tests.plan.test_budget import DELTA, F32, FULL, WEIGHTS, spec

from headrace.config import EngineConfig
from headrace.engine.build import _settle
from headrace.engine.shared_gpu import budget_beside_others
from headrace.errors import ConfigError
from headrace.gpu_processes import GpuProcess, gpu_processes
from headrace.hardware import Hardware, detect
from headrace.plan.budget import Budget, make_budget
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.extras import NONE
from headrace.plan.published import published_model

GIB = 2**30
CARD = Hardware("cuda", "Test 24 GB", 24 * GIB, 24 * GIB - 2**28, elsewhere=True)
HOLDER = GpuProcess(4711, "blender", 20 * GIB)


def maker(hardware: Hardware, **settings: int) -> Callable[[Hardware], Budget]:
    config = EngineConfig(device=hardware.kind, max_seqs=1, **settings)  # type: ignore[arg-type]
    return lambda hardware: make_budget(spec(FULL, DELTA, max_context=2**40), WEIGHTS, hardware, config, F32)


class Bench:
    """A card whose memory others give back at `freed_s`, and a clock that goes on by sleeping."""

    def __init__(self, freed_s: float, free: Hardware = CARD) -> None:
        self.now, self.slept, self.looks, self._freed_s, self._free = 100.0, 0.0, 0, 100.0 + freed_s, free

    def look(self) -> Hardware:
        self.looks += 1
        held = self.now < self._freed_s
        return replace(self._free, free_bytes=self._free.free_bytes - 20 * GIB) if held else self._free

    def holders(self) -> tuple[GpuProcess, ...]:
        return (HOLDER,) if self.now < self._freed_s else ()

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.5
        self.now += seconds
        self.slept += seconds

    def budget(self, wait_s: float, **settings: int) -> tuple[Hardware, Budget]:
        make = maker(self._free, **settings)
        return budget_beside_others(self.look, make, self.holders, wait_s, clock=lambda: self.now, sleep=self.sleep)


def test_a_free_card_is_taken_at_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(freed_s=0)
    hardware, budget = bench.budget(60, cache_bytes=10 * GIB)
    assert hardware == CARD and budget.total_bytes > 10 * GIB and (bench.looks, bench.slept) == (1, 0)
    assert not caplog.records


@pytest.mark.parametrize("settings", [{"cache_bytes": 10 * GIB}, {"memory_bytes": 12 * GIB}])
def test_a_held_card_is_refused_with_those_who_hold_it(settings: dict[str, int]) -> None:
    bench = Bench(freed_s=1)
    with pytest.raises(ConfigError) as raised:
        bench.budget(0, **settings)
    words = str(raised.value)
    assert f"{20 * GIB + 2**28:,} of its {24 * GIB:,} bytes are held: process 4711 (blender) {20 * GIB:,} bytes" in words
    assert words.endswith("wait for them with --wait-for-gpu SECONDS") and bench.slept == 0


def test_it_is_waited_for_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(freed_s=3.2)
    with caplog.at_level(logging.WARNING, "headrace"):
        hardware, _ = bench.budget(10, cache_bytes=10 * GIB)
    assert hardware == CARD and bench.slept == pytest.approx(3.5)
    (record,) = caplog.records
    assert "waiting up to 10 s for the GPU" in record.message and "blender" in record.message


def test_not_longer_than_is_asked_for() -> None:
    bench = Bench(freed_s=60)
    with pytest.raises(ConfigError, match="blender"):
        bench.budget(1.7, cache_bytes=10 * GIB)
    assert bench.slept == pytest.approx(1.7)


def test_what_would_not_fit_alone_is_not_waited_for() -> None:
    bench = Bench(freed_s=1)
    with pytest.raises(ConfigError) as raised:
        bench.budget(60, cache_bytes=30 * GIB)
    assert "blender" not in str(raised.value) and bench.slept == 0


def test_by_default_the_cache_is_what_others_leave(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(freed_s=1)
    with caplog.at_level(logging.WARNING, "headrace"):
        _, budget = bench.budget(0)
    (record,) = caplog.records
    assert "the Test 24 GB is shared: " in record.message and "process 4711 (blender)" in record.message
    assert budget.total_bytes <= int(24 * GIB * 0.97) - 20 * GIB - 2**28 + 1 and bench.slept == 0


def test_what_drafts_is_decided_of_the_card_that_was_waited_for() -> None:
    """While others hold it there is room for nothing; then there is for the model's own head, which auto takes."""
    config, bench = EngineConfig(device="cuda"), Bench(freed_s=2, free=replace(CARD, capability=86, processors=82))
    model = published_model("qwen3.8-27b:w4a16")
    dtypes = resolve_dtypes(config, CARD, "bfloat16")
    make = partial(_settle, model, config, dtypes, None, NONE)
    assert make(replace(CARD, capability=86)).drafting.memory.method == "mtp"
    with pytest.raises(ConfigError, match="before its cache"):
        make(bench.look())
    hardware, settled = budget_beside_others(
        bench.look, make, bench.holders, 10, clock=lambda: bench.now, sleep=bench.sleep
    )
    assert hardware.free_bytes == CARD.free_bytes and bench.slept == pytest.approx(2)
    assert settled.drafting.memory.method == "mtp" and settled.budget.layout.drafts == 4


def test_a_cpu_is_not_waited_for() -> None:
    bench = Bench(freed_s=1, free=Hardware("cpu", "CPU", 24 * GIB, 23 * GIB))
    with pytest.raises(ConfigError) as raised:
        bench.budget(60, memory_bytes=100)
    assert "blender" not in str(raised.value) and bench.slept == 0


def test_who_nobody_names() -> None:
    bench = Bench(freed_s=1)
    bench.holders = tuple  # type: ignore[method-assign, assignment]
    with pytest.raises(ConfigError, match="by processes that the driver does not name"):
        bench.budget(0, cache_bytes=10 * GIB)


HOLD = f"""
import sys, torch
held = torch.zeros({4 * GIB}, dtype=torch.uint8, device="cuda")
print(held.numel(), flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
@pytest.mark.alone
def test_another_process_is_named_and_waited_for() -> None:
    """One that holds 4 GiB of this machine's GPU, 2 GiB of which are wanted."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == f"{4 * GIB}\n"
        look = partial(detect, "cuda")
        hardware = look()
        named = [each for each in gpu_processes(hardware.uuid) if each.pid == holder.pid]
        print(f"{hardware.name}: {hardware.free_bytes:,} of {hardware.memory_bytes:,} bytes free; {named}")
        if not named:
            pytest.skip("the driver does not name processes here")
        assert named[0].memory_bytes is None or named[0].memory_bytes > 4 * GIB
        make, holders = maker(hardware, cache_bytes=hardware.free_bytes + 2 * GIB), partial(gpu_processes, hardware.uuid)
        with pytest.raises(ConfigError, match=f"bytes are held: .*process {holder.pid} "):
            budget_beside_others(look, make, holders, 0.0)
        Timer(1.0, holder.stdin.close).start()
        found, budget = budget_beside_others(look, make, holders, 60.0)
        assert budget.total_bytes <= found.free_bytes and found.free_bytes > hardware.free_bytes + 4 * GIB
    finally:
        holder.kill()
        holder.wait()
