"""Loading onto a GPU. Needs no package beyond torch, as machines with a GPU may have no other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.large_checkpoint import write_large_checkpoint
from tests.support.parameter_tree import parameter_tree

from headrace import loader
from headrace.loader import load_weights
from headrace.plan.checkpoint import identify, open_checkpoint


@pytest.mark.gpu
@pytest.mark.parametrize("piece_bytes", [1 << 9, loader._PIECE_BYTES])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_same_bits_as_on_the_cpu(
    tmp_path: Path, dtype: torch.dtype, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces that follow each other closely, a buffer that is filled again too early would show."""
    monkeypatch.setattr(loader, "_PIECE_BYTES", piece_bytes)
    write_large_checkpoint(tmp_path, hidden=64)
    model = identify(open_checkpoint(tmp_path))
    on_cpu = parameter_tree(model.weight_map.weights, dtype)
    on_gpu = parameter_tree(model.weight_map.weights, dtype).to("cuda")
    load_weights(model, on_cpu)
    load_weights(model, on_gpu)
    bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
    for name, parameter in on_gpu.named_parameters():
        expected, loaded = on_cpu.get_parameter(name).detach(), parameter.detach().cpu()
        if dtype == torch.float32:  # a conversion may quieten a NaN
            expected, loaded = expected.nan_to_num(0), loaded.nan_to_num(0)
        assert torch.equal(loaded.view(bits), expected.view(bits)), name
