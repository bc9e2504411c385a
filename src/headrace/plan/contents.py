"""What a checkpoint holds, as far as its headers tell: a configuration and where every tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from headrace.config import Dtype

FLOAT_DTYPES: Mapping[str, Dtype] = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Element types that weights are loaded from as they are; both formats use these names."""


STORED_DTYPES: Mapping[str, str] = {**FLOAT_DTYPES, "I32": "int32", "I8": "int8"}
"""Element types of parameters that are kept as they are stored, packed weights among them."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One stored tensor: `nbytes` bytes at `offset` (from the start of `file`), row-major, outermost dimension first.

    dtype: as the file names it: "BF16", "F8_E4M3" in safetensors, "Q4_1", "F32" in GGUF. shape: in elements.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk whose headers agree with its files. No weight has been read.

    config: with Hugging Face names, also for a GGUF file. tensors: by their Hugging Face names. generation_eos_ids: tokens
    that end a message, as the checkpoint's generation settings list them. permuted: q and k tensors that are stored in
    llama.cpp's row order.
    """

    path: Path
    kind: Literal["hf", "gguf"]
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]
    generation_eos_ids: tuple[int, ...] = ()
    permuted: frozenset[str] = frozenset()

    @property
    def dtype(self) -> Dtype:
        """The type most elements are stored in, integers apart; bfloat16 if that is a quantised one."""
        elements: dict[str, int] = {}
        for tensor in self.tensors.values():
            if tensor.dtype not in FLOAT_DTYPES and tensor.dtype in STORED_DTYPES:
                continue
            elements[tensor.dtype] = elements.get(tensor.dtype, 0) + prod(tensor.shape)
        return FLOAT_DTYPES.get(max(elements, key=lambda name: elements[name], default=""), "bfloat16")
