"""A part of a linear layer over the same memory, in every format, prepared for a GPU's kernels or not."""

from __future__ import annotations

import pytest
import torch

from headrace.layers.linear import SHARED_ROWS, Linear
from headrace.quant import LinearFormat
from headrace.quant.compressed_tensors import LowBit
from headrace.quant.unquantized import Plain

FORMATS = (Plain(), *(LowBit(*form, scale="bfloat16") for form in ((8, 0), (4, 128), (4, 32, True))))
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]


def layer(format: LinearFormat, dtype: torch.dtype, device: str) -> Linear:
    made = Linear(256, 4 * SHARED_ROWS, dtype=dtype, device=torch.device(device))
    made.allocate(format)
    generator = torch.Generator(device).manual_seed(1)
    for parameter in made.parameters():
        if parameter.dtype.is_floating_point:
            parameter.data.normal_(0.0, 0.1, generator=generator)
        else:
            limits = torch.iinfo(parameter.dtype)
            parameter.data.random_(limits.min, limits.max, generator=generator)
    made.prepare()
    return made


@torch.inference_mode()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_the_first_outputs_are_the_layer_s(format: LinearFormat, rows: int, device: str) -> None:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    whole = layer(format, dtype, device)
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    for outputs in (SHARED_ROWS, 3 * SHARED_ROWS, 4 * SHARED_ROWS):
        part = whole.first(outputs)
        assert sum(p.nbytes for p in part.parameters()) * whole.outputs == sum(p.nbytes for p in whole.parameters()) * outputs
        assert all(p.data_ptr() == q.data_ptr() for p, q in zip(part.parameters(), whole.parameters(), strict=True))
        expected, allowed = whole(x)[:, :outputs].float(), 0.02 if device == "cuda" else 1e-5
        assert (part(x).float() - expected).abs().max() <= allowed * expected.square().mean().sqrt()


def test_parts_of_tiles_are_refused() -> None:
    whole = layer(Plain(), torch.float32, "cpu")
    for outputs in (0, SHARED_ROWS + 16, 5 * SHARED_ROWS):
        with pytest.raises(ValueError, match=f"{outputs} of 512 outputs"):
            whole.first(outputs)
