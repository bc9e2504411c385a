"""What PyTorch's allocator counts for an allocation on a GPU: the block that it gives, of which some may be unused."""

from __future__ import annotations

_ALIGNMENT_BYTES = 512
_LEAST_LARGE_BYTES, _LARGE_STEP_BYTES = 10 * 2**20, 2 * 2**20
_MOST_LEFT_BYTES = 2**20
"""The device is asked for multiples of a step where a piece is as large as this, and for more than fits where it is smaller. Of
what is left behind a piece, so much stays with it at most."""


def block_bytes(size: int) -> int:
    """Bytes of the block of a piece of `size` bytes for which the device is asked."""
    piece = _up(size, _ALIGNMENT_BYTES)
    asked = _up(piece, _LARGE_STEP_BYTES) if piece >= _LEAST_LARGE_BYTES else piece
    return piece if asked - piece > _MOST_LEFT_BYTES else asked


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
