"""What a forward pass is given: the step's tokens packed into one batch, and the pools that outlive it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.kernels.gated_delta_verify import Ring


@dataclass(frozen=True, slots=True)
class Deferred:
    """A step that verifies drafts, or commits those that an earlier step left pending.

    certain [R] int32: tokens at each row's head; drafts follow. Recurrent layers give the batch's first short_rows rows (its
    first short_tokens tokens), of at most kernels.gated_delta_verify.MAX_TOKENS each, to that operation, and compute the
    others, in long_slots [R - short_rows] int64, which have no drafts, as prompts. folds: one of those may have pending drafts,
    which join its state before.
    """

    certain: Tensor
    short_rows: int
    short_tokens: int
    long_slots: Tensor
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows, packed: row r owns query tokens row_offsets[r] ... row_offsets[r + 1].

    T tokens, R rows, G cache groups. Row tokens come twice: as tensors for kernels and as host integers, which need no wait for
    a device. deferred: None where nothing is drafted or pending. longer: of a captured step with prompts, whose host_row_tokens
    are bounds: how many of its last rows may have more than one token.
    """

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64, of each token in its sequence
    row_offsets: Tensor  # [R + 1] int32
    slots: Tensor  # [R] int64, state slot of each row
    lengths: Tensor  # [R] int32, tokens of the sequence after this step (context and query together)
    page_tables: tuple[Tensor, ...]  # G x [R, max pages] int64: page ids; past a row's length undefined but valid ids
    write_at: tuple[Tensor, ...]  # G x [T] int64: page * page_tokens + offset where each token's K and V go
    host_row_tokens: tuple[int, ...]  # R query tokens
    deferred: Deferred | None = None
    longer: int | None = None


@dataclass(frozen=True, slots=True)
class Pools:
    """Preallocated memory of all sequences. Indexed by layer; a layer without the kind holds None.

    keys, values: [pages, page_tokens, kv_heads, head_dim] of the layer's cache group; of 8-bit codes, with key_scales and
    value_scales [pages, page_tokens, kv_heads] fp16. states: S transposed, [slots,
    value_heads, value_dim, key_dim]. conv_tails: the last conv_width - 1 inputs of the convolution, oldest first,
    [slots, conv_width - 1, conv_channels]. Of both, checkpoints lie behind the slots that rows may have. group_of: the layer's
    cache group. Only where rows may carry drafts: rings, and pending and parity [slots] int32 of all layers together, see
    kernels.gated_delta_verify. A drafter's layers lie behind the model's; windows: what else a state has, of a drafter, [slots
    and checkpoints, ...], zeros at first.
    """

    keys: tuple[Tensor | None, ...]
    values: tuple[Tensor | None, ...]
    states: tuple[Tensor | None, ...]
    conv_tails: tuple[Tensor | None, ...]
    group_of: tuple[int | None, ...]
    key_scales: tuple[Tensor | None, ...] = ()  # empty: none of the layers has any
    value_scales: tuple[Tensor | None, ...] = ()
    rings: tuple[Ring | None, ...] = ()
    pending: Tensor | None = None
    parity: Tensor | None = None
    windows: tuple[Tensor, ...] = ()

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """(key scales, value scales) of a layer."""
        return (self.key_scales[layer], self.value_scales[layer]) if self.key_scales else (None, None)
