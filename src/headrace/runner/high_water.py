"""The most memory that steps took for a while: of a GPU as PyTorch's allocator counts it, of a CPU by what operations return.

A CPU's allocator counts nothing, and a process's size tells more of how the system's keeps freed memory than of what is used.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class HighWater(AbstractContextManager["HighWater"]):
    """Afterwards `bytes` is the most that was taken within the context, beyond what was there before."""

    def __init__(self, device: torch.device) -> None:
        self.bytes = 0
        self._device = device
        self._storages = _Storages()

    def __enter__(self) -> HighWater:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            self._storages.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
        else:
            self._storages.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
            self.bytes = self._storages.most_bytes


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, and counts the memory of the tensors that it makes until nothing has it any more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes = 0
        self._bytes = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(tensor) for tensor in tree_iter((args, kwargs)) if isinstance(tensor, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, Tensor) and _key(tensor) not in given:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, count = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def gone(_: object) -> None:
            self._bytes -= count
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, gone)
        self._bytes += count
        self.most_bytes = max(self.most_bytes, self._bytes)


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
