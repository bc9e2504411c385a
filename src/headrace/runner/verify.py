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

from headrace.kernels.gated_delta_verify import advance
from headrace.kernels.sample.slots import ENDS_MESSAGE
from headrace.layers.batch import Pools
from headrace.plan.budget import LOGIT_ROWS
from headrace.runner.draft_batch import DraftStep, Runs
from headrace.runner.progress import Progress
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

    def __init__(self, logits: Logits, sampler: Sampler, progress: Progress, pools: Pools) -> None:
        self._logits, self._sampler, self._progress, self._pools = logits, sampler, progress, pools

    def finish(self, step: DraftStep, hidden: Tensor) -> DrawnRuns | None:
        """Draw a step's runs behind its tokens' hidden states [T, hidden], and move all of its rows on."""
        if step.runs is not None:
            return self.finish_runs(step, step.runs, step.runs_at, hidden)
        self.settle(step, torch.zeros_like(step.certain))
        return None

    def finish_runs(self, step: DraftStep, runs: Runs, rows: Tensor, hidden: Tensor) -> DrawnRuns:
        """The same with these runs, of the step's rows `rows` [S]."""
        drawn = self.draw(runs, hidden)
        self.settle(step, torch.zeros_like(step.certain).index_copy_(0, rows, drawn.emitted - 1))
        return drawn

    def draw(self, runs: Runs, hidden: Tensor) -> DrawnRuns:
        """Each run's tokens, counted as generated, and its slot frozen if they end the message."""
        together = runs.width > 1 and self._sampler.independent(runs.slots)
        drawn = self.draw_together(runs, hidden) if together else self.draw_in_turn(runs, hidden)
        self._sampler.note_draw(runs.slots)
        return drawn

    def settle(self, step: DraftStep, accepted: Tensor) -> None:
        """All rows have their certain tokens behind them and `accepted` [R] int64 of their drafts."""
        slots = step.batch.slots
        self._progress.move(slots, step.certain + accepted)
        if step.batch.deferred is not None:
            pending, parity = self._pools.pending, self._pools.parity
            assert pending is not None and parity is not None
            accepted = torch.where(slots == self._progress.padding_slot, 0, accepted)
            advance(pending, parity, slots, accepted.int())

    def draw_in_turn(self, runs: Runs, hidden: Tensor) -> DrawnRuns:
        """Place by place: each token is counted before the next is drawn, as penalties and min_tokens need it."""
        tokens: list[Tensor] = []
        ended: list[Tensor] = []
        scored: list[Scored] = []
        counted = runs.where
        for logits in self._slices(runs, hidden):  # [n, S, V]
            for x in logits:
                place = len(tokens)
                drawn = self._sampler.tokens_at(x, runs.slots, runs.named, runs.positions + place, counted)
                scored.append(self._sampler.scored(x, drawn, runs.slots))
                tokens.append(drawn)
                ended.append(self._ends(runs, drawn, place))
                if place < runs.width - 1:
                    goes_on = (drawn == runs.drafts[place]) & (runs.counts > place) & ~ended[place]
                    counted = torch.where(goes_on, counted, self._progress.padding_slot)
            del logits, x  # before the next slice's are made
        return self._outcome(runs, torch.stack(tokens), torch.stack(ended), tuple(scored))

    def draw_together(self, runs: Runs, hidden: Tensor) -> DrawnRuns:
        """All places of a slice at once, for rows whose draws do not depend on the tokens before them."""
        tokens: list[Tensor] = []
        scored: list[Scored] = []
        for logits in self._slices(runs, hidden):
            places = torch.arange(len(tokens), len(tokens) + len(logits), device=hidden.device)
            drawn = self._sampler.tokens_of(logits, runs.slots, runs.named, runs.positions + places[:, None])
            scored += [self._sampler.scored(x, found, runs.slots) for x, found in zip(logits, drawn, strict=True)]
            tokens += drawn.unbind()
            del logits
        all_tokens = torch.stack(tokens)
        ended = self._ends(runs, all_tokens, torch.arange(runs.width, device=hidden.device)[:, None])
        found = self._outcome(runs, all_tokens, ended, tuple(scored))
        self._sampler.count(runs.where, all_tokens.gather(0, found.emitted[None] - 1)[0], found.emitted)
        return found

    def _slices(self, runs: Runs, hidden: Tensor) -> Iterator[Tensor]:
        """Logits [n, S, V] of the runs' places in order, a bounded number of rows at a time."""
        rows = runs.hidden_at.shape[1]
        step = max(1, LOGIT_ROWS // rows)
        for first in range(0, runs.width, step):
            at = runs.hidden_at[first : first + step]
            yield self._logits(hidden[at.flatten()]).view(len(at), rows, -1)

    def _ends(self, runs: Runs, tokens: Tensor, place: int | Tensor) -> Tensor:
        """Whether tokens [..., S] drawn at `place` of their runs end their messages."""
        stops = (self._sampler.state.marks[runs.where, tokens] & ENDS_MESSAGE) != 0
        return stops | (runs.positions + place >= self._progress.ends[runs.where])

    def _outcome(self, runs: Runs, tokens: Tensor, ended: Tensor, scored: tuple[Scored, ...]) -> DrawnRuns:
        emitted = emitted_tokens(tokens, runs.drafts, runs.counts, ended)
        self._progress.freeze(runs.where, ended.gather(0, emitted[None] - 1)[0])
        return DrawnRuns(tokens, emitted, scored)


def emitted_tokens(tokens: Tensor, drafts: Tensor, counts: Tensor, ended: Tensor) -> Tensor:
    """How many of tokens [W, S] each run yields, [S] int64: one, and another for each draft before it that was drawn.

    drafts [W - 1, S], of which counts [S] count; ended [W, S]: the token ends the message, and nothing follows it.
    """
    place = torch.arange(len(drafts), device=tokens.device)[:, None]
    goes_on = (tokens[:-1] == drafts) & (place < counts) & ~ended[:-1]
    return 1 + goes_on.long().cumprod(0).sum(0)
