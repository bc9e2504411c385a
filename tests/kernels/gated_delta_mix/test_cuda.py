"""The CUDA kernel for rows of one token: it compiles for every card within its means, waits, and agrees with the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.low_bit_linear.test_cuda import CARDS, needs_nvrtc, resources
from tests.kernels.test_early_start import WRITES, before_wait, parameters_read
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support.sass import loads_before_wait
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.card import Card
from headrace.kernels.gated_delta_mix import MixWeights, cuda, reference
from headrace.kernels.rows import PackedRows

SHAPES = ((16, 48, 4), (16, 32, 4), (2, 4, 5), (1, 1, 2))  # key heads, value heads, taps
TYPES = (torch.bfloat16, torch.float16)
POINTERS = 12
READ_EARLY = {2, 3, 4, 5, 8}  # conv, a_log, dt_bias, norm; and slots, for a prefetch that may go astray


@needs_nvrtc
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"sm_{card.capability}")
def test_compiles_for_its_card(card: Card, dtype: torch.dtype, tmp_path: Path) -> None:
    for shape in SHAPES:
        macros = cuda.macros(dtype, *shape, card.capability)
        stack, static = resources(nvrtc.compiled(cuda.source(), macros, f"sm_{card.capability}"), tmp_path)
        assert stack == 0 and static <= card.shared_bytes // macros["RESIDENT"], shape


@needs_nvrtc
def test_waits_before_it_touches_what_others_write(tmp_path: Path) -> None:
    """Nor does the driver's compiler put a load before the wait that PTX has behind it."""
    macros = cuda.macros(torch.bfloat16, *SHAPES[0], 90)
    found = before_wait(nvrtc.compiled(cuda.source(), macros, "compute_90").decode())
    assert not [name for name, _ in found if WRITES.match(name)]
    assert parameters_read(found) & set(range(POINTERS)) == READ_EARLY
    loads = sum(name.startswith("ld.global") for name, _ in found)
    assert loads_before_wait(nvrtc.compiled(cuda.source(), macros, "sm_90"), tmp_path) <= loads


def weights(key_heads: int, heads: int, taps: int, dtype: torch.dtype) -> MixWeights:
    channels = (2 * key_heads + heads) * cuda.HEAD_DIM
    conv = (0.5 * torch.randn(taps, channels)).to(dtype).T
    return MixWeights(conv, 0.5 * torch.randn(heads), torch.randn(heads) - 2, 1 + 0.3 * torch.randn(cuda.HEAD_DIM), 1e-6)


def widened(w: MixWeights) -> MixWeights:
    return MixWeights(w.conv.float(), w.a_log, w.dt_bias, w.norm, w.eps)


def on_gpu(w: MixWeights) -> MixWeights:
    return MixWeights(w.conv.T.cuda().T, w.a_log.cuda(), w.dt_bias.cuda(), w.norm.cuda(), w.eps)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "dtype"), [*((shape, torch.bfloat16) for shape in SHAPES[::2]), (SHAPES[0], torch.float16)])
@pytest.mark.parametrize("rows", [(1,), (1,) * 5, (1, 3, 1, 1, 70, 1)], ids=["one", "neighbours", "among-others"])
def test_on_a_gpu(rows: tuple[int, ...], shape: tuple[int, int, int], dtype: torch.dtype, poisoned: None) -> None:  # noqa: F811
    """The same bits each time, though blocks come in any order: what they count is back at zero."""
    torch.manual_seed(len(rows))
    _, heads, taps = shape
    w, count, values = weights(*shape, dtype), len(rows) + 3, heads * cuda.HEAD_DIM
    slots, tokens = torch.randperm(count)[: len(rows)], sum(rows)
    qkvz = torch.cat([torch.randn(tokens, len(w.conv)), 1 + 0.3 * torch.randn(tokens, values)], 1).to(dtype)
    ab, tails = torch.randn(tokens, 2 * heads).to(dtype), torch.randn(count, taps - 1, len(w.conv)).to(dtype)
    states = torch.randn(count, heads, cuda.HEAD_DIM, cuda.HEAD_DIM).half()
    found = [decoded(qkvz, ab, w, tails, states, slots, rows) for _ in range(5)]
    assert all(torch.equal(one, other) for again in found for one, other in zip(again, found[0], strict=True))

    starts = torch.tensor((0, *rows)).cumsum(0)
    single = [row for row, length in enumerate(rows) if length == 1]
    wide = tails.float(), states.float()
    expected = reference.gated_delta_mix(
        qkvz.float()[starts[single]], ab.float()[starts[single]], widened(w), *wide, slots[single],
        PackedRows((1,) * len(single), torch.device("cpu")),
    )
    agree((found[0][0][starts[single]], found[0][2]), (expected, wide[1]), dtype)
    assert torch.equal(found[0][1].float().cpu(), wide[0])


def decoded(
    qkvz: Tensor, ab: Tensor, w: MixWeights, tails: Tensor, states: Tensor, slots: Tensor, rows: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of all tokens, of which only the single rows' are written; tails and states of all slots."""
    qkvz, ab, tails, states, slots, w = *(x.cuda() for x in (qkvz, ab, tails, states, slots)), on_gpu(w)
    singles, out = PackedRows(rows, qkvz.device).singles, qkvz.new_zeros(len(qkvz), w.norm.numel() * states.shape[1])
    assert singles is not None and cuda.suits(qkvz, w, tails, states, singles)
    cuda.decode(qkvz, ab, w, tails, states, slots, singles, out)
    return out, tails, states
