"""How Hopper's copy engine finds a box of a tensor: CUtensorMap, made by the driver and passed to a kernel by value."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from torch import Tensor

from headrace.kernels.cuda_function import check, driver

_SIXTEEN_BITS, _THIRTY_TWO_BITS = 1, 2  # CU_TENSOR_MAP_DATA_TYPE_UINT16, _UINT32
_PLAIN, _SWIZZLE_128_BYTES = 0, 3
_PROMOTE_TO_256_BYTES = 3
SWIZZLED_NUMBERS = 64


class TensorMap(ctypes.Structure):
    """CUtensorMap: 128 bytes that only the driver reads."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]


def boxes_of_rows(x: Tensor, box_rows: int) -> TensorMap:
    """Boxes of 64 numbers by `box_rows` rows of a 16-bit matrix x [T, I], whose rows begin at multiples of 16 bytes. In shared
    memory a box is rows of 128 bytes, the 16-byte pieces of row r at piece ^ (r % 8); beyond the matrix it has zeros.
    """
    sizes, box = (x.shape[1], x.shape[0]), (SWIZZLED_NUMBERS, box_rows)
    return _map(x.data_ptr(), _SIXTEEN_BITS, sizes, (2 * x.stride(0),), box, _SWIZZLE_128_BYTES)


def boxes_of_words(values: Tensor, sizes: tuple[int, ...], box: tuple[int, ...]) -> TensorMap:
    """Boxes of a contiguous tensor's bytes as 32-bit words of these sizes, the fastest first, at most 256 each way."""
    strides = [4]
    for size in sizes[:-1]:
        strides.append(strides[-1] * size)
    return _map(values.data_ptr(), _THIRTY_TWO_BITS, sizes, tuple(strides[1:]), box, _PLAIN)


@lru_cache(maxsize=8192)
def _map(
    address: int, kind: int, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> TensorMap:
    """strides: bytes, of all but the first size."""
    count = len(sizes)
    memory = ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + 63)
    made = TensorMap.from_buffer(memory, -ctypes.addressof(memory) % 64)  # the driver wants it at a multiple of 64 bytes
    check(driver().cuTensorMapEncodeTiled(
        ctypes.byref(made), kind, count, ctypes.c_void_p(address), (ctypes.c_uint64 * count)(*sizes),
        (ctypes.c_uint64 * count)(*strides), (ctypes.c_uint32 * count)(*box), (ctypes.c_uint32 * count)(*(1,) * count),
        0, swizzle, _PROMOTE_TO_256_BYTES, 0,
    ))
    return made
