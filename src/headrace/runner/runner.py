"""Runs plans: packs rows, calls the decoder, draws tokens. Owns every tensor; decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Pools
from headrace.models.decoder import Decoder
from headrace.models.spec import ModelSpec
from headrace.plan.blocks import block_bytes
from headrace.plan.dtypes import Dtypes
from headrace.plan.graph_rows import PromptShape, prompt_shapes, row_buckets
from headrace.plan.workspace import SCORED_ROWS
from headrace.runner.allowed import AllowedTokens
from headrace.runner.batch import Packer, SampledRows
from headrace.runner.copies import copy_pages, empty_ring, keep_states, resume_state
from headrace.runner.draft_batch import short_first, tokens_of
from headrace.runner.drafting import Drafting
from headrace.runner.graphs import Captured, DecodeGraphs, MemoryCounts, capture
from headrace.runner.held import allocated_bytes, occupy, pool_bytes, pool_tensors, total_bytes
from headrace.runner.host_pools import HostPools
from headrace.runner.page_tables import PageTables
from headrace.runner.pending_step import PendingStep
from headrace.runner.pools import allocate_pools, clear_slot
from headrace.runner.prompt_batch import singles_first
from headrace.runner.prompt_graphs import PromptGraphs
from headrace.runner.sampler import Drawn, Sampler
from headrace.runner.scores import PromptScores
from headrace.runner.script import Script
from headrace.runner.sequence_masks import MakeMasks
from headrace.runner.step_times import StepTimes
from headrace.speculate.costs import StepCosts
from headrace.speculate.drafter import DeviceDrafter
from headrace.types import Admission, PageUpdate, Request, Row, StepPlan

MakeDrafter = Callable[[Pools], DeviceDrafter]


class Runner:
    """One model on one device with its cache. Plans must be launched in the order they were made.

    chunk_tokens: the most prompt tokens of a step. context: the longest sequence. Rows may carry as many drafts as the layout
    has room for. With graphs, on a GPU and a layout with padding, steps of decoding rows, and those with prompts of few tokens
    where no row has drafts, are captured here, and replayed. The tokens are the same. A model whose operations cannot be
    captured runs eagerly, unless graphs are required. host: pages and checkpoints in host memory, if plans copy to and from it.
    make_drafter: of the pools, the drafter on the device whose proposals rows may ask for. synthetic_acceptance: of its drafts,
    by a coin. make_masks: of requests, which tokens they may draw, if any of them may not draw all.
    """

    def __init__(
        self,
        spec: ModelSpec,
        decoder: Decoder,
        layout: CacheLayout,
        dtypes: Dtypes,
        device: torch.device,
        *,
        context: int,
        chunk_tokens: int,
        graphs: bool = True,
        graphs_required: bool = False,
        host: CacheLayout | None = None,
        make_drafter: MakeDrafter | None = None,
        synthetic_acceptance: float | None = None,
        make_masks: MakeMasks | None = None,
    ) -> None:
        compute: torch.dtype = getattr(torch, dtypes.compute)
        self.layout = layout
        self._decoder = decoder
        self._pools = allocate_pools(spec, layout, dtypes, device)
        self.host = HostPools(spec, host, dtypes, self._pools, layout.pool_slots, device) if host else None
        self._tables = PageTables(layout, context, device)
        self._allowed = AllowedTokens(
            make_masks, layout.pool_slots, 1 + layout.drafts, spec.vocab_size, device
        ) if make_masks else None
        self._sampler = Sampler(
            layout.pool_slots, spec.vocab_size, device, torch.promote_types(compute, torch.float32),
            ends_marked=layout.drafts > 0, allowed=self._allowed,
        )
        self._requests: list[Request | None] = [None] * layout.slots
        self._scores_due = [False] * layout.slots  # those of a prompt are sent with its first token, and never again
        self._device = device
        self._graphs_required = graphs_required
        most_tokens, pages = chunk_tokens + layout.slots * (1 + layout.drafts), sum(layout.pages)
        self._packer = None if layout.drafts else Packer(self._tables, most_tokens, layout.pool_slots, pages, device)
        drafter = make_drafter(self._pools) if make_drafter else None
        self._drafting = Drafting(
            layout, decoder, self._pools, self._tables, self._sampler, most_tokens, device, drafter, synthetic_acceptance
        ) if layout.drafts else None
        self._graphs: DecodeGraphs | None = None
        self._prompts: PromptGraphs | None = None
        self._taken: MemoryCounts | None = None
        if self._drafting is not None:
            self._drafting.rehearse(min(chunk_tokens, context))
        if graphs and layout.padding and device.type == "cuda":
            self._capture(prompt_shapes(layout.slots, chunk_tokens, context))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Start a step, behind those started before. On a CPU it is finished when this returns. Where sequences with masks have
        rows, it waits for the steps before.
        """
        self._prepare(plan)
        if not plan.rows:
            return PendingStep(plan, (), None, {}, self._device)
        if self._allowed is None:
            return self._launch(plan)
        self._allowed.expect(plan.rows)
        step = self._launch(plan)
        self._allowed.follow(step)
        step.failures = self._allowed.failures
        return step

    def _launch(self, plan: StepPlan) -> PendingStep:
        if self._drafting is not None:
            rows = short_first(plan.rows)
            drafted, hidden, proposes = self._drafting.run(rows)
            scores = {} if hidden is None else self._prompt_scores(rows, hidden)
            return PendingStep(plan, rows, drafted, scores, self._device, proposes)
        scored = any(self._scored(row) is not None for row in plan.rows)
        graph = self._graphs.graph_for(plan.rows) if self._graphs else None
        if graph is not None:
            return PendingStep(plan, plan.rows, graph.replay(plan.rows), {}, self._device)
        prompts = self._prompts.graph_for(plan.rows) if self._prompts and not scored else None
        if prompts is not None:
            ordered = singles_first(plan.rows)
            return PendingStep(plan, ordered, prompts.replay(ordered), {}, self._device)
        assert self._packer is not None
        batch, sampled = self._packer.pack(plan.rows, self._sampler.next_tokens)
        if scored:
            hidden = self._decoder(batch, self._pools)  # [T, hidden]
            scores = self._prompt_scores(plan.rows, hidden)
            ends = hidden if sampled is None or sampled.last is None else hidden[sampled.last]
        else:
            ends = self._decoder(batch, self._pools, sampled.last if sampled else batch.slots[:0])  # [S, hidden]
            scores = {}
        return PendingStep(plan, plan.rows, self._draw(sampled, ends) if sampled else None, scores, self._device)

    @torch.inference_mode()
    def assume(self, plan: StepPlan) -> None:
        """Take the plan's rows, of known tokens, as computed: the cache is what they leave behind."""
        self._prepare(plan)
        self._set_pages((row.slot, update) for row in plan.rows for update in row.page_updates)
        for row in plan.rows:
            if self._drafting is not None:
                self._drafting.slots.positions[row.slot].fill_(row.start + len(row.tokens))

    @torch.inference_mode()
    def fill_cache(self, seed: int = 0) -> None:
        """Random numbers in every page, state and tail: a cache to measure with, of sequences that nobody computed."""
        generator = torch.Generator(self._device).manual_seed(seed)
        pools = self._pools
        for tensors in (pools.keys, pools.values, pools.states, pools.conv_tails):
            for tensor in tensors:
                if tensor is None:
                    continue
                if tensor.itemsize > 1:
                    tensor.normal_(0.0, 0.5, generator=generator)
                else:  # codes that are numbers in int8 and in e4m3 alike
                    tensor.view(torch.int8).random_(0, 64, generator=generator)
        for tensor in (*pools.key_scales, *pools.value_scales):
            if tensor is not None:
                tensor.uniform_(0.01, 0.02, generator=generator)

    def step_costs(self, context: int) -> StepCosts | None:
        """What steps take, for sequences of up to `context` tokens. No sequence may be there."""
        return StepTimes(self._drafting, self.layout, context).measure() if self._drafting else None

    @property
    def captured_prompts(self) -> tuple[PromptShape, ...]:
        """Steps with prompts that are captured as long as no row of theirs has drafts."""
        return self._drafting.prompts if self._drafting else ()

    def accept(self, chances: Sequence[float]) -> None:
        """Chances of synthetic acceptance from now on, by slot."""
        assert self._drafting is not None and self._drafting.coin is not None
        coin = self._drafting.coin
        coin.chances[: len(chances)] = torch.tensor(chances).to(coin.chances)

    def follow(self, texts: Mapping[str, Sequence[int]]) -> None:
        """Requests of these ids, all with log-probabilities, say what follows in their texts from now on, drafts or not."""
        assert self._drafting is not None  # an engine without drafts draws in its graphs
        self._sampler.script = Script(texts, self.layout.pool_slots, self._device) if texts else None

    def parameters(self) -> dict[str, Tensor]:
        """The model's weights by name."""
        return dict(self._decoder.named_parameters())

    def occupy(self) -> None:
        """Write every byte of the cache. No sequence survives it."""
        occupy(self._pools)

    def held_bytes(self) -> dict[str, int]:
        """Of the tensors that are there for good, by the line of the budget that planned them."""
        held = {"weights": total_bytes(self._weights()), "sampler": total_bytes(self._sampler_tensors())}
        kept = self._drafter.nbytes if self._drafter else 0
        held |= {"draft inputs": kept} if kept else {}
        held |= {"allowed tokens": total_bytes(self._mask_tensors())} if self._allowed else {}
        return held | {"tables": self._tables.entries.nbytes + self._sent_bytes} | pool_bytes(self._pools, self.layout)

    def allocated_bytes(self) -> int:
        """What PyTorch's allocator counts for these tensors, and for those that the graphs made."""
        own = (*self._sampler_tensors(), *self._mask_tensors())
        tensors = (*self._weights(), *own, self._tables.entries, *pool_tensors(self._pools))
        blocks = block_bytes(self._sent_bytes) + block_bytes(self._drafter.nbytes if self._drafter else 0)
        return allocated_bytes(tensors) + blocks + self.graph_bytes.get("graphs_tensors", 0)

    @property
    def graph_bytes(self) -> dict[str, int]:
        """What the graphs took of torch's memory, in tensors or not, and of the device's in all; nothing without them."""
        taken = self._drafting.taken if self._drafting else self._taken
        if taken is None:
            return {}
        return {"graphs_pool": taken.pool, "graphs_device": taken.device, "graphs_tensors": taken.tensors}

    def _sampler_tensors(self) -> tuple[Tensor, ...]:
        return *self._sampler.state.tensors(), self._sampler.next_tokens

    def _mask_tensors(self) -> tuple[Tensor, ...]:
        return self._allowed.tensors if self._allowed else ()

    def _weights(self) -> tuple[Tensor, ...]:
        """The model's, and those of the drafter on the device."""
        return *self._decoder.parameters(), *(self._drafter.weights if self._drafter else ())

    @property
    def _drafter(self) -> DeviceDrafter | None:
        return self._drafting.proposer.drafter if self._drafting else None

    @property
    def _sent_bytes(self) -> int:
        """Of the numbers that are sent with a step."""
        if self._drafting is not None:
            return self._drafting.sent_bytes
        return self._packer.nbytes if self._packer else 0

    def close(self) -> None:
        """Let go of every tensor."""
        if self.host is not None:
            self.host.close()
        del self._decoder, self._pools, self._tables, self._packer, self._sampler, self._drafting, self.host
        del self._graphs, self._prompts, self._allowed

    def _prepare(self, plan: StepPlan) -> None:
        """All that a plan wants done before its rows."""
        if plan.host is not None and plan.host.waits and self.host is not None:
            self.host.await_copies()
        if plan.checkpoints:
            if self._drafting is not None:
                self._drafting.proposer.settle([copy.slot for copy in plan.checkpoints])
            keep_states(self._pools, plan.checkpoints, self.layout.pool_slots, self._device)
        if plan.host is not None and self.host is not None:
            self.host.save(plan.host)
        if plan.page_copies:
            copy_pages(self._pools, plan.page_copies, self._device)
        if plan.host is not None and self.host is not None:
            self.host.load(plan.host, plan.step)
        self._admit(plan.admissions)
        if any(admission.pages for admission in plan.admissions):
            self._set_pages((each.slot, update) for each in plan.admissions for update in each.pages)

    def _set_pages(self, updates: Iterable[tuple[int, PageUpdate]]) -> None:
        indices, pages = (torch.tensor(part, dtype=torch.int64) for part in self._tables.places(updates))
        self._tables.apply(indices.to(self._device, non_blocking=True), pages.to(self._device, non_blocking=True))

    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        for admission in admissions:
            if admission.restored is not None and self.host is not None:
                self.host.await_load(admission.restored)
                empty_ring(self._pools, admission.slot)
            elif admission.checkpoint is None:
                clear_slot(self._pools, admission.slot)
            else:
                resume_state(self._pools, admission.slot, admission.checkpoint, self.layout.pool_slots)
            self._requests[admission.slot] = admission.request
            self._scores_due[admission.slot] = admission.request.params.prompt_logprobs is not None and not admission.output
        if admissions:
            self._sampler.admit(admissions)
            if self._drafting is not None:
                self._drafting.admit(admissions)

    @torch.inference_mode()
    def _capture(self, prompts: tuple[PromptShape, ...]) -> None:
        sizes = row_buckets(self.layout.slots)
        try:
            if self._drafting is not None:
                self._drafting.capture(sizes, prompts)
            else:
                self._capture_plain(sizes, prompts)
        except RuntimeError as error:  # an operation that waits for the device: shapes that only a reference computes
            if isinstance(error, torch.OutOfMemoryError) or self._graphs_required:
                raise
            reason = str(error).partition("\n")[0]
            logging.getLogger("headrace").warning("decode steps cannot be captured, and run eagerly: %s", reason)

    def _capture_plain(self, sizes: tuple[int, ...], shapes: tuple[PromptShape, ...]) -> None:
        assert self._packer is not None
        over = Captured.over(self._decoder, self._pools, self._tables, self._sampler)
        prompts = PromptGraphs(shapes, self._packer.upload, over)
        graphs = DecodeGraphs(sizes, over)
        self._taken = capture((*prompts.steps, *graphs.steps))
        self._graphs, self._prompts = graphs, prompts

    def _draw(self, rows: SampledRows, hidden: Tensor) -> Drawn:
        """Sample a token for every row that ends in one: hidden [S, hidden] of their ends."""
        logits = self._decoder.logits(hidden)
        self._sampler.await_masks()
        return self._sampler.draw_at(logits, rows.slots, rows.where, rows.positions)

    def _scored(self, row: Row) -> int | None:
        """How many alternatives to each of the row's prompt tokens are asked for; None if their log-probabilities are not."""
        request = self._requests[row.slot]
        assert request is not None
        due = self._scores_due[row.slot] and row.start < len(request.prompt) - 1
        return request.params.prompt_logprobs if due else None

    def _prompt_scores(self, rows: tuple[Row, ...], hidden: Tensor) -> dict[int, PromptScores]:
        found = {}
        begin = 0
        for row in rows:
            request, wanted = self._requests[row.slot], self._scored(row)
            if request is not None and wanted is not None:
                followers = request.prompt[row.start + 1 : row.start + 1 + (len(row.tokens) or 1)]
                found[row.sequence] = self._score(hidden[begin : begin + len(followers)], followers, wanted)
            begin += tokens_of(row)
        return found

    def _score(self, hidden: Tensor, followers: tuple[int, ...], alternatives: int) -> PromptScores:
        """Log-probability of followers[i] given hidden[i], a bounded number of logit rows at a time."""
        parts = []
        for first in range(0, len(followers), SCORED_ROWS):
            logits = self._decoder.logits(hidden[first : first + SCORED_ROWS])
            next_tokens = torch.tensor(followers[first : first + SCORED_ROWS]).to(self._device, non_blocking=True)
            parts.append(self._sampler.score(logits, next_tokens, alternatives))
        return PromptScores(tuple(parts))
