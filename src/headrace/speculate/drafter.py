"""What a drafter on the device is asked, and what it answers. Nothing here goes through the host.

The runner's order, for every step: `admit` for sequences that take a slot; `propose`, if any row of the step is asked for
drafts; the target over the rows' certain tokens and drafts; acceptance, which moves the slots on; `observe`. The host plans a
step's draft counts before it has seen the tokens of the step before, so counts come from it and tokens never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder
from headrace.plan.dtypes import Dtypes
from headrace.types import Admission


class Draw(Protocol):
    """Draws a draft of each of R rows as its request wants it: the temperature is applied here, once, to raw scores."""

    def __call__(self, scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
        """[R] int64: of each row's draft number `place`, counted from 0, the token.

        scores [R, C]: raw logits of candidates [R, C] int64, the likeliest first, of the vocabulary's C tokens without them. A
        row at temperature 0 takes the best, and the first among equals. What a draft of a request without a seed is drawn from
        is kept, for the target to accept it by; so that draft is to be the `place`-th of the proposal as it is.
        """
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """R rows of a step that is about to run, which is to have drafts. All tensors are on the device.

    slots [R] int64: those of frozen and of missing rows are the padding slot, whose answer nobody reads. counts [R] int64:
    drafts wanted, zero among them, none above `most`, which is the host's bound and fixed in a captured graph. tokens [R]
    int64: the rows' next inputs, at positions [R] int64: draft j, counted from 0, is for positions + 1 + j. page_tables: of
    every cache group, the target's and then the drafter's, [R, pages] int64, with pages for all positions up to the last
    draft's. draw: see `Draw`.
    """

    slots: Tensor
    counts: Tensor
    tokens: Tensor
    positions: Tensor
    page_tables: tuple[Tensor, ...]
    most: int
    draw: Draw


@dataclass(frozen=True, slots=True)
class Proposal:
    """tokens [R, most] int64, in the vocabulary everywhere: a row that has nothing to propose gets any, which are verified like
    others, as the step has room for them already.
    """

    tokens: Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """A step that the target has run, and whose drafts are accepted or not.

    batch: its T tokens and R rows, with page tables and places to write of every cache group; rows of frozen slots are padding.
    taps: hidden states [T, hidden] of the drafter's layers, as `Decoder.tapped` gives them. final [T, hidden]: after the last
    norm. starts [R] int64: positions of the rows' first tokens. kept [R] int64: of each row's tokens those that stay, certain
    ones and accepted drafts; others' keys and values will be overwritten before they are read. next_tokens [slots] int64: by
    slot, the token behind the last that is kept, where one is drawn: `samples` [R] bool.
    """

    batch: Batch
    taps: tuple[Tensor, ...]
    final: Tensor
    starts: Tensor
    kept: Tensor
    next_tokens: Tensor
    samples: Tensor


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a drafter is built into. layers: its attention layers' first index in `pools`, behind the target's. groups: its
    cache groups' indices in `layout`. context: of the longest sequence. rows: of the largest decoding step.
    """

    decoder: Decoder
    pools: Pools
    layout: CacheLayout
    dtypes: Dtypes
    layers: int
    groups: tuple[int, ...]
    context: int
    rows: int


class DeviceDrafter(Protocol):
    """Proposes what may follow, on the device.

    most: the longest proposal. depths: rising numbers of drafts that are worth a captured graph of their own, `most` the last:
    those of which fewer take less time. draws: whether drafts are drawn by `Asked.draw`; others are point masses. taps: indices
    of the target's layers whose outputs it reads, none if it needs only the last norm's or nothing. reads_pages: whether layers
    of its own have pages. Memory of its own is allocated when it is built, no later: `weights`, and `nbytes` of what it keeps
    of slots beside the pools.

    `propose` and `observe` of decoding rows are captured in CUDA graphs: they may not wait for the device, nor allocate by what
    is in a tensor, nor read numbers of the host that change from step to step. The same inputs give the same bits. `observe` of
    steps that compute prompts runs eagerly, over as many tokens as a chunk has.
    """

    most: int
    depths: tuple[int, ...]
    taps: tuple[int, ...]
    reads_pages: bool
    draws: bool

    @property
    def weights(self) -> tuple[Tensor, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Sequences take slots: at admission.start, with pages that hold what is cached of them, of this drafter too unless it
        was not there. What is not there is masked: never read.
        """
        ...

    def settle(self, slots: Sequence[int]) -> None:
        """What these slots have in the pools is about to be copied, and must be all that there is of their sequences."""
        ...

    def observe(self, seen: Seen) -> Tensor | None:
        """Take in what a step has computed. Cheap where no draft is wanted soon: what the drafter would compute of it can wait
        in a ring of plan.drafters.RING_TOKENS tokens of each slot until `propose`; older holes are masked.

        Returns for each row [R] int64 how many drafts are worth asking for now, which the host learns with the step's tokens;
        None if that is `most` for all.
        """
        ...

    def propose(self, asked: Asked) -> Proposal:
        """Drafts for the rows' next positions, from what was observed. Proposing twice changes nothing."""
        ...
