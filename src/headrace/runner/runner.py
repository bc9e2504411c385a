"""Runs plans: packs rows, calls the decoder, draws tokens. Owns every tensor; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Batch
from headrace.models.decoder import Decoder
from headrace.models.spec import ModelSpec
from headrace.plan.budget import LOGIT_ROWS
from headrace.plan.dtypes import Dtypes
from headrace.runner.batch import Packer
from headrace.runner.pools import allocate_pools, clear_slot
from headrace.runner.sampler import Drawn, Sampler
from headrace.types import Admission, Request, Row, RowResult, StepPlan, StepResult, TokenLogprob


@dataclass(slots=True)
class PendingStep:
    """A step that the device may still be working on."""

    _plan: StepPlan
    _sampler: Sampler
    _drawn: Drawn | None
    _prompt_logprobs: dict[int, tuple[TokenLogprob, ...]]  # by row index

    def result(self) -> StepResult:
        """Wait for the step and read what it sampled."""
        drawn = self._drawn
        tokens = iter(drawn.tokens.tolist() if drawn else ())
        logprobs = iter(self._sampler.logprobs(drawn) if drawn else ())
        rows = []
        for index, row in enumerate(self._plan.rows):
            prompt = self._prompt_logprobs.get(index, ())
            if row.samples:
                rows.append(RowResult(row.sequence, (next(tokens),), next(logprobs), prompt))
            else:
                rows.append(RowResult(row.sequence, (), (), prompt))
        return StepResult(self._plan.step, tuple(rows))


class Runner:
    """One model on one device with its cache. Plans must be launched in the order they were made."""

    def __init__(
        self,
        spec: ModelSpec,
        decoder: Decoder,
        layout: CacheLayout,
        dtypes: Dtypes,
        device: torch.device,
        *,
        context: int,
    ) -> None:
        compute: torch.dtype = getattr(torch, dtypes.compute)
        self._decoder = decoder
        self._pools = allocate_pools(spec, layout, dtypes, device)
        self._packer = Packer(layout, context, device)
        self._sampler = Sampler(layout.slots, spec.vocab_size, device, torch.promote_types(compute, torch.float32))
        self._requests: list[Request | None] = [None] * layout.slots
        self._device = device

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Start a step. On a CPU it is finished when this returns."""
        self._admit(plan.admissions)
        batch = self._packer.pack(plan.rows, self._sampler.next_tokens)
        hidden = self._decoder(batch, self._pools)  # [T, hidden]
        prompt_logprobs = self._prompt_logprobs(plan.rows, hidden)
        return PendingStep(plan, self._sampler, self._draw(plan.rows, batch, hidden), prompt_logprobs)

    def close(self) -> None:
        """Let go of every tensor."""
        del self._decoder, self._pools, self._packer, self._sampler

    def _admit(self, admissions: tuple[Admission, ...]) -> None:
        for admission in admissions:
            clear_slot(self._pools, admission.slot)
            self._requests[admission.slot] = admission.request
        if admissions:
            self._sampler.admit(admissions)

    def _draw(self, rows: tuple[Row, ...], batch: Batch, hidden: Tensor) -> Drawn | None:
        """Sample a token for every row that ends in one."""
        slots, positions, last = [], [], []
        end = 0
        for row, count, length in zip(rows, batch.host_row_tokens, batch.host_lengths, strict=True):
            end += count
            if row.samples:
                slots.append(row.slot)
                positions.append(length)
                last.append(end - 1)
        if not slots:
            return None
        if len(last) < len(hidden):
            hidden = hidden[torch.tensor(last, device=self._device)]
        return self._sampler.draw(self._decoder.logits(hidden), slots, positions)

    def _prompt_logprobs(self, rows: tuple[Row, ...], hidden: Tensor) -> dict[int, tuple[TokenLogprob, ...]]:
        found = {}
        begin = 0
        for index, row in enumerate(rows):
            request = self._requests[row.slot]
            assert request is not None
            end = begin + (len(row.tokens) or 1)
            wanted = request.params.prompt_logprobs
            if wanted is not None and row.start < len(request.prompt) - 1:
                followers = request.prompt[row.start + 1 : row.start + 1 + end - begin]
                found[index] = self._score(hidden[begin : begin + len(followers)], followers, wanted)
            begin = end
        return found

    def _score(self, hidden: Tensor, followers: tuple[int, ...], alternatives: int) -> tuple[TokenLogprob, ...]:
        """Log-probability of followers[i] given hidden[i], a bounded number of logit rows at a time."""
        scored: list[TokenLogprob] = []
        for first in range(0, len(followers), LOGIT_ROWS):
            logits = self._decoder.logits(hidden[first : first + LOGIT_ROWS])
            next_tokens = torch.tensor(followers[first : first + LOGIT_ROWS], device=self._device)
            scored.extend(self._sampler.prompt_logprobs(logits, next_tokens, alternatives))
        return tuple(scored)
