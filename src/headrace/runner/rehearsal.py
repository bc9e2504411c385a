"""What an engine does before its first step, so that no user waits for it: kernels compiled, libraries and allocator warm."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.kernels.accept_drafts import DraftSlots
from headrace.kernels.ahead import compiling_ahead
from headrace.kernels.dispatch import runs_triton
from headrace.kernels.gated_delta_verify import MAX_TOKENS
from headrace.kernels.row_places import row_places
from headrace.kernels.row_positions import row_positions
from headrace.kernels.sample import Against, Odds, draw_drafts
from headrace.kernels.slot_lookup import slot_lookup
from headrace.layers.batch import Pools
from headrace.models.decoder import Decoder
from headrace.models.spec import ModelSpec
from headrace.plan.dtypes import Dtypes
from headrace.plan.graph_rows import PromptShape, prompt_shapes, row_buckets
from headrace.plan.workspace import LOGIT_ROWS, SCORED_ROWS, SPLIT_TOKENS, step_tokens
from headrace.runner.allowed import AllowedTokens
from headrace.runner.batch import Packer
from headrace.runner.copies import take_in
from headrace.runner.draft_batch import DraftPacker
from headrace.runner.page_tables import PageTables
from headrace.runner.pools import allocate_pools
from headrace.runner.progress import draft_slots
from headrace.runner.prompt_batch import batch_of, write
from headrace.runner.proposer import Proposer
from headrace.runner.sampler import Sampler
from headrace.runner.verify import Verifier
from headrace.types import Row

Size = TypeVar("Size")

_MIXED_ROWS = 2
"""Decoding rows beside a prompt, in rehearsal."""
_EXACT_BELOW = 1024
_STEP = 256
"""Kernels change their form with every so many tokens, up to _EXACT_BELOW."""
_EXACT_ROWS = 16
"""Up to so many rows, forms may change with each."""
_FINE, _FINE_BELOW, _COARSE = 16, 256, 64
"""Rows of linear layers' tiles: from so many rows on, multiples of a larger number."""
_ALTERNATIVES = 5
_PROMPTS_RUN = (1, 2, 4)
"""Parts of the largest prompt that really run: a library chooses and loads its kernels by size."""


