"""A decoder that is nothing but its parameters, for tests of what fills them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from headrace.models.spec import Weight


def parameter_tree(weights: Iterable[Weight], dtype: torch.dtype = torch.float32) -> nn.Module:
    """A module with every target of `weights`, as large as they make it, filled with NaN."""
    sizes: dict[str, tuple[int, tuple[int, ...]]] = {}
    for weight in weights:
        rows = weight.offset + weight.shape[0]
        inner = weight.shape[2:] if weight.transform == "squeeze_conv" else weight.shape[1:]
        sizes[weight.target] = (max(rows, sizes.get(weight.target, (0, ()))[0]), inner)
    root = nn.Module()
    for target, (rows, inner) in sizes.items():
        *path, name = target.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        owner.register_parameter(name, nn.Parameter(torch.full((rows, *inner), torch.nan, dtype=dtype)))
    return root
