"""Weights from a checkpoint's files into a decoder's parameters, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from queue import SimpleQueue
from typing import assert_never

import torch
from torch import Tensor, nn

from headrace.errors import CheckpointError
from headrace.file_range import FileRange
from headrace.models.spec import AttentionSpec, ModelSpec, Weight
from headrace.plan.checkpoint import Model
from headrace.plan.contents import STORED_DTYPES, TensorHeader

_PIECE_BYTES = 8 * 2**20
_THREADS = 4


def load_weights(model: Model, decoder: nn.Module, progress: Callable[[int, int], None] | None = None) -> None:
    """Fill every parameter of `decoder` from the checkpoint, converting to its type and device.

    Needs a few pieces of memory beyond the parameters, whatever the size of a file. progress(done_bytes, total_bytes)
    follows the bytes of the checkpoint and ends with both equal. Raises CheckpointError if the map does not write each
    row of each parameter exactly once, or if a file cannot be read.
    """
    parameters = dict(decoder.named_parameters())
    _check_coverage(model.weight_map.weights, parameters)
    pieces = list(_pieces(model, parameters))
    total_bytes = sum(piece.range.nbytes for piece in pieces)
    done_bytes = 0
    for piece_bytes in _store_all(pieces):
        done_bytes += piece_bytes
        if progress is not None:
            progress(done_bytes, total_bytes)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a stored tensor and the rows of a parameter that they become. head_rows: rows of one attention head."""

    weight: Weight
    dtype: str
    range: FileRange
    target: Tensor
    head_rows: int


def _check_coverage(weights: Iterable[Weight], parameters: Mapping[str, Tensor]) -> None:
    spans: dict[str, list[tuple[int, int, str]]] = {name: [] for name in parameters}
    for weight in weights:
        if weight.target not in parameters:
            raise CheckpointError(f"tensor {weight.source} goes to {weight.target}, which the decoder does not have")
        expected = tuple(parameters[weight.target].shape[1:])
        if _row_shape(weight) != expected:
            raise CheckpointError(
                f"tensor {weight.source} has rows of {list(_row_shape(weight))}, {weight.target} of {list(expected)}"
            )
        spans[weight.target].append((weight.offset, weight.offset + weight.shape[0], weight.source))
    for name, parameter in parameters.items():
        _check_tiling(name, parameter.shape[0], sorted(spans[name]))


def _check_tiling(target: str, rows: int, spans: list[tuple[int, int, str]]) -> None:
    position = 0
    for begin, end, source in spans:
        if begin < position:
            raise CheckpointError(f"row {begin} of {target} would be written twice, the second time by tensor {source}")
        if begin > position:
            raise CheckpointError(f"no tensor of the checkpoint goes to rows {position} to {begin - 1} of {target}")
        position = end
    if position < rows:
        raise CheckpointError(f"no tensor of the checkpoint goes to rows {position} to {rows - 1} of {target}")
    if position > rows:
        raise CheckpointError(f"{target} has {rows} rows, and tensors for {position} go there")


def _row_shape(weight: Weight) -> tuple[int, ...]:
    if weight.transform == "offset_bytes":
        return (weight.shape[1] * 4,)
    return weight.shape[2:] if weight.transform == "squeeze_conv" else weight.shape[1:]


def _pieces(model: Model, parameters: Mapping[str, Tensor]) -> Iterator[_Piece]:
    """Every weight's pieces, in the order of the files."""
    tensors = model.checkpoint.tensors
    head_rows = _head_rows(model.spec)
    for weight in sorted(model.weight_map.weights, key=lambda w: (tensors[w.source].file, tensors[w.source].offset)):
        header = tensors[weight.source]
        rows = weight.shape[0]
        step = _rows_in_piece(header, head_rows if weight.transform == "unpermute_rope" else 1)
        for first in range(0, rows, step):
            last = min(rows, first + step)
            begin, end = header.nbytes * first // rows, header.nbytes * last // rows
            target = parameters[weight.target][weight.offset + first : weight.offset + last]
            yield _Piece(weight, header.dtype, FileRange(header.file, header.offset + begin, end - begin), target, head_rows)


def _head_rows(spec: ModelSpec) -> int:
    return next((layer.mixer.head_dim for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)), 1)


def _rows_in_piece(header: TensorHeader, unit: int) -> int:
    """How many rows fit a piece, stored or as float32; a multiple of `unit`, and at least that."""
    row_bytes = max(1, header.nbytes // header.shape[0], 4 * prod(header.shape[1:]))
    return max(unit, _PIECE_BYTES // row_bytes // unit * unit)


def _store_all(pieces: Sequence[_Piece]) -> Iterator[int]:
    """Put every piece in its place, a few at a time; yields the bytes of each, in order, when it is there."""
    buffer_bytes = max((piece.range.nbytes for piece in pieces), default=0)
    pinned = any(piece.target.is_cuda for piece in pieces)
    buffers: SimpleQueue[Tensor] = SimpleQueue()
    for _ in range(_THREADS):
        buffers.put(torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=pinned))

    def store(piece: _Piece) -> int:
        buffer = buffers.get()
        try:
            piece.range.read_into(buffer.numpy().data)
            _store(piece, buffer[: piece.range.nbytes])
        finally:
            buffers.put(buffer)
        return piece.range.nbytes

    threads = torch.get_num_threads()
    # Pieces are the parallelism; splitting each copy once more made loading three times slower on two cores.
    with ThreadPoolExecutor(_THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield from pool.map(store, pieces)
        finally:
            torch.set_num_threads(threads)  # set by the pool for threads to come, too


@torch.no_grad()
def _store(piece: _Piece, raw: Tensor) -> None:
    target, rows = piece.target, _decode(piece, raw)
    if rows.dtype.is_floating_point and rows.dtype != target.dtype or piece.weight.transform == "unpermute_rope":
        rows = rows.to(target.device, non_blocking=True)  # a conversion within copy_ would run on the host
    target.copy_(_transform(piece, rows), non_blocking=True)
    if target.is_cuda:
        torch.cuda.current_stream(target.device).synchronize()  # the buffer is used again


def _decode(piece: _Piece, raw: Tensor) -> Tensor:
    """uint8 bytes -> the numbers they stand for, [rows, ...]."""
    shape = (piece.target.shape[0], *piece.weight.shape[1:])
    if piece.dtype in STORED_DTYPES:
        dtype: torch.dtype = getattr(torch, STORED_DTYPES[piece.dtype])
        return raw.view(dtype).view(shape)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    blocks = raw.view(shape[0], -1).numpy()
    return torch.from_numpy(dequantize(blocks, GGMLQuantizationType[piece.dtype])).view(shape)


def _transform(piece: _Piece, rows: Tensor) -> Tensor:
    match piece.weight.transform:
        case "none":
            return rows
        case "squeeze_conv":
            return rows.squeeze(1)  # [C, 1, W] -> [C, W]
        case "unpermute_rope":
            pairs = rows.view(-1, piece.head_rows // 2, 2, *rows.shape[1:])  # [heads, half, 2, ...]
            return pairs.transpose(1, 2).reshape(rows.shape)
        case "offset_bytes":
            return rows.view(torch.int8) ^ -128
        case unknown:
            assert_never(unknown)
