"""What would be launched on a card that is not there: kernels' wrappers run on PyTorch's meta device, and launches are noted.

For questions of which kernels, in which form, a step needs. Nothing is computed.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace import kernels
from headrace.kernels import card as cards
from headrace.kernels import cuda_function, dispatch, nvrtc, tensor_map
from headrace.kernels.card import Card
from headrace.kernels.linear import cuda as linear_cuda
from headrace.kernels.low_bit_linear import around, few
from headrace.kernels.low_bit_linear import cuda as low_bit_cuda
from headrace.plan.uploads import buffer_words
from headrace.runner.upload import Upload

META = torch.device("meta")
Launch = tuple[Any, ...]
"""A kernel and what it would be compiled for."""


@contextmanager
def pretended(card: Card) -> Iterator[set[Launch]]:
    """The launches meanwhile of tensors on the meta device, as if that were such a card."""
    _import_all()
    launches: set[Launch] = set()
    with pytest.MonkeyPatch.context() as patch:
        _replace(patch, cards.card, lambda device: card)
        _replace(patch, dispatch.runs_triton, lambda x: x.dtype in dispatch._KERNEL_TYPES)
        _replace(patch, dispatch.runs_triton_on, lambda device: True)
        _replace(patch, cuda_function.compiled, lambda *args, **kwargs: _cuda_launch(launches, *args, **kwargs))
        patch.setattr(nvrtc, "available", lambda: True)
        patch.setattr(tensor_map, "_map", lambda *_: tensor_map.TensorMap())
        patch.setattr(Tensor, "is_cuda", True, raising=False)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        nothing = torch.empty(0, device=META)
        for module, name, made in (
            (low_bit_cuda, "_kept_sums", nothing), (few, "_between_blocks", (nothing, nothing)),
            (around, "few_outputs_between", (nothing, nothing)), (few, "few_outputs_between", (nothing, nothing)),
            (linear_cuda, "few_outputs_between", (nothing, nothing)),
        ):
            patch.setattr(module, name, lambda index, made=made: made)
        patch.setattr(Upload, "__init__", _upload_nowhere)
        patch.setattr(Upload, "send", lambda self: None)
        _note_triton(patch, launches)
        yield launches


@cache
def _import_all() -> None:
    """Every kernel's modules: one that is first imported meanwhile would keep what stands in for a function, and tell another's
    launches to those who pretended first.
    """
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        import_module(module.name)


def _upload_nowhere(self: Upload, words: int, device: torch.device) -> None:
    words = buffer_words(words)
    self._hosts, self._copied = [torch.zeros(words, dtype=torch.int64)], None
    self._target = torch.zeros(words, dtype=torch.int64, device=device)
    self._arrays, self._turn, self._used = [self._hosts[0].numpy()], 0, 0


def _replace(patch: pytest.MonkeyPatch, function: Any, stand_in: Any) -> None:
    """In every module of the package that has it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("headrace.") and getattr(module, function.__name__, None) is function:
            patch.setattr(module, function.__name__, stand_in)


def _cuda_launch(
    launches: set[Launch], text: str, name: str, macros: dict[str, int], threads: int, shared_bytes: int, device: torch.device,
    *, wgmma: bool = False,
) -> Any:
    def launch(grid: tuple[int, int, int], *arguments: object) -> None:
        launches.add((name, hash(text), tuple(sorted(macros.items())), threads, shared_bytes))

    return launch


def _note_triton(patch: pytest.MonkeyPatch, launches: set[Launch]) -> None:
    from triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in self.arg_names}
        options = tuple(sorted((k, str(v)) for k, v in kwargs.items() if k not in self.arg_names))
        kinds = tuple(_kind(given[p.name], p) for p in self.params if p.name in given)
        launches.add((self.__name__, self.__module__, kinds, options))

    patch.setattr(JITFunction, "run", run)


def _kind(value: Any, parameter: Any) -> object:
    """What Triton compiles apart: types, addresses at multiples of 16 bytes, and numbers that are 1 or multiples of 16."""
    if parameter.is_constexpr or value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, Tensor):
        return str(value.dtype), value.storage_offset() * value.itemsize % 16 == 0
    if isinstance(value, int):
        return "int" if parameter.do_not_specialize else ("int", value == 1, value % 16 == 0)
    return type(value).__name__
