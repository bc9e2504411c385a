"""CUDA C++ compiled at run time by NVRTC, which comes with PyTorch's CUDA builds: no toolkit, no compiler, no headers.

Machine code is kept on disk under a digest of all that it was made from, so a second start compiles nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from time import perf_counter

from headrace.kernels.late import note_compiled


class CompileError(RuntimeError):
    """NVRTC's own messages about a source that does not compile."""


@cache
def _library() -> ctypes.CDLL:
    """Raises OSError where there is no NVRTC."""
    for path in _installed():
        try:
            for part in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))  # NVRTC looks for it by name alone
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return ctypes.CDLL("libnvrtc.so")


def _installed() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for pattern in ("cu[0-9]*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            yield from sorted(Path(root).glob(pattern), reverse=True)


def available() -> bool:
    try:
        return _library() is not None
    except OSError:
        return False


def compiled(source: str, macros: Mapping[str, int], architecture: str, name: str = "") -> bytes:
    """Machine code for "sm_90", or PTX for "compute_90", from disk if it was compiled before. name: of its kernel, for the log.
    Raises CompileError, OSError.
    """
    options = (f"--gpu-architecture={architecture}", "--std=c++17", "--extra-device-vectorization",
               *(f"-D{name}={value}" for name, value in sorted(macros.items())))
    identity = "\n".join((source, *options, _version()))
    file = _cache_directory() / (hashlib.sha256(identity.encode()).hexdigest() + ".bin")
    if file.is_file():
        return file.read_bytes()
    began_s = perf_counter()
    compiler = _compiler.get() or compile_here
    code = compiler(source, options, "PTX" if architecture.startswith("compute") else "CUBIN")
    note_compiled(f"{name} {dict(macros)}", perf_counter() - began_s)
    _keep(file, code)
    return code


def _version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "nvrtc"


def _keep(file: Path, code: bytes) -> None:
    """Atomically, since several processes may compile the same; a disk that cannot be written costs only the next compile."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as scratch:
            scratch.write(code)
        os.replace(scratch.name, file)
    except OSError:
        return


def compile_here(source: str, options: tuple[str, ...], kind: str) -> bytes:
    """What `compiled` keeps, in this process, which does one at a time. kind: "CUBIN" or "PTX"."""
    library, program = _library(), ctypes.c_void_p()
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            raise CompileError(_fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
        return _fetch(program, kind)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(program: ctypes.c_void_p, what: str) -> bytes:
    library, size = _library(), ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise CompileError(_library().nvrtcGetErrorString(status).decode())


Compiler = Callable[[str, tuple[str, ...], str], bytes]
_compiler: ContextVar[Compiler | None] = ContextVar("compiler", default=None)


@contextmanager
def compiling_by(compiler: Compiler) -> Iterator[None]:
    """In this context `compiler` does the work of `compile_here`."""
    token = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(token)
