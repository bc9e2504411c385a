"""Machine code on the current CUDA device, launched on PyTorch's current stream (and so captured by its graphs)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.ahead import only_compiles
from headrace.kernels.card import card

_SHARED_BYTES_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_EARLY_START_ATTRIBUTE = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

Argument = Tensor | int | ctypes.c_longlong | ctypes.c_float | ctypes.Structure | None


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes of which the first int is used here."""

    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60)]


class _Launch(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    ]


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    if status:
        message = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(message))
        raise RuntimeError(f"CUDA driver: {(message.value or b'unknown error').decode()}")


class CudaFunction:
    """One kernel of `code` (a cubin, or PTX that the driver compiles), with blocks of `threads` and `shared_bytes` each.

    code: or what compiles it, called by the first launch; where kernels are compiled ahead by another thread, for the cache.
    early: it may start while the kernel before it still runs, on cards of compute capability 9.0 and later; it must itself wait
    before it reads that one's results or writes anything.
    """

    def __init__(
        self, code: bytes | Callable[[], bytes], name: str, threads: int, shared_bytes: int, *, early: bool
    ) -> None:
        self._code: Callable[[], bytes] = (lambda: code) if isinstance(code, bytes) else code
        self._name = name
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._threads, self._shared_bytes = threads, shared_bytes
        self._attribute = _Attribute(_EARLY_START_ATTRIBUTE, 0, 1)
        self._attribute_count = int(early and torch.cuda.get_device_capability() >= (9, 0))

    def __call__(self, grid: tuple[int, int, int], *arguments: Argument) -> None:
        """Launch. A Tensor or None is passed as its address, an int as a 32-bit int, a structure by value."""
        if only_compiles(self, self._code):
            return
        if not self._function:
            self._load()
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        launch = _Launch(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(self._threads, 1, 1), self._shared_bytes,
            torch.cuda.current_stream().cuda_stream, ctypes.pointer(self._attribute), self._attribute_count,
        )
        check(driver().cuLaunchKernelEx(ctypes.byref(launch), self._function, pointers, None))

    def _load(self) -> None:
        code = self._code()
        torch.cuda.current_stream()  # makes PyTorch's context the current one
        check(driver().cuModuleLoadData(ctypes.byref(self._module), code))
        check(driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, self._name.encode()))
        check(driver().cuFuncSetAttribute(self._function, _SHARED_BYTES_ATTRIBUTE, ctypes.c_int(self._shared_bytes)))


def compiled(
    text: str, name: str, macros: Mapping[str, int], threads: int, shared_bytes: int, device: torch.device, *,
    wgmma: bool = False,
) -> CudaFunction:
    """The kernel `name` of a CUDA C++ text, built by NVRTC for the device's card: the same one each time. Starts early."""
    index = torch.cuda.current_device() if device.index is None else device.index
    target = architecture(card(device).capability, wgmma=wgmma)
    return _compiled(text, name, tuple(macros.items()), threads, shared_bytes, index, target)


def with_primitives(*files: Path) -> str:
    """primitives.cuh, which begins every kernel's text, and these files."""
    return "".join(file.read_text() for file in (Path(__file__).parent / "primitives.cuh", *files))


def architecture(capability: int, *, wgmma: bool = False) -> str:
    """What a card's kernels are built for; wgmma is not in the part of PTX that later cards keep."""
    return f"sm_{capability}a" if wgmma else f"sm_{capability}"


@cache
def _compiled(
    text: str, name: str, macros: tuple[tuple[str, int], ...], threads: int, shared_bytes: int, device: int, target: str
) -> CudaFunction:
    return CudaFunction(partial(nvrtc.compiled, text, dict(macros), target), name, threads, shared_bytes, early=True)


def _value(argument: Argument) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_longlong | ctypes.c_float | ctypes.Structure:
    if isinstance(argument, int):
        return ctypes.c_int(argument)
    if isinstance(argument, ctypes.c_longlong | ctypes.c_float | ctypes.Structure):
        return argument
    return ctypes.c_void_p(None if argument is None else argument.data_ptr())
