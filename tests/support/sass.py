"""What the driver's compiler made of a kernel, read by Triton's cuobjdump."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


def loads_before_wait(cubin: bytes, folder: Path) -> int:
    """Loads from global memory into registers that stand before the first wait for the kernels before."""
    backend = pytest.importorskip("triton.backends.nvidia")
    (folder / "kernel.cubin").write_bytes(cubin)
    command = [Path(backend.__file__).parent / "bin" / "cuobjdump", "--dump-sass", folder / "kernel.cubin"]
    head, wait, _ = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("ACQBULK")
    assert wait, "no wait"
    return len(re.findall(r"\bLDG\.", head))
