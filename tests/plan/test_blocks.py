"""Bytes of an allocation: against what PyTorch's allocator counted on an H200."""

from __future__ import annotations

import pytest

from headrace.plan.blocks import block_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("weights", "allocated"),
    [(16_412_118_016, 16_412_312_064), (17_683_019_776, 17_683_186_176), (53_793_355_776, 53_794_046_464)],
)
def test_weights_in_one_piece_take_what_was_measured(weights: int, allocated: int) -> None:
    """The 27B shape in three formats; beside them, 32 frequencies of a rotary embedding."""
    assert block_bytes(weights) + block_bytes(32 * 4) == allocated


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (0, 0), (1, 512), (512, 512), (MIB - 1, MIB), (MIB + 1, MIB + 512), (9 * MIB + 5, 9 * MIB + 512),
        (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB), (11 * MIB - 1, 11 * MIB + MIB), (11 * MIB - 512, 11 * MIB - 512),
        (32 * MIB, 32 * MIB), (33 * MIB, 34 * MIB),
    ],
)
def test_no_more_than_a_mebibyte_stays_behind(size: int, block: int) -> None:
    assert block_bytes(size) == block
