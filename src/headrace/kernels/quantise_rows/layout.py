"""The order of codes that the kernels over tiled weights read: what a block copies lies together, and a lane's bytes do.

[rows / 64][inputs / 128][row of 64][piece of 16 inputs], where piece p of row r lies at place p ^ (r % 8), the 128-byte
swizzle of shared memory. Within a piece, input 8 p + 2 c + e is byte 4 c + 2 e + p: a lane of an A fragment of two k-steps
(low_bit_linear.layout) has the inputs of one c. Rows are padded to whole blocks of PADDED_ROWS, with anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, INPUTS, PADDED_ROWS = 64, 128, 128


def padded(rows: int) -> int:
    return -(-rows // PADDED_ROWS) * PADDED_ROWS


def tile_rows(codes: Tensor) -> Tensor:
    """codes [T, I] of one byte each, I a multiple of INPUTS -> uint8 [padded(T), I]."""
    rows, inputs = codes.shape
    out = torch.zeros(padded(rows), inputs, dtype=torch.uint8, device=codes.device)
    out[:rows] = codes.contiguous().view(torch.uint8)
    pieces = out.view(-1, ROWS, inputs // INPUTS, 8, 2, 4, 2).permute(0, 2, 1, 3, 5, 6, 4).reshape(-1, ROWS, 8, 16)
    places = torch.arange(8, device=codes.device) ^ torch.arange(ROWS, device=codes.device)[:, None] % 8  # its own inverse
    return pieces.gather(2, places[None, :, :, None].expand(len(pieces), -1, -1, 16)).view(-1, inputs)
