"""Kernels of gated_delta_verify compiled by the system's C++ compiler and run on CPU tensors, see cuda_on_cpu.hpp."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

COMPILER = shutil.which("g++")
DYNAMIC = re.compile(r"extern __shared__ .*uint4 memory\[\];")


def compiled(source: str, name: str, macros: Mapping[str, int], folder: Path) -> Callable[..., None]:
    """The kernel `name` of a source without its primitives, called with (columns, rows of blocks, its arguments)."""
    found = re.search(rf'extern "C" __global__ .*?\b{name}\((.*?)\) \{{', source, re.DOTALL)
    assert found and COMPILER
    parameters = found[1].replace("__restrict__", "")
    names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
    header = f'#include "{Path(__file__).with_suffix(".hpp")}"\n'
    entry = f'\nextern "C" void run(int columns, int rows, {parameters}) {{\n'
    entry += f"  launch(columns, rows, [=] {{ {name}({names}); }});\n}}\n"
    (folder / f"{name}.cpp").write_text(header + DYNAMIC.sub("", source) + entry)
    library = folder / f"{name}.so"
    defined = [f"-D{macro}={value}" for macro, value in macros.items()]
    command = [COMPILER, "-O1", "-std=c++17", "-w", "-fPIC", "-shared", *defined, folder / f"{name}.cpp", "-o", library]
    subprocess.run(command, check=True, capture_output=True, text=True)
    run = ctypes.CDLL(str(library)).run
    return lambda columns, rows, *arguments: run(columns, rows, *map(_value, arguments))


def _value(argument: object) -> object:
    return ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, Tensor) else argument
