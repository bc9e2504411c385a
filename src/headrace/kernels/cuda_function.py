"""Machine code on the current CUDA device, launched on PyTorch's current stream (and so captured by its graphs)."""

from __future__ import annotations

import ctypes
import struct
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
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint),
    ]


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    if status:
        message = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(message))
        raise RuntimeError(f"CUDA driver: {(message.value or b'unknown error').decode()}")


class _Packed:
    """How a kernel is given its arguments, told by the first ones, so that a launch makes two objects and not two for each."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        fields = [(f"argument{n}", _type_of(argument)) for n, argument in enumerate(arguments)]
        self._values = type("Values", (ctypes.Structure,), {"_fields_": fields})
        self._offsets = tuple(getattr(self._values, name).offset for name, _ in fields)
        self._addresses = tuple(kind is ctypes.c_void_p for _, kind in fields)
        self._pack = struct.Struct(f"{len(fields)}P").pack

    def values(self, arguments: tuple[Argument, ...]) -> ctypes.Structure:
        pairs = zip(arguments, self._addresses, strict=True)
        made: ctypes.Structure = self._values(*[
            x.data_ptr() if is_address and x is not None else x for x, is_address in pairs  # type: ignore[union-attr]
        ])
        return made

    def pointers(self, values: ctypes.Structure) -> bytes:
        """To each of them."""
        first = ctypes.addressof(values)
        return self._pack(*[first + offset for offset in self._offsets])


def _type_of(argument: Argument) -> type:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p
    return ctypes.c_int if isinstance(argument, int) else type(argument)


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
        self._shared_bytes = shared_bytes
        self._attribute = _Attribute(_EARLY_START_ATTRIBUTE, 0, 1)
        attributes = ctypes.addressof(self._attribute), int(early and torch.cuda.get_device_capability() >= (9, 0))
        self._block, self._attributes = (threads, 1, 1, shared_bytes), attributes
        self._packed: _Packed | None = None

    def __call__(self, grid: tuple[int, int, int], *arguments: Argument) -> None:
        """Launch. A Tensor or None is passed as its address, an int as a 32-bit int, a structure by value."""
        if only_compiles(self, self._code):
            return
        if self._packed is None:
            self._load()
            self._packed = _Packed(arguments)
        stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
        launch, values = _Launch(*grid, *self._block, stream, *self._attributes), self._packed.values(arguments)
        status = self._launch(ctypes.byref(launch), self._function, self._packed.pointers(values), None)
        if status:
            check(status)

    def _load(self) -> None:
        code = self._code()
        torch.cuda.current_stream()  # makes PyTorch's context the current one
        check(driver().cuModuleLoadData(ctypes.byref(self._module), code))
        check(driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, self._name.encode()))
        check(driver().cuFuncSetAttribute(self._function, _SHARED_BYTES_ATTRIBUTE, ctypes.c_int(self._shared_bytes)))
        self._launch = driver().cuLaunchKernelEx


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
    return CudaFunction(partial(nvrtc.compiled, text, dict(macros), target, name), name, threads, shared_bytes, early=True)
