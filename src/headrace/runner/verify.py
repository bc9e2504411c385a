"""Draws the tokens of rows with drafts, and moves their slots on by what is accepted. Nothing here waits for the device.

Sample-and-match: the target's token is drawn at every position of a row with the sampler's own noise, which depends on seed,
position and token id alone, and drafts are accepted while they are the tokens drawn. So a request's tokens are those it would
have had without drafts, whatever it samples with. Acceptance ends where the message does, by EOS, a stop token id or
max_tokens, and the slot is frozen there: later rows of a frozen slot, which may be on their way already, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.kernels.accept_drafts import DraftSlots, accept_drafts, ends_message
from headrace.plan.budget import LOGIT_ROWS
from headrace.runner.draft_batch import DraftStep, Runs
from headrace.runner.progress import pass_by
from headrace.runner.sampler import Sampler, Scored
from headrace.types import TokenLogprob

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """tokens [W, S]: of each run its first emitted [S] count. scored: log-probabilities at each of the W places."""

    tokens: Tensor
    emitted: Tensor
    scored: tuple[Scored, ...] = ()

    def to_host(self) -> DrawnRuns:
        """Copies that may be read once the device has come this far."""
        tokens, emitted = (x.to("cpu", non_blocking=True) for x in (self.tokens, self.emitted))
        return DrawnRuns(tokens, emitted, tuple(scored.to_host() for scored in self.scored))

    def results(self) -> Iterator[tuple[tuple[int, ...], tuple[TokenLogprob, ...]]]:
        """Each run's tokens, with their log-probabilities if it asked for them. Waits for a device."""
        entries = [scored.read() for scored in self.scored]
        for run, (tokens, count) in enumerate(zip(self.tokens.T.tolist(), self.emitted.tolist(), strict=True)):
            logprobs = tuple(found[run] for found in entries[:count] if run in found)
            yield tuple(tokens[:count]), logprobs


class Verifier:
    """Draws runs from the logits that `logits` makes of hidden states [N, hidden]."""

    def __init__(self, logits: Logits, sampler: Sampler, slots: DraftSlots) -> None:
        self._logits, self._sampler, self._slots = logits, sampler, slots
        self._padding_slot = len(slots.positions) - 1

    def finish(self, step: DraftStep, hidden: Tensor) -> DrawnRuns | None:
        """Draw a step's runs behind its tokens' hidden states [T, hidden], and move all of its rows on."""
        deferred = step.batch.deferred is not None
        if step.others is not None:
            pass_by(self._slots, step.batch.slots[step.others], step.certain[step.others], deferred=deferred)
        return None if step.runs is None else self.draw(step.runs, hidden, deferred=deferred)

    def draw(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """Each run's tokens, counted as generated. Its slot moves on by them, and is frozen if they end the message."""
        together = runs.width > 1 and self._sampler.independent(runs.slots)
        drawn = (self.draw_together if together else self.draw_in_turn)(runs, hidden, deferred=deferred)
        self._sampler.note_draw(runs.slots)
        return drawn

    def draw_in_turn(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """Place by place: each token is counted before the next is drawn, as penalties and min_tokens need it."""
        tokens: list[Tensor] = []
        scored: list[Scored] = []
        counted = runs.where
        for logits in self._slices(runs, hidden):  # [n, S, V]
            for x in logits:
                if tokens:
                    counted = self._going_on(runs, counted, tokens[-1], len(tokens) - 1)
                drawn = self._sampler.tokens_at(x, runs.slots, runs.named, runs.positions + len(tokens), counted)
                scored.append(self._sampler.scored(x, drawn, runs.slots))
                tokens.append(drawn)
            del logits, x  # before the next slice's are made
        return self._accept(runs, torch.stack(tokens), tuple(scored), counted=True, deferred=deferred)

    def draw_together(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """All places of a slice at once, for rows whose draws do not depend on the tokens before them."""
        tokens: list[Tensor] = []
        scored: list[Scored] = []
        for logits in self._slices(runs, hidden):
            places = torch.arange(len(scored), len(scored) + len(logits), device=hidden.device)
            drawn = self._sampler.tokens_of(logits, runs.slots, runs.named, runs.positions + places[:, None])
            scored += [self._sampler.scored(x, found, runs.slots) for x, found in zip(logits, drawn, strict=True)]
            tokens.append(drawn)
            del logits
        return self._accept(runs, torch.cat(tokens), tuple(scored), counted=False, deferred=deferred)

    def _slices(self, runs: Runs, hidden: Tensor) -> Iterator[Tensor]:
        """Logits [n, S, V] of the runs' places in order, a bounded number of rows at a time."""
        rows = runs.hidden_at.shape[1]
        step = max(1, LOGIT_ROWS // rows)
        for first in range(0, runs.width, step):
            at = runs.hidden_at[first : first + step]
            yield self._logits(hidden[at.flatten()]).view(len(at), rows, -1)

    def _going_on(self, runs: Runs, counted: Tensor, tokens: Tensor, place: int) -> Tensor:
        """counted [S] with padding for rows that yield nothing behind `tokens` [S], drawn at `place`."""
        ended = ends_message(tokens, runs.positions + place, runs.where, self._slots)
        goes_on = (tokens == runs.drafts[place]) & (runs.counts > place) & ~ended
        return torch.where(goes_on, counted, self._padding_slot)

    def _accept(
        self, runs: Runs, tokens: Tensor, scored: tuple[Scored, ...], *, counted: bool, deferred: bool
    ) -> DrawnRuns:
        emitted = accept_drafts(
            tokens, runs.drafts, runs.counts, runs.where, runs.positions, self._slots, counted=counted, deferred=deferred
        )
        return DrawnRuns(tokens, emitted, scored)
