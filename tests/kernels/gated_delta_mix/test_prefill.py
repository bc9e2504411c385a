"""Hopper's kernels of longer rows: they compile within their means, wait, and agree with the reference, on a CPU too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.kernels.gated_delta_mix.test_cuda import on_gpu, weights, widened
from tests.kernels.low_bit_linear.test_cuda import needs_nvrtc, resources
from tests.kernels.test_early_start import WRITES, before_wait, parameters_read
from tests.kernels.test_gpu import agree, poisoned  # noqa: F401
from tests.support import cuda_on_cpu
from torch import Tensor

from headrace.kernels import nvrtc
from headrace.kernels.causal_conv1d.reference import causal_conv1d
from headrace.kernels.gated_delta_mix import MixWeights, prefill
from headrace.kernels.gated_delta_mix.split import split_gates, split_qkv
from headrace.kernels.gated_delta_rule.reference import gated_delta_rule
from headrace.kernels.rows import PackedRows
from headrace.kernels.variant import SHARED_BYTES

KINDS = (
    ((16, 48, 4), torch.bfloat16, torch.float16), ((2, 8, 5), torch.bfloat16, torch.float32),
    ((1, 2, 3), torch.float16, torch.float32), ((2, 2, 2), torch.float16, torch.float16),
)  # key heads, value heads, taps; activations, states
OF_KIND = pytest.mark.parametrize(("shape", "dtype", "state"), KINDS, ids=lambda kind: str(kind))
CPU = torch.device("cpu")


def macros(shape: tuple[int, int, int], dtype: torch.dtype, state: torch.dtype) -> dict[str, int]:
    key_heads, heads, taps = shape
    tails = torch.empty(1, taps - 1, (2 * key_heads + heads) * prefill.HEAD_DIM, dtype=dtype, device="meta")
    return prefill.macros(dtype, tails, torch.empty(1, heads, prefill.HEAD_DIM, prefill.HEAD_DIM, dtype=state, device="meta"))


@needs_nvrtc
@OF_KIND
def test_compiles_for_hopper(shape: tuple[int, int, int], dtype: torch.dtype, state: torch.dtype, tmp_path: Path) -> None:
    chosen, group = macros(shape, dtype, state), shape[1] // shape[0]
    for name, shared_bytes in (("prepare", prefill.prepare_bytes(group)), ("walk", prefill.walk_bytes())):
        stack, static = resources(nvrtc.compiled(prefill.source(name), chosen, "sm_90a"), tmp_path)
        assert stack == 0 and static <= 1024  # which the system has of every block's
        assert (shared_bytes + static) * (chosen["RESIDENT"] if name == "prepare" else 1) <= 228 * 1024
        assert shared_bytes <= SHARED_BYTES[90] or name == "walk"


@needs_nvrtc
@pytest.mark.parametrize("name", ["prepare", "walk"])
def test_waits_before_it_touches_what_others_write(name: str) -> None:
    found = before_wait(nvrtc.compiled(prefill.source(name), macros(*KINDS[0]), "compute_90a").decode())
    assert not [instruction for instruction, _ in found if WRITES.match(instruction) and ".shared" not in instruction]
    assert not parameters_read(found)


class Given:
    """Rows, among them some of one token, which these kernels leave alone."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype, state: torch.dtype, rows: tuple[int, ...]) -> None:
        torch.manual_seed(sum(rows))
        key_heads, heads, taps = shape
        self.rows, self.weights, tokens, slots = rows, weights(*shape, dtype), sum(rows), len(rows) + 2
        channels = len(self.weights.conv)
        self.qkvz = torch.randn(tokens, channels + heads * prefill.HEAD_DIM).to(dtype)
        self.ab, self.tails = torch.randn(tokens, 2 * heads).to(dtype), torch.randn(slots, taps - 1, channels).to(dtype)
        self.states = (0.2 * torch.randn(slots, heads, prefill.HEAD_DIM, prefill.HEAD_DIM)).to(state)
        self.slots = torch.randperm(slots)[: len(rows)]

    def check(self, out: Tensor, tails: Tensor, states: Tensor) -> None:
        """Outputs of rows of two tokens and more, and all slots."""
        packed = PackedRows(self.rows, CPU)
        longer = torch.tensor([tokens > 1 for tokens in self.rows])
        w, wide = widened(self.weights), [self.tails.float(), self.states.float()]
        kept = [x.clone() for x in wide]
        qkv = causal_conv1d(self.qkvz.float()[:, : len(w.conv)], w.conv, wide[0], self.slots, packed)
        (q, k, v), (a, b) = split_qkv(qkv, wide[1]), split_gates(self.ab.float())
        expected = gated_delta_rule(q, k, v, a, b, w.a_log, w.dt_bias, wide[1], self.slots, packed)
        alone = self.slots[~longer]
        for x, before in zip(wide, kept, strict=True):
            x[alone] = before[alone]
        tokens = longer.repeat_interleave(torch.tensor(self.rows))
        assert torch.equal(tails.float().cpu(), wide[0])
        agree((out[tokens.to(out.device)], states), (expected[tokens], wide[1]), torch.float16)


