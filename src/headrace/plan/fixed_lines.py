"""Lines of what does not depend on how large the cache is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.hardware import Hardware
from headrace.models.spec import WeightMap
from headrace.plan.cache_needs import CacheNeeds
from headrace.plan.draft_memory import progress_bytes, ring_bytes
from headrace.plan.dtypes import itemsize
from headrace.plan.extras import BudgetLine
from headrace.plan.graph_rows import EIGHT_BIT_NODES, FOUR_BIT_NODES, PLAIN_NODES, StepNodes, graph_bytes, prompt_shapes
from headrace.plan.mask_memory import mask_bytes
from headrace.plan.sampler_memory import sampler_bytes
from headrace.plan.step_lines import cpu_step_lines, gpu_step_lines
from headrace.plan.weight_memory import has_low_bit, has_plain, packed_layer_types, weight_bytes, widening_bytes
from headrace.plan.workspace import (
    ASSUMED_PROCESSORS,
    LOGIT_ROWS,
    Sizes,
    decoded_bytes,
    layers_bytes,
    library_bytes,
    step_tokens,
    table_bytes,
    upload_bytes,
)
from headrace.quantities import counted, exact_size

CONTEXT_LINE, CODE_LINE = "cuda context", "kernel code"
CODE_BYTES = 200_000_000
"""Of kernels, those of PyTorch's libraries among them, which the driver loads as they are first run: measured on an H200."""


