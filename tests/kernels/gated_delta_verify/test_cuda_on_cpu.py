"""The CUDA kernels' indices and formulas without a GPU: run on a CPU, they agree with the definition and keep its bits."""

from __future__ import annotations

import copy
import ctypes
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kernels.test_gated_delta_verify import check_bits
from tests.kernels.test_gpu import agree
from tests.support import cuda_on_cpu
from tests.support.triton_kernels import widened
from torch import Tensor

from headrace.kernels.gated_delta_mix import MixWeights
from headrace.kernels.gated_delta_verify import Ring, cases, cuda, reference
from headrace.kernels.gated_delta_verify.cuda import Form

pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

Case = partial(cases.Case, key_heads=1, value_heads=3, key_dim=128, value_dim=128)
CASE = Case("on-cpu", ((2, 1, 3), (0, 1, 0), (7, 1, 7), (3, 9, 7), (5, 2, 0)))
SHORT = Case("short", ((2, 1, 3), (0, 1, 0), (7, 1, 7), (3, 4, 2), (5, 2, 0), (1, 8, 0)))


class OnCpu:
    """The operation as its kernels compute it."""

    def __init__(self, form: Form, folder: Path) -> None:
        self._form, self._folder = form, folder
        self._compiled = cache(self._compile)

    def _compile(self, name: str, macros: tuple[tuple[str, int], ...]) -> Any:
        source = "".join((Path(cuda.__file__).parent / file).read_text() for file in ("state.cuh", f"{name}.cu"))
        return cuda_on_cpu.compiled(source, name, dict(macros), self._folder)

    def gated_delta_verify(
        self, qkvz: Tensor, ab: Tensor, weights: MixWeights, tails: Tensor, states: Tensor, ring: Ring, *rest: Any
    ) -> Tensor:
        pending, parity, slots, offsets, certain, _ = rest
        out = torch.full((len(qkvz), states.shape[1] * 128), float("nan"), dtype=qkvz.dtype)
        threads = {"BLOCK_THREADS": cuda.STATE_THREADS + 32 * self._form.extra}
        run = self._compiled("verify", tuple((cuda.verify_macros(tails, states, ring, self._form) | threads).items()))
        run(
            states.shape[1] // self._form.group, len(slots), qkvz, ab, weights.conv.T.contiguous(), weights.a_log,
            weights.dt_bias, weights.norm, tails, states, slots, offsets, certain, pending, parity, ring.keys, ring.deltas,
            ring.decays, ring.inputs, out, len(states), len(qkvz), qkvz.stride(0), ab.stride(0), ctypes.c_float(weights.eps),
        )
        return out

    def fold(
        self, tails: Tensor, states: Tensor, ring: Ring, parity: Tensor, source: Tensor, count: Tensor, target: Tensor
    ) -> None:
        run = self._compiled("fold", tuple(cuda.fold_macros(tails, states, ring).items()))
        run(
            states.shape[1], len(source), tails, states, ring.keys, ring.deltas, ring.decays, ring.inputs, parity, source,
            count, target,
        )


@pytest.mark.parametrize(("case", "form", "dtype", "state"), [
    (CASE, Form(1, 2, 16, extra=0), torch.bfloat16, torch.float16),
    (CASE, Form(3, 1, 16, extra=0), torch.float16, torch.float32),
    (SHORT, Form(1, 1, 8, extra=4), torch.bfloat16, torch.float16),
    (SHORT, Form(3, 2, 8, extra=0), torch.bfloat16, torch.float16),
], ids=str)
def test_agrees_and_folds_to_the_same_bits(
    case: cases.Case, form: Form, dtype: torch.dtype, state: torch.dtype, tmp_path: Path
) -> None:
    op, given = OnCpu(form, tmp_path), cases.inputs(case, dtype)
    given["states"] = given["states"].to(state)
    expected = cases.run(reference, widened(copy.deepcopy(given)))
    agree(cases.run(op, given), expected, dtype)
    check_bits(op, case, dtype, state, "cpu")
