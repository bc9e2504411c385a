"""What a kept prefix depends on besides its tokens, as 32 bytes: the model, the types, the layout of pages and states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from headrace.cache.layout import CacheLayout
from headrace.file_range import FileRange
from headrace.plan.contents import Checkpoint, TensorHeader
from headrace.plan.dtypes import Dtypes

LAYOUT_VERSION = 1
"""Of the bytes that pages and checkpoints consist of: to be raised whenever their order or meaning changes."""
SAMPLED_BYTES = 1 << 16
_SAMPLES = 4


def cache_fingerprint(weights: bytes, dtypes: Dtypes, layout: CacheLayout, part: str = "") -> bytes:
    """Equal for engines that can read each other's pages and checkpoints, and for no others.

    weights: see `weights_digest`. part: what else tells them apart, such as a rank's share of the layers or the drafter.
    """
    groups = [[g.window, g.layers, g.token_elements, g.token_vectors] for g in layout.groups]
    types = [dtypes.compute, dtypes.kv, dtypes.state]
    text = json.dumps([LAYOUT_VERSION, weights.hex(), types, layout.page_tokens, groups, part])
    return hashlib.sha256(text.encode()).digest()


def weights_digest(checkpoint: Checkpoint) -> bytes:
    """Of the checkpoint's configuration, its tensors' names, types and shapes, and 64 KiB of each tensor (all of smaller ones).

    Not of paths and times: a copy is the same model. Raises CheckpointError naming a file that cannot be read.
    """
    digest = hashlib.sha256()
    _add(digest, json.dumps([checkpoint.kind, checkpoint.config, sorted(checkpoint.permuted)], sort_keys=True).encode())
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        _add(digest, json.dumps([name, tensor.dtype, tensor.shape, tensor.nbytes]).encode())
        for sample in _samples(tensor):
            data = bytearray(sample.nbytes)
            sample.read_into(memoryview(data))
            _add(digest, data)
    return digest.digest()


def _add(digest: hashlib._Hash, data: bytes | bytearray) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _samples(tensor: TensorHeader) -> Iterator[FileRange]:
    """Evenly spread, the first at the tensor's start and the last at its end."""
    if tensor.nbytes <= SAMPLED_BYTES:
        yield FileRange(tensor.file, tensor.offset, tensor.nbytes)
        return
    size = SAMPLED_BYTES // _SAMPLES
    for i in range(_SAMPLES):
        yield FileRange(tensor.file, tensor.offset + (tensor.nbytes - size) * i // (_SAMPLES - 1), size)
