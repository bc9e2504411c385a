"""Buffers in pieces: all bytes, once, in order, however little the system moves at a time."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.ssd.pieces import PIECE_BYTES, groups_of, move_all, piece_count

sizes = st.lists(st.sampled_from((0, 1, 7, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5)), max_size=8)


@given(sizes=sizes, small=st.integers(0, 600), offset=st.integers(0, 9000))
def test_groups_hold_every_byte_once(sizes: list[int], small: int, offset: int) -> None:
    buffers = [memoryview(bytes([index % 251]) * size) for index, size in enumerate([*sizes, *[3] * small])]
    at, piece = offset, 0
    for group in groups_of(buffers, offset):
        assert (group.offset, group.first) == (at, piece) and 1 <= len(group.pieces) <= 256
        at += sum(map(len, group.pieces))
        piece += len(group.pieces)
    assert at == offset + sum(map(len, buffers)) and piece == piece_count([len(buffer) for buffer in buffers])
    joined = b"".join(bytes(piece) for group in groups_of(buffers, offset) for piece in group.pieces)
    assert joined == b"".join(bytes(buffer) for buffer in buffers)


@given(parts=st.lists(st.binary(max_size=20), max_size=6), steps=st.lists(st.integers(1, 30), min_size=1))
def test_short_moves_go_on_where_they_stopped(parts: list[bytes], steps: list[int]) -> None:
    file, calls = bytearray(200), 0

    def move(fd: int, views: Sequence[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        data = b"".join(bytes(view) for view in views)[: steps[calls % len(steps)]]
        file[offset : offset + len(data)] = data
        return len(data)

    wanted = [memoryview(part) for part in parts if part]
    move_all(move, 0, wanted, 10)
    whole = b"".join(parts)
    assert file == bytes(10) + whole + bytes(190 - len(whole))


def test_a_move_that_stops_is_an_error() -> None:
    with pytest.raises(OSError) as raised:
        move_all(lambda fd, views, offset: 0, 0, [memoryview(b"abc")], 0)
    assert raised.value.errno == errno.EIO
