"""Compiling ahead: nothing that is launched within runs, and what was compiled is there afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from headrace.kernels import cuda_function
from headrace.kernels.ahead import _Launchable, compiling_ahead, only_compiles
from headrace.kernels.low_bit_linear import cases, low_bit_linear

pytest.importorskip("triton", reason="Triton has no build for this system")


def test_other_kernels_are_compiled_once_and_not_launched() -> None:
    done: list[int] = []
    assert not only_compiles("before", lambda: done.append(0))
    with compiling_ahead():
        assert all(only_compiles(key, lambda key=key: done.append(key)) for key in (1, 2, 1, 3))
        other = threading.Thread(target=lambda: done.append(only_compiles(9, lambda: None)))
        other.start()
        other.join()
    assert sorted(done) == [False, 1, 2, 3]
    assert not only_compiles("after", lambda: done.append(0))


def test_what_does_not_compile_is_told_later_and_a_mistake_within_at_once() -> None:
    with compiling_ahead():
        assert only_compiles("broken", lambda: 1 / 0)
    with pytest.raises(KeyError), compiling_ahead():
        raise KeyError
    assert not only_compiles("after", lambda: None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Stands in for Triton's launch; what each one was asked for."""
    from triton.runtime.jit import JITFunction

    seen: list[bool] = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *args, grid, warmup: seen.append(warmup))
    yield seen


def test_triton_kernels_are_warmed_up_only(run: list[bool]) -> None:
    from tests.kernels.tile_kernels import store

    with compiling_ahead():
        store[(1,)](1, 2)
    store[(1,)](1, 2)
    assert run == [True, False]


def test_what_launches_them_is_compiled_too_once_for_the_same_types(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import driver

    made: list[tuple[object, object]] = []

    def launcher(source: object, metadata: object) -> None:
        made.append((source, metadata))
        if metadata == "broken":
            raise RuntimeError

    monkeypatch.setattr(driver, "_active", SimpleNamespace(launcher_cls=launcher))
    kinds = {"x": "*fp32", "n": "i32"}, {"y": "*fp32", "m": "i32"}, {"x": "*bf16", "n": "i32"}
    kernels = [SimpleNamespace(src=SimpleNamespace(signature=each), metadata=n) for n, each in enumerate(kinds)]
    kernels[2].metadata = "broken"
    with ThreadPoolExecutor(1) as pool:
        executor = _Launchable(pool)
        assert [executor.submit(lambda kernel: kernel, each).result() for each in kernels] == kernels
        assert isinstance(executor.submit(lambda: 1 / 0).exception(), ZeroDivisionError)
    assert made == [(kernels[0].src, 0), (kernels[2].src, "broken")]


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_written_until_it_is_really_launched() -> None:
    from tests.kernels.tile_kernels import store

    x, y = torch.arange(16.0, device="cuda"), torch.zeros(16, device="cuda")
    case = cases.Case("", 3, 272, 640, 128, False, True, torch.bfloat16)
    given = {name: t.cuda() if isinstance(t, torch.Tensor) else t for name, t in cases.inputs(case, torch.bfloat16).items()}
    cuda_function._compiled.cache_clear()
    with compiling_ahead():
        for _ in range(2):
            store[(1,)](x, y, 16)
            low_bit_linear(**given)
    assert not y.any()
    store[(1,)](x, y, 16)
    assert torch.equal(y, x) and torch.isfinite(low_bit_linear(**given)).all()