@dataclass(frozen=True, slots=True)
class FixedLines:
    """Of an engine of `seqs` sequences. graphs: whether its steps are captured."""

    needs: CacheNeeds
    weights: WeightMap
    hardware: Hardware
    seqs: int
    graphs: bool

    def all(self) -> tuple[BudgetLine, ...]:
        parts = (self._weights(), self._step(), self._drafts(), self._graphs(), self._slots(), self._context())
        return (*(line for part in parts for line in part), *self.needs.extras.lines)

    @property
    def slots(self) -> int:
        """With one for what no sequence may have, where rows are filled up."""
        return self.seqs + (self.graphs or self.needs.drafts > 0)

    @property
    def sizes(self) -> Sizes:
        needs, hardware = self.needs, self.hardware
        assert needs.config.chunk_tokens is not None
        return Sizes(
            step_tokens(needs.config.chunk_tokens, self.seqs, needs.drafts), self.seqs, needs.drafts,
            itemsize(needs.dtypes.compute), hardware.processors or ASSUMED_PROCESSORS, hardware.capability,
            has_low_bit(self.weights) and hardware.kind == "cuda",
        )

    def _weights(self) -> Iterator[BudgetLine]:
        weights, compute = self.weights, self.needs.dtypes.compute
        wide = widening_bytes(weights, compute)
        why = f"{counted(len(weights.weights), 'tensor')}, plain ones in {compute}"
        yield BudgetLine("weights", weight_bytes(weights, compute) - wide, why)
        if wide:
            yield BudgetLine("wide weights", wide, "norms and decays, which are kept in float32")

    def _step(self) -> Iterator[BudgetLine]:
        spec, sizes, on_gpu = self.needs.spec, self.sizes, self.hardware.kind == "cuda"
        why = f"token counts and parameters of {counted(self.seqs, 'sequence')}"
        yield BudgetLine("sampler", sampler_bytes(self.slots, spec.vocab_size), why)
        yield from gpu_step_lines(spec, sizes) if on_gpu else cpu_step_lines(spec, sizes, self.weights)
        yield self._tables(sizes)
        if on_gpu and has_low_bit(self.weights) and sizes.narrow > 2:
            why = "the largest packed weight, decoded"
            yield BudgetLine("low-bit workspace", decoded_bytes(self.weights, sizes.exact), why)

    def _tables(self, sizes: Sizes) -> BudgetLine:
        """Where sequences' pages are, and the numbers sent with each step, of no more pages than there could be."""
        needs, groups, page = self.needs, self.needs.groups, self.needs.config.page_tokens
        most = [self.hardware.free_bytes // needs.page_bytes(group) for group in groups]
        full = [count for group, count in zip(groups, most, strict=True) if group.window is None]
        context = max(1, min([needs.longest, *(count * page for count in full)]))
        wanted = sizes.rows * -(-context // page)
        pages = sum(min(wanted, count) for count in most)
        tables = table_bytes(len(groups), self.slots, context, sizes.drafts, page)
        assert needs.config.chunk_tokens is not None
        tokens = needs.config.chunk_tokens + sizes.rows * (1 + sizes.drafts)
        sent = upload_bytes(
            len(groups), sizes.rows, self.slots, tokens, pages, graphs=self.graphs, drafts=sizes.drafts > 0
        )
        why = f"page lists of {counted(self.slots, 'slot')}, and the numbers that are sent with a step"
        return BudgetLine("tables", tables + sent, why)

    def _drafts(self) -> Iterator[BudgetLine]:
        needs, drafts = self.needs, self.needs.drafts
        if drafts:
            slot_bytes = ring_bytes(needs.spec, needs.dtypes, drafts) + progress_bytes(drafts)
            slots = f"{counted(self.slots, 'slot')} of {exact_size(slot_bytes)}"
            why = f"{slots} for up to {counted(drafts, 'draft')} a row, one of them padding"
            yield BudgetLine("drafts", self.slots * slot_bytes, why)

    def _graphs(self) -> Iterator[BudgetLine]:
        if self.graphs:
            more = f" and {counted(self.needs.drafts, 'draft')} each" if self.needs.drafts else ""
            kept = "their activations, their logits, and what the driver keeps"
            why = f"steps of up to {counted(self.seqs, 'row')}{more}, and of short prompts, captured: {kept}"
            yield BudgetLine("graphs", self._captured_bytes(), why)

    def _captured_bytes(self) -> int:
        needs, sizes, extras = self.needs, self.sizes, self.needs.extras
        spec, dtypes, config = needs.spec, needs.dtypes, needs.config
        assert config.chunk_tokens is not None
        shapes = prompt_shapes(self.seqs, config.chunk_tokens, needs.longest)
        tapped = extras.taps * spec.hidden * itemsize(dtypes.compute)
        kinds = replace(spec, layers=tuple(dict.fromkeys(spec.layers)))  # a step's most is in one of these
        return graph_bytes(
            spec, dtypes, self.seqs, needs.drafts, LOGIT_ROWS, low_bit=has_low_bit(self.weights),
            library_bytes=library_bytes(self.hardware.capability) if has_plain(spec, self.weights) else 0, prompts=len(shapes),
            prompt_bytes=max((layers_bytes(kinds, sizes.captured(s)) + s.tokens * tapped for s in shapes), default=0),
            nodes=self._nodes(), taps=extras.taps, coin=config.synthetic_acceptance is not None,
        )

    def _nodes(self) -> StepNodes:
        extras, packed = self.needs.extras, packed_layer_types(self.weights)
        rounds = extras.rounds_inputs or packed - {"int32"}
        found = EIGHT_BIT_NODES if rounds else FOUR_BIT_NODES if packed else PLAIN_NODES
        return replace(found, observes=extras.observes, proposes=extras.proposes)

    def _slots(self) -> Iterator[BudgetLine]:
        needs, extras = self.needs, self.needs.extras
        if extras.slot_bytes:
            why = f"{counted(self.slots, 'slot')} of {exact_size(extras.slot_bytes)}: {extras.slot_why}"
            yield BudgetLine("draft inputs", self.slots * extras.slot_bytes, why)
        if extras.masks:
            each = mask_bytes(needs.spec.vocab_size, needs.drafts)
            slots = f"{counted(self.slots, 'slot')} of {exact_size(each)}"
            why = f"{slots}: masks of the tokens that may be drawn, {1 + needs.drafts} of a row"
            yield BudgetLine("allowed tokens", self.slots * each, why)
        if self.slots > self.seqs:
            pages = sum(map(needs.page_bytes, needs.groups))
            yield BudgetLine("padding", needs.state_bytes + pages, "a state slot and a page for what no sequence may have")

    def _context(self) -> Iterator[BudgetLine]:
        if self.hardware.context_bytes:
            why = "what the driver takes for a process before its first tensor (--cuda-context-bytes), measured on an H200"
            yield BudgetLine(CONTEXT_LINE, self.hardware.context_bytes, why)
        if self.hardware.kind == "cuda":
            why = "of kernels and libraries, which the driver loads as they are first run, measured on an H200"
            yield BudgetLine(CODE_LINE, CODE_BYTES, why)
