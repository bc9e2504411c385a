from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.errors import CheckpointError
from headrace.quant import FORMATS, format_for
from headrace.quant.unquantized import Plain


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"text_config": {"hidden_size": 3}}])
def test_plain_weights(config: dict[str, Any]) -> None:
    assert format_for(config) == "unquantized"


@pytest.mark.parametrize("config", [
    {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"text_config": {"quantization_config": {"quant_method": "gptq"}}},
])
def test_quantised_weights_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"'quantization_config'.*'gptq'"):
        format_for(config)


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_has_the_whole_seam(name: str) -> None:
    assert all(callable(getattr(FORMATS[name], part)) for part in ("detect", "plain_names", "stored"))


def test_product_of_plain_weights() -> None:
    shape, dtype = Plain().tensors(3, 5)["weight"]
    assert dtype is None
    weight, x = torch.randn(shape, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    expected = [[sum(float(a * b) for a, b in zip(row, out, strict=True)) for out in weight] for row in x]
    found = Plain().apply({"weight": weight}, x, prepared=False)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