@torch.inference_mode()
def rehearse(
    spec: ModelSpec, decoder: Decoder, layout: CacheLayout, dtypes: Dtypes, device: torch.device, *, context: int,
    chunk_tokens: int, draws: bool = False, masks: bool = False,
) -> int:
    """Steps of every size that users will ask for, on a cache of one slot and page that all rows share, gone afterwards.

    All kernels that a step of decoding rows with and without drafts, of prompts of up to chunk_tokens, or of both launches are
    compiled. Some prompts then really run, scored as for their log-probabilities, in the workspace that they will have;
    returns how many bytes of it they took at most. To be called when the weights are there and the cache is not yet. draws: a
    drafter draws its drafts. masks: of tokens that may be drawn.
    """
    small = CacheLayout(layout.groups, layout.page_tokens, (1,) * len(layout.pages), 1, layout.padding)
    most_tokens = step_tokens(chunk_tokens, layout.slots, layout.drafts)
    tables, pools = PageTables(small, max(context, most_tokens), device), allocate_pools(spec, small, dtypes, device)
    packer = Packer(tables, most_tokens, layout.slots, 0, device)
    compute: torch.dtype = getattr(torch, dtypes.compute)
    wide = torch.promote_types(compute, torch.float32)
    sampler = _Undrawn(small.pool_slots, spec.vocab_size, device, wide, allowed=_allowed(small, spec, device, masks))

    def step(decoder: Decoder, tokens: tuple[int, ...]) -> Tensor:
        batch, sampled = packer.pack(_rows(tokens), sampler.next_tokens)
        hidden: Tensor = decoder(batch, pools)
        assert sampled is not None
        ends = hidden if sampled.last is None else hidden[sampled.last]
        logits = decoder.logits(ends)
        sampler.draw_at(logits, sampled.slots, sampled.where, sampled.positions)
        sampler.tokens_of(logits, sampled.slots, sampled.where, sampled.positions)  # where the host helps to draw
        if runs_triton(ends):  # captured steps draw from scores as they are
            sampler.draw_on_device(decoder.scores(ends), sampled.where, sampled.positions)
        return hidden

    def captured(shape: PromptShape) -> None:
        inputs = write(packer.upload, shape, (), tables)
        packer.upload.send()
        batch, at = batch_of(packer.upload, shape, inputs, tables, sampler.next_tokens), packer.upload.tensor
        if layout.drafts:  # drawn apart from the graph, behind any of its tokens
            outline(batch, pools)
            return
        scores = outline.scores(outline(batch, pools, at(inputs.ends)))
        sampler.draw_on_device(scores, at(inputs.drawn_slots), at(inputs.drawn_at))

    outline = decoder.outline()
    with compiling_ahead():
        _look_up(tables, sampler.next_tokens)
        rehearsed = tuple(steps(layout.slots, chunk_tokens))
        for tokens in rehearsed:
            step(outline, tokens)
        for tokens in missing_steps(outline, pools, rehearsed, layout.slots, chunk_tokens, layout.drafts):
            step(outline, tokens)
        head = torch.empty(head_rows(layout.slots, layout.drafts), spec.hidden, dtype=compute, device=device)
        for rows in met_by(lambda rows: (outline.head_form(rows),), range(len(head), 0, -1)):
            outline.logits(head[:rows])
        with suppress(NotImplementedError):  # an operation of a shape that only a reference computes: nothing will be captured
            for shape in _captured_shapes(decoder, layout, chunk_tokens, context):
                captured(shape)
        if layout.drafts:
            _rehearse_drafts(spec, outline, layout, dtypes, device, draws, masks)
    held_bytes = _held_bytes(device)
    for parts in _PROMPTS_RUN:
        hidden = step(decoder, (-(-chunk_tokens // parts),))[:SCORED_ROWS]
        sampler.score(decoder.logits(hidden), torch.zeros(len(hidden), dtype=torch.int64, device=device), _ALTERNATIVES)
    return torch.cuda.max_memory_allocated(device) - held_bytes if device.type == "cuda" else 0


def _look_up(tables: PageTables, next_tokens: Tensor) -> None:
    """As captured steps begin."""
    zero = torch.zeros_like(next_tokens[:1])
    slot_lookup(tables.entries, zero, zero, next_tokens, zero, zero, tables.page_tokens)


def _captured_shapes(decoder: Decoder, layout: CacheLayout, chunk_tokens: int, context: int) -> tuple[PromptShape, ...]:
    """Of the steps with prompts that will be captured."""
    captures = layout.padding and runs_triton(decoder.embedding.weight)
    return prompt_shapes(layout.slots, chunk_tokens, context) if captures else ()


def _allowed(layout: CacheLayout, spec: ModelSpec, device: torch.device, masks: bool) -> AllowedTokens | None:
    """As an engine has it, though nobody fills masks."""
    places = 1 + layout.drafts
    return AllowedTokens(lambda request: None, layout.pool_slots, places, spec.vocab_size, device) if masks else None


class _Undrawn(Sampler):
    """Draws token 0: behind kernels that are only compiled there are no tokens, and verification looks up what was drawn."""

    def tokens_of(
        self, logits: Tensor, slots: Sequence[int], where: Tensor, positions: Tensor, against: Against | None = None
    ) -> Tensor:
        return super().tokens_of(logits, slots, where, positions, against).zero_()

    def draw_on_device(
        self, logits: Tensor, where: Tensor, positions: Tensor, against: Against | None = None
    ) -> Tensor:
        return super().draw_on_device(logits, where, positions, against).zero_()


def _rehearse_drafts(
    spec: ModelSpec, decoder: Decoder, layout: CacheLayout, dtypes: Dtypes, device: torch.device, draws: bool, masks: bool
) -> None:
    """Every number of rows with as many drafts as they may have, from the packing to what is accepted; and with a prompt's end
    among them as many rows, and as long ones, as choose another form of a kernel.
    """
    small = CacheLayout(layout.groups, layout.page_tokens, (1,) * len(layout.pages), 1, True, layout.drafts)
    tables, pools = PageTables(small, max(1 + layout.drafts, MAX_TOKENS), device), allocate_pools(spec, small, dtypes, device)
    compute: torch.dtype = getattr(torch, dtypes.compute)
    wide = torch.promote_types(compute, torch.float32)
    sampler = _Undrawn(small.pool_slots, spec.vocab_size, device, wide, allowed=_allowed(small, spec, device, masks))
    slots = draft_slots(pools, sampler, device)
    proposer = Proposer(None, slots, tables, sampler, layout.drafts)
    packer = DraftPacker(tables, slots, proposer, layout.slots * (1 + layout.drafts) + MAX_TOKENS, layout.slots, 0, device)
    odds = proposer.odds if draws else None
    ways = (decoder.scores, decoder.logits) if runs_triton(decoder.embedding.weight) else (decoder.logits,)
    verifiers = [Verifier(logits, sampler, slots, odds=odds) for logits in ways]
    for rows, longest in verified_steps(decoder, pools, layout.slots, layout.drafts):
        drafted = tuple(Row(n, 0, 0, (), (0,) * min(layout.drafts, longest - 1)) for n in range(rows))
        known = longest != 1 + layout.drafts
        step = packer.pack((Row(0, 0, 0, (0,) * longest), *drafted[1:]) if known else drafted, deferred=True)
        assert step.runs is not None
        hidden = decoder(step.batch, pools)
        for verifier in verifiers:
            verifier.draw_together(step.runs, hidden, deferred=True)
            verifier.draw_in_turn(step.runs, hidden, deferred=True)
        if odds is not None and runs_triton(hidden):
            _rehearse_odds(sampler, odds, [logits(hidden[:rows]) for logits in ways])
    step = packer.pack(tuple(Row(n, 0, 0, ()) for n in range(layout.slots)), deferred=False)
    assert step.runs is not None
    for verifier in verifiers:
        verifier.draw_in_turn(step.runs, hidden.new_empty(layout.slots, spec.hidden), deferred=False)
    _pack_as_captured(slots, tables, proposer.proposed)
    take_in(pools, (0,), device)


def _pack_as_captured(slots: DraftSlots, tables: PageTables, proposed: Tensor) -> None:
    """A row with drafts, as captured steps begin."""
    zero = torch.zeros_like(slots.positions[:1])
    offsets = torch.tensor([0, MAX_TOKENS], dtype=torch.int32).to(zero.device)
    _, _, _, at, _, written = row_positions(zero, offsets, zero, slots.positions, slots.ends, slots.frozen, MAX_TOKENS)
    nowhere, found = tables.entries[:, 0, 0], tables.entries[:, :1].clone()
    row_places(found, zero, offsets, at, written, torch.zeros_like(at), proposed, zero, nowhere.clone(), tables.page_tokens)


def _rehearse_odds(sampler: Sampler, odds: Odds, logits: Sequence[Tensor]) -> None:
    """Drafts that are drawn, and tokens that are counted where they are drawn against them; logits [R, V] of each type."""
    slots = torch.zeros(len(logits[0]), dtype=torch.int64, device=logits[0].device)
    draw_drafts(logits[0], sampler.state, slots, slots, odds, 0)
    for each in logits:
        sampler.draw_on_device(each, slots, slots, Against(odds, slots, slots))


def _held_bytes(device: torch.device) -> int:
    """What is allocated now, from where the most that is allocated counts anew; nothing on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def steps(slots: int, chunk_tokens: int) -> Iterator[tuple[int, ...]]:
    """The rows' tokens of every step that is rehearsed; first those with prompts, whose kernels take longest to compile."""
    for tokens in prompt_sizes(chunk_tokens):
        yield (tokens,)
        yield from (((1,) * _MIXED_ROWS + (tokens,)),) if slots > _MIXED_ROWS else ()
    if slots > 2 and chunk_tokens > 2:  # prompts that share a step, one of them at its last token
        yield (chunk_tokens // 2, chunk_tokens // 2, 1)
    yield from ((1,) * rows for rows in row_counts(slots))


def missing_steps(
    decoder: Decoder, pools: Pools, rehearsed: Sequence[tuple[int, ...]], slots: int, chunk_tokens: int, drafts: int
) -> Iterator[tuple[int, ...]]:
    """Steps as `steps`, for the forms of kernels that any step chooses and none of those that are rehearsed."""
    sizes = [sum(tokens) for tokens in rehearsed]
    for size in met_by(decoder.token_forms, turning_points(step_tokens(chunk_tokens, slots, drafts)), sizes):
        yield (size,)
    short = min(SPLIT_TOKENS, chunk_tokens)
    met = [(len(tokens), max(few)) for tokens in rehearsed if (few := [n for n in tokens if n <= short])]
    for rows, longest in met_by(_of_rows(decoder, pools), product(range(1, slots + 1), range(1, short + 1)), met):
        yield (*(1,) * (rows - 1), longest)


def verified_steps(decoder: Decoder, pools: Pools, slots: int, drafts: int) -> tuple[tuple[int, int], ...]:
    """Rows, and tokens of the longest, of steps in which states are verified: all that are captured, and others for the forms
    of kernels that only these choose.
    """
    captured = [(rows, 1 + drafts) for rows in row_buckets(slots)]
    all_steps = product(range(slots, 0, -1), range(MAX_TOKENS, 0, -1))
    return (*captured, *met_by(_of_rows(decoder, pools), all_steps, captured))


def _of_rows(decoder: Decoder, pools: Pools) -> Callable[[tuple[int, int]], tuple[Hashable, ...]]:
    forms = decoder.row_forms(pools)
    return lambda step: tuple(form for forms_of in forms for form in forms_of(*step))


def met_by(forms: Callable[[Size], tuple[Hashable, ...]], sizes: Iterable[Size], met: Iterable[Size] = ()) -> Iterator[Size]:
    """Of the sizes those with a form that none before them has, nor those that are `met`. forms: of each operation, one."""
    seen = {form for size in met for form in enumerate(forms(size))}
    for size in sizes:
        found = set(enumerate(forms(size)))
        if found - seen:
            yield size
        seen |= found


def turning_points(most: int) -> tuple[int, ...]:
    """Rising numbers of tokens up to `most`, among which linear layers meet every form: their tiles have 16 rows or multiples
    of that, of more than 128 rows 64 or multiples; between two tiles a form changes once at most, so that either end tells.
    """
    tiles = [*range(_EXACT_ROWS, _FINE_BELOW, _FINE), *range(_FINE_BELOW, most, _COARSE)]
    ends = {*range(1, _EXACT_ROWS), *tiles, *(size + 1 for size in tiles)}
    return (*sorted(size for size in ends if size < most), most)


def head_rows(slots: int, drafts: int) -> int:
    """The most rows of logits that are made at once."""
    return max(slots, SCORED_ROWS, min(LOGIT_ROWS, slots * (1 + drafts)))


def row_counts(slots: int) -> tuple[int, ...]:
    """Rising numbers of rows that draw a token, among which every form of every kernel is met: all that are captured, and
    others, since beside prompts there is any number.
    """
    captured = row_buckets(slots)
    more = (*range(1, min(slots, _EXACT_ROWS) + 1), *(rows + 1 for rows in captured[:-1]))
    return tuple(sorted({*captured, *more}))


def prompt_sizes(most: int) -> tuple[int, ...]:
    """Rising numbers of tokens, `most` the last, among which every form of every kernel is met, and both kinds of numbers that
    Triton tells apart: multiples of 16 and others.
    """
    powers = [1 << exponent for exponent in range(1, most.bit_length())]
    found = {size + more for size in (*powers, *range(_STEP, _EXACT_BELOW + 1, _STEP)) for more in (0, 1)}
    return (*sorted(size for size in found if size < most), most)


def _rows(tokens: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows at the beginning of their sequences; those of one token carry one that the device has drawn."""
    return tuple(Row(n, 0, 0, () if count == 1 else (0,) * count) for n, count in enumerate(tokens))
