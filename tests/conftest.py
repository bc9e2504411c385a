"""What every test shares: GPU tests are skipped where there is no CUDA device, and are alone looked for with -m gpu.

Tests marked `alone` measure the whole device: each has a process of its own, and several workers of pytest-xdist skip them.
Those that ask for `lab_model` need the weights that come with headrace, and fail without them.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.plan.named import lab_model_path

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch; threads of several workers only wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ALONE_S = 100
"""For a test in a process of its own, compilers included."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--here", action="store_true", help="run tests marked `alone` in this process")


@pytest.fixture(scope="session")
def lab_model() -> Path:
    """The lab model's directory; its DFlash2 drafter is the folder `drafter` of it. Raises CheckpointError if it is missing."""
    return lab_model_path()


@pytest.fixture(scope="module")
def only_own_garbage() -> Iterator[None]:
    """For tests of what something takes: what other tests left behind is not looked through meanwhile, which takes seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture()
def one_thread() -> Iterator[None]:
    """For a tiny model a second thread costs more than it gives, most of all beside a server or other tests."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """What other tests leave on the device, and kernels keep of it, would be counted."""
    config = pyfuncitem.config
    if pyfuncitem.get_closest_marker("alone") is None or config.getoption("here"):
        return None
    command = [sys.executable, "-m", "pytest", "--here", "-m", "alone", "-q", "-s", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    status = subprocess.run(command, cwd=config.rootpath, timeout=ALONE_S).returncode  # what it prints is seen as it comes
    assert status == 0, f"{pyfuncitem.nodeid} in a process of its own"
    return True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With -m gpu, files without such tests are not even imported: machines with a GPU may lack what they need. With
    -m "gpu and alone" other GPU tests are not either, since that takes as long as one of these.
    """
    wanted = re.match(r"gpu( and alone)?\b", config.option.markexpr or "")
    if not wanted:
        return None
    mark = "mark.alone" if wanted[1] else "mark.gpu"
    files = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any(mark in file.read_text() for file in files) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    for item in marked:
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif workers > 1 and item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.skip(reason="measures the whole device: -m 'gpu and alone', without -n"))
