"""The drafters that are trained are the published ones: against their slow formulas, place by place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lab.dflash import BlockDrafter, DrafterShape
from lab.mtp import MtpHead
from lab.shape import Shape
from tests.support.drafter_formulas import dflash_block, mtp_hidden
from torch import nn

BLOCKS = DrafterShape(layers=2, block=4, intermediate=24, heads=4, kv_heads=2, head_size=8, window=7, targets=(0, 2), group=8,
                      rank=5, top_k=6)


def shaken(module: nn.Module) -> nn.Module:
    torch.manual_seed(5)
    for weight in module.parameters():
        weight.data += torch.randn_like(weight) * 0.2
    return module.eval()


@pytest.fixture(scope="module")
def shape(small: Shape) -> Shape:
    return replace(small, heads=4, kv_heads=2, head_size=16)


@torch.no_grad()
def test_first_depth_is_the_published_head(shape: Shape) -> None:
    head = shaken(MtpHead(shape))
    embedding, ids, hidden = torch.randn(20, shape.hidden), torch.randint(20, (9,)), torch.randn(9, shape.hidden)
    expected = mtp_hidden(
        {f"mtp.{name}": weight for name, weight in head.state_dict().items()}, embedding, hidden, ids, heads=shape.heads,
        kv_heads=shape.kv_heads, head_size=shape.head_size, rotary_size=shape.rotary_size, theta=shape.theta, eps=shape.epsilon,
    )
    (found,) = head(hidden[None], embedding[ids][None], 1)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_later_depths_are_the_head_applied_again(shape: Shape) -> None:
    """Row t of depth 3: the text up to t, then two drafts of its own, all as one sequence of the formula."""
    head, t = shaken(MtpHead(shape)), 5
    embedding, ids, hidden = torch.randn(20, shape.hidden), torch.randint(20, (12,)), torch.randn(9, shape.hidden)
    weights = {f"mtp.{name}": weight for name, weight in head.state_dict().items()}
    first, second, third = head(hidden[None], embedding[ids][None], 3)
    states = torch.cat([hidden[: t + 1], first[0, t : t + 1], second[0, t : t + 1]])
    expected = mtp_hidden(weights, embedding, states, ids[: t + 3], heads=shape.heads, kv_heads=shape.kv_heads,
                          head_size=shape.head_size, rotary_size=shape.rotary_size, theta=shape.theta, eps=shape.epsilon)
    torch.testing.assert_close(third[0, t], expected[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("anchor", [1, 5, 11])
@torch.no_grad()
def test_a_block_is_the_published_one(shape: Shape, anchor: int) -> None:
    drafter = shaken(BlockDrafter(shape, BLOCKS))
    embedding, taps = torch.randn(20, shape.hidden), torch.randn(2, 12, 2 * shape.hidden)
    anchors = torch.tensor([[3, anchor], [anchor, 7]])
    tokens = torch.tensor([[4, 6], [8, 9]])
    found = drafter(taps, anchors, embedding[tokens], embedding[19])
    expected = dflash_block(
        drafter.state_dict(), embedding, taps[1, :anchor], 8, layers=2, block=4, mask_token=19, heads=4, kv_heads=2,
        head_size=8, window=7, theta=BLOCKS.theta, eps=shape.epsilon, group=8,
    )
    torch.testing.assert_close(found[1, 0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_selector_scores_who_follows_whom(shape: Shape) -> None:
    selector = shaken(BlockDrafter(shape, BLOCKS)).candidate_selector
    hidden, before = torch.randn(3, shape.hidden), torch.tensor([4, 0, 63])
    found = selector(hidden, before, torch.tensor([[1, 2], [3, 4], [5, 17]]))
    turned = selector.predecessor_codebook[63] * (selector.hidden_projection.weight @ hidden[2])
    torch.testing.assert_close(found[2, 1], turned @ selector.successor_codebook[17])


def test_a_new_drafter_mixes_nothing(shape: Shape) -> None:
    convolution = BlockDrafter(shape, BLOCKS).layers[0].attention_conv
    x = torch.randn(2, 3, 4, shape.hidden)
    assert torch.equal(convolution.mix(x, convolution.kernels(x)[..., 1, :, :]), x)


def test_all_that_is_shipped_is_small() -> None:
    from lab.model import LabModel

    parts = LabModel(Shape()), MtpHead(Shape()), BlockDrafter(Shape(), DrafterShape())
    counts = [sum(weight.numel() for weight in part.parameters()) for part in parts]
    assert 2 * sum(counts) < 39.5e6, counts
