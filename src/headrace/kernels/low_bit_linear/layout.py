"""The order of a low-bit weight's bytes that the CUDA kernels read: 16 bytes a lane, each lane decoding what it loads.

A tile is 16 outputs by 128 inputs. Tiles follow each other as [outputs / 16, inputs / 128]. Lane 4 g + c has its elements of
the A fragments of eight m16n8k16 (PTX ISA, "matrix fragments for mma.m16n8k16"): rows g + 8 u, inputs 16 step + 8 p + 2 c + e.
All orders are permutations within 16 rows, so they are made in place.
4 bits: [half of 64 inputs][lane][step: a word of 8 codes], code 4 e + 2 p + u of the word, so that (word >> 4 i) & 0x000F000F
is register i of the fragment. 8 bits: [two steps][lane][step, p: a word of 4 bytes], byte 2 e + u likewise.
Scales: [group][g][u]. Zero points: the same order, 4 bits each, 8 bytes a group.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, INPUTS = 16, 128
GROUPS = (32, 64, 128)
_PIECE_NUMBERS = 2**22

# Axes of a row-major block of 16 rows, and where the tiles have them: u g chunk, steps (2, 2, 2), p c e.
_AXES = (2, 8, -1, 2, 2, 2, 2, 4, 2)
_FOUR_BITS = (2, 3, 1, 7, 4, 5, 8, 6, 0)
_EIGHT_BITS = (2, 3, 4, 1, 7, 5, 6, 8, 0)


def can_tile(outputs: int, inputs: int, group: int, *, zeros: bool) -> bool:
    """Whether the shape consists of whole tiles and groups that a kernel knows; group == inputs is one scale a row."""
    return outputs % ROWS == 0 and inputs % INPUTS == 0 and (group in GROUPS or (group == inputs and not zeros))


@torch.no_grad()
def tile_(packed: Tensor, scale: Tensor, zero: Tensor | None = None, *, undo: bool = False) -> None:
    """Reorder a weight in place, a few million numbers at a time; undo reverses it. Shapes and bytes stay.

    Waits for the device: the kernels read weights before they wait for the kernels before them.
    """
    four_bits = packed.dtype == torch.int32
    _reorder_(packed, _order(16 * packed.shape[1] * (8 if four_bits else 1), _AXES, _FOUR_BITS if four_bits else _EIGHT_BITS),
              undo)
    _reorder_(scale, _order(16 * scale.shape[1], (2, 8, -1), (2, 1, 0)), undo)
    if zero is not None:
        _reorder_(zero, _order(16 * zero.shape[1], (2, -1, 8), (1, 2, 0)), undo)
    if packed.is_cuda:
        torch.cuda.synchronize(packed.device)


def _order(numbers: int, axes: tuple[int, ...], permutation: tuple[int, ...]) -> Tensor:
    """[numbers] of 16 rows: which one of the row-major block each place of the tiles has."""
    return torch.arange(numbers).view(axes).permute(permutation).reshape(-1)


def _reorder_(values: Tensor, order: Tensor, undo: bool) -> None:
    order = (order.argsort() if undo else order).to(values.device)
    blocks = values.view(-1, len(order) // (8 if values.dtype == torch.int32 else 1))  # 16 rows each
    step = max(1, _PIECE_NUMBERS // len(order))
    for piece in torch.split(blocks, step):
        if values.dtype == torch.int32:
            piece.copy_(_words(_codes(piece)[:, order]))
        else:
            piece.copy_(piece[:, order])


def _codes(words: Tensor) -> Tensor:
    """int32 [N, M] -> uint8 [N, 8 M], the lowest four bits first."""
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), -1).view(len(words), -1)


def _words(codes: Tensor) -> Tensor:
    """The reverse of _codes."""
    pairs = codes.view(len(codes), -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).contiguous().view(torch.int32)
