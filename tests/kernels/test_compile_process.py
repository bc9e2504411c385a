"""NVRTC in processes of their own: the same code, the same messages, and nothing worse than time where one is lost."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.kernels import compile_process, nvrtc
from headrace.kernels.ahead import compiling_ahead, only_compiles
from headrace.kernels.compile_process import CompileProcesses

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= FACTOR; }'
OPTIONS = ("--gpu-architecture=sm_90", "--std=c++17", "-DFACTOR=2")
needs_nvrtc = pytest.mark.skipif(not nvrtc.available(), reason="no NVRTC")


@pytest.fixture
def processes() -> Iterator[CompileProcesses]:
    made = CompileProcesses()
    yield made
    made.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that is started."""
    found: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        found.append(popen(*args, **kwargs))  # type: ignore[call-overload]
        return found[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


@needs_nvrtc
def test_what_another_process_compiles_is_what_this_one_would(
    processes: CompileProcesses, started: list[subprocess.Popen[bytes]]
) -> None:
    assert processes.compile(SOURCE, OPTIONS, "CUBIN") == nvrtc.compile_here(SOURCE, OPTIONS, "CUBIN")
    with pytest.raises(nvrtc.CompileError, match="FACTOR"):
        processes.compile(SOURCE, OPTIONS[:-1], "CUBIN")
    ptx = processes.compile(SOURCE, ("--gpu-architecture=compute_86", *OPTIONS[1:]), "PTX")
    assert b".target sm_86" in ptx
    assert len(started) == 1


@needs_nvrtc
def test_a_process_that_dies_costs_only_time(processes: CompileProcesses, started: list[subprocess.Popen[bytes]]) -> None:
    expected = processes.compile(SOURCE, OPTIONS, "CUBIN")
    started[0].kill()
    started[0].wait()
    assert processes.compile(SOURCE, OPTIONS, "CUBIN") == expected
    assert processes.compile(SOURCE, OPTIONS, "CUBIN") == expected
    assert len(started) == 2 and started[1].poll() is None


@needs_nvrtc
@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/true"])
def test_without_another_process_this_one_compiles(
    executable: str, monkeypatch: pytest.MonkeyPatch, processes: CompileProcesses
) -> None:
    """No Python, and one that ends without an answer."""
    monkeypatch.setattr(sys, "executable", executable)
    assert processes.compile(SOURCE, OPTIONS, "CUBIN") == nvrtc.compile_here(SOURCE, OPTIONS, "CUBIN")


@needs_nvrtc
def test_none_stays(started: list[subprocess.Popen[bytes]]) -> None:
    processes = CompileProcesses()
    barrier = threading.Barrier(2)

    def compile(factor: int) -> bytes:
        barrier.wait()
        return processes.compile(SOURCE, (*OPTIONS[:-1], f"-DFACTOR={factor}"), "CUBIN")

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(compile, (3, 4)))) == 2
    assert {each.poll() for each in started} == {None}
    processes.close()
    assert {each.returncode for each in started} == {0}


@needs_nvrtc
def test_it_ends_with_who_asks() -> None:
    command = (
        "from headrace.kernels.compile_process import CompileProcesses; import os\n"
        f"made = CompileProcesses(); made.compile({SOURCE!r}, {OPTIONS!r}, 'CUBIN')\n"
        "print(made._idle[0]._process.pid, flush=True); os._exit(1)"
    )
    pid = int(subprocess.run([sys.executable, "-c", command], capture_output=True, check=False, text=True).stdout)
    waited = threading.Event()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z (zombie)" in Path(f"/proc/{pid}/status").read_text():
            break
        waited.wait(0.1)
    else:
        pytest.fail(f"process {pid} is still there")


@needs_nvrtc
def test_compiled_ahead_is_compiled_elsewhere_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "compile_here", lambda *_: pytest.fail("compiled in this process"))
    jobs = {factor: lambda factor=factor: nvrtc.compiled(SOURCE, {"FACTOR": factor}, "sm_90") for factor in (1, 2, 3)}
    with compiling_ahead():
        for factor, job in jobs.items():
            assert only_compiles(factor, job)
    assert len(list(tmp_path.rglob("*.bin"))) == 3 and 1 <= len(started) <= 3
    assert {each.returncode for each in started} == {0}
    count = len(started)
    with compiling_ahead():
        only_compiles(1, jobs[1])
    assert len(started) == count and jobs[1]()


def test_it_runs_nothing_that_lies_where_the_server_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds modules where this process does, which does not look there."""
    (tmp_path / "pickle.py").write_text("open('run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    process = compile_process._CompileProcess()
    process.end()
    assert process._process.returncode == 0 and not (tmp_path / "run").exists()


def test_it_answers_until_there_are_no_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(source: str, options: tuple[str, ...], kind: str) -> bytes:
        if not options:
            raise nvrtc.CompileError("no options")
        return f"{kind} of {source}".encode()

    monkeypatch.setattr(nvrtc, "compile_here", fake)
    requests = io.BytesIO(pickle.dumps(("a", ("-x",), "PTX")) + pickle.dumps(("b", (), "CUBIN")))
    answers = io.BytesIO()
    compile_process.answer(requests, answers)
    answers.seek(0)
    assert [pickle.load(answers), pickle.load(answers)] == [b"PTX of a", "no options"]
    assert not answers.read()
