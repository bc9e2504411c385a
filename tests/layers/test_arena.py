"""Tensors in one piece of memory: apart from each other, with their strides, and of no more bytes than they have."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headrace.layers.arena import ALIGNMENT_BYTES, Arena, aligned, in_one_piece, settle

CPU = torch.device("cpu")
SHAPES = (((3, 5), torch.float32), ((7,), torch.int8), ((0, 4), torch.float64), ((2, 2), torch.bfloat16), ((1,), torch.bool))


def test_tensors_lie_apart_and_take_all_of_it() -> None:
    def make(arena: Arena) -> list[torch.Tensor]:
        return [arena.take(shape, dtype) for shape, dtype in SHAPES]

    tensors = in_one_piece(make, CPU)
    assert [(tuple(t.shape), t.dtype) for t in tensors] == list(SHAPES)
    assert all(not t.any() and t.is_contiguous() for t in tensors)
    taking = [t for t in tensors if t.nbytes]
    begins = [t.data_ptr() - tensors[0].data_ptr() for t in taking]
    ends = [begin + t.nbytes for begin, t in zip(begins, taking, strict=True)]
    assert all(begin % ALIGNMENT_BYTES == 0 for begin in begins)
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert tensors[0].untyped_storage().nbytes() == sum(aligned(t.nbytes) for t in tensors) == 4 * ALIGNMENT_BYTES
    tensors[0].fill_(1)
    assert not any(t.any() for t in tensors[1:])


def test_more_than_was_counted_is_an_error() -> None:
    arena = Arena(ALIGNMENT_BYTES, CPU)
    arena.take((4,), torch.float32)
    with pytest.raises(RuntimeError):
        arena.take((4,), torch.float32)


def test_parameters_keep_their_shapes_and_strides() -> None:
    module = nn.Sequential(nn.Linear(3, 5, device="meta"), nn.Linear(5, 2, bias=False, device="meta"))
    module.register_parameter("taps", nn.Parameter(torch.empty(4, 6, device="meta").T, requires_grad=False))
    module.register_parameter("none", None)
    settle(module, CPU)
    found = dict(module.named_parameters())
    assert {name: (tuple(p.shape), p.stride(), p.device) for name, p in found.items()} == {
        "taps": ((6, 4), (1, 6), CPU), "0.weight": ((5, 3), (3, 1), CPU), "0.bias": ((5,), (1,), CPU),
        "1.weight": ((2, 5), (5, 1), CPU),
    }
    assert not any(p.requires_grad for p in found.values())
    assert len({p.untyped_storage().data_ptr() for p in found.values()}) == 1
    for number, parameter in enumerate(found.values()):
        parameter.fill_(number)
    assert [p.unique().tolist() for p in found.values()] == [[0.0], [1.0], [2.0], [3.0]]