def on_cpu(given: Given, folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    tails, states, w = given.tails.clone(), given.states.clone(), given.weights
    table = PackedRows(given.rows, CPU).pieces(prefill.SIZE, 2)
    assert table is not None
    heads, key_heads = states.shape[1], (tails.shape[2] // prefill.HEAD_DIM - states.shape[1]) // 2
    chosen, pieces = prefill.macros(given.qkvz.dtype, tails, states), len(table.pieces)
    units, records = (torch.full((pieces * size // 2,), torch.nan, dtype=torch.float16)
                      for size in (key_heads * prefill.UNIT_BYTES, heads * prefill.HEAD_BYTES))
    out = torch.full((len(given.qkvz), heads, prefill.HEAD_DIM), torch.nan, dtype=torch.float16)
    header = f'#include "{Path(cuda_on_cpu.__file__).with_name("prefill_on_cpu.hpp")}"\n'

    def compiled(name: str) -> Callable[..., None]:
        return cuda_on_cpu.compiled(header + prefill.own_source(name), name, chosen, folder)

    compiled("prepare")(
        key_heads, pieces, given.qkvz, given.ab, w.conv.T.contiguous(), w.a_log, w.dt_bias, tails, given.slots, table.pieces,
        units, records, given.qkvz.stride(0), given.ab.stride(0),
    )
    compiled("walk")(2 * heads, len(table.rows), units, records, out, states, given.slots, table.rows)
    return out, tails, states


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    ("kind", "rows"), [(KINDS[1], (66, 1, 2)), (KINDS[2], (1, 3, 257))], ids=["66-1-2", "1-3-257"]  # more chunks than stages
)
def test_agrees_on_a_cpu(
    kind: tuple[tuple[int, int, int], torch.dtype, torch.dtype], rows: tuple[int, ...], tmp_path: Path
) -> None:
    given = Given(*kind, rows)
    given.check(*on_cpu(given, tmp_path))


@pytest.mark.gpu
@OF_KIND
@pytest.mark.parametrize("rows", [(2,), (1, 64, 2, 1, 63), (65, 300, 4), (1000,)], ids=str)
def test_on_a_gpu(
    rows: tuple[int, ...], shape: tuple[int, int, int], dtype: torch.dtype, state: torch.dtype, poisoned: None  # noqa: F811
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("of Hopper alone")
    given = Given(shape, dtype, state, rows)
    found = [on_hopper(given, on_gpu(given.weights)) for _ in range(3)]
    longer = torch.tensor([tokens > 1 for tokens in rows]).repeat_interleave(torch.tensor(rows)).cuda()
    assert all(torch.equal(one[longer], found[0][0][longer]) for one, *_ in found)
    given.check(*found[0])


def on_hopper(given: Given, w: MixWeights) -> tuple[Tensor, Tensor, Tensor]:
    qkvz, ab, tails, states, slots = (x.cuda() for x in (given.qkvz, given.ab, given.tails, given.states, given.slots))
    assert prefill.suits(qkvz, w, tails, states)
    return prefill.convolved_rule(qkvz, ab, w, tails, states, slots, PackedRows(given.rows, qkvz.device)), tails, states
