"""Draws the tokens of rows with drafts, and moves their slots on by what is accepted. Nothing here waits for the device.

The target's token is drawn at every position of a row, and drafts are accepted while they are the tokens drawn. Of requests
with a seed it is drawn with the sampler's own noise, which depends on seed, position and token id alone: so their tokens are
those that they would have had without drafts, whatever they sample with (sample-and-match). Of others, where it is known what a
draft was drawn from, it is that draft as often as can be, and distributed as ever (`kernels.sample.accept`). Acceptance ends
where the message does, by EOS, a stop token id or max_tokens, and the slot is frozen there: later rows of a frozen slot, which
may be on their way already, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from headrace.kernels.accept_drafts import DraftSlots, Drawn, accept_drafts, ends_message
from headrace.kernels.sample import Against, Odds
from headrace.plan.workspace import LOGIT_ROWS
from headrace.runner.coin import Coin
from headrace.runner.draft_batch import DraftStep, Runs
from headrace.runner.progress import pass_by
from headrace.runner.sampler import Sampler, Scored
from headrace.types import TokenLogprob

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """tokens [N]: run s yields emitted[s] of them, from begins[s] on and then every stride-th. scored: log-probabilities, each
    with the place of its first row.
    """

    tokens: Tensor
    emitted: Tensor
    begins: tuple[int, ...]
    stride: int
    scored: tuple[tuple[int, Scored], ...] = ()

    def to_host(self) -> DrawnRuns:
        """Copies that may be read once the device has come this far."""
        tokens, emitted = (x.to("cpu", non_blocking=True) for x in (self.tokens, self.emitted))
        return replace(self, tokens=tokens, emitted=emitted, scored=tuple((at, each.to_host()) for at, each in self.scored))

    def results(self) -> Iterator[tuple[tuple[int, ...], tuple[TokenLogprob, ...]]]:
        """Each run's tokens, with their log-probabilities if it asked for them. Waits for a device."""
        tokens = self.tokens.tolist()
        entries = {first + row: entry for first, each in self.scored for row, entry in each.read().items()}
        for begin, count in zip(self.begins, self.emitted.tolist(), strict=True):
            end, stride = begin + count * self.stride, self.stride
            scores = tuple(entries[p] for p in range(begin, end, stride) if p in entries) if entries else ()
            yield tuple(tokens[begin:end:stride]), scores


class Verifier:
    """Draws runs from the logits that `logits` makes of hidden states [N, hidden]. coin: decides what is accepted instead.
    odds: what drafts were drawn from, if that may be known.
    """

    def __init__(
        self, logits: Logits, sampler: Sampler, slots: DraftSlots, coin: Coin | None = None, odds: Odds | None = None
    ) -> None:
        self._logits, self._sampler, self._slots, self._coin, self._odds = logits, sampler, slots, coin, odds
        self._padding_slot = len(slots.positions) - 1

    def finish(self, step: DraftStep, hidden: Tensor) -> DrawnRuns | None:
        """Draw a step's runs behind its tokens' hidden states [T, hidden], and move all of its rows on."""
        deferred = step.batch.deferred is not None
        if step.others is not None:
            pass_by(self._slots, step.batch.slots[step.others], step.certain[step.others], deferred=deferred)
        return None if step.runs is None else self.draw(step.runs, hidden, deferred=deferred)

    def draw(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """Each run's tokens, counted as generated. Its slot moves on by them, and is frozen if they end the message."""
        together = runs.most > 1 and self._sampler.independent(runs.names)
        drawn = (self.draw_together if together else self.draw_in_turn)(runs, hidden, deferred=deferred)
        self._sampler.note_draw(runs.names)
        return drawn

    def draw_in_turn(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """Place by place: each token is counted before the next is drawn, as penalties and min_tokens need it."""
        tokens: list[Tensor] = []
        scored: list[tuple[int, Scored]] = []
        counted, size, at = runs.slots, len(runs.slots), _places(runs)
        against = self._against(runs, pad(at, (0, size % 2)))  # kernels are compiled apart for addresses not at 16 bytes
        for logits in self._by_place(hidden, at):  # [n, S, V]
            for x in logits:
                if tokens:
                    counted = self._going_on(runs, counted, tokens[-1], len(tokens))
                positions = runs.positions + (len(tokens) + 1)
                drafts = against and against.part((len(tokens), slice(size)))
                drawn = self._sampler.tokens_at(x, runs.names, runs.slots, positions, counted, drafts)
                if self._coin is not None and runs.most > 1:
                    following = (runs.last.long() + 1 + len(tokens)).clamp(max=len(runs.tokens) - 1)
                    drawn = self._coin.decide(drawn, runs.tokens[following], runs.slots, positions)
                scored.append((len(tokens) * size, self._sampler.scored(x, drawn, runs.names)))
                tokens.append(drawn)
            del logits, x  # before the next slice's are made
        begins = torch.arange(size, dtype=torch.int32, device=hidden.device)
        found = Drawn(torch.cat(tokens), begins, size, runs.most)
        emitted = self._accept(runs, found, counted=True, deferred=deferred)
        return DrawnRuns(found.tokens, emitted, tuple(range(size)), size, tuple(scored))

    def draw_together(self, runs: Runs, hidden: Tensor, *, deferred: bool) -> DrawnRuns:
        """All places of a slice at once, for rows whose draws do not depend on the tokens before them."""
        tokens: list[Tensor] = []
        scored: list[tuple[int, Scored]] = []
        against = self._against(runs, runs.place_at)
        places = len(runs.drawn_at)  # of all tokens, there may be some of padding behind
        for first in range(0, places, LOGIT_ROWS):
            part = slice(first, min(first + LOGIT_ROWS, places))
            logits = self._logits(hidden[part] if runs.place_at is None else hidden[runs.place_at[part]])
            names = runs.place_names[part]
            drawn = self._sampler.tokens_of(
                logits, names, runs.place_slots[part], runs.drawn_at[part], against and against.part(part)
            )
            scored.append((first, self._sampler.scored(logits, drawn, names)))
            tokens.append(drawn)
            del logits
        found = Drawn(self._decided(runs, torch.cat(tokens)), runs.begins, 1, runs.most)
        emitted = self._accept(runs, found, counted=False, deferred=deferred)
        return DrawnRuns(found.tokens, emitted, runs.host_begins, 1, tuple(scored))

    def _decided(self, runs: Runs, tokens: Tensor) -> Tensor:
        """Of all places: by the coin, where there is one."""
        if self._coin is None:
            return tokens
        following = runs.tokens.roll(-1)
        drafts = following if runs.place_at is None else following[runs.place_at]
        return self._coin.decide(tokens, drafts[: len(tokens)], runs.place_slots, runs.drawn_at)

    def _against(self, runs: Runs, at: Tensor | None) -> Against | None:
        """The drafts behind tokens `at`, all if it is None, whose odds are known."""
        if self._odds is None or runs.most == 1:
            return None
        following, draft_of = runs.tokens.roll(-1), runs.draft_of
        return Against(self._odds, *((following, draft_of) if at is None else (following[at], draft_of[at])))

    def _by_place(self, hidden: Tensor, at: Tensor) -> Iterator[Tensor]:
        """Logits [n, S, V] behind tokens at [most, S], a bounded number of rows at a time."""
        most, rows = at.shape
        step = max(1, LOGIT_ROWS // rows)
        for first in range(0, most, step):
            part = at[first : first + step]
            yield self._logits(hidden[part.flatten()]).view(len(part), rows, -1)

    def _going_on(self, runs: Runs, counted: Tensor, tokens: Tensor, place: int) -> Tensor:
        """counted [S] with padding for rows of which nothing counts at `place`, behind `tokens` [S]."""
        ended = ends_message(tokens, runs.positions + place, runs.slots, self._slots)
        drafts = runs.tokens[(runs.last.long() + place).clamp(max=len(runs.tokens) - 1)]
        return torch.where((tokens == drafts) & (runs.counts >= place) & ~ended, counted, self._padding_slot)

    def _accept(self, runs: Runs, drawn: Drawn, *, counted: bool, deferred: bool) -> Tensor:
        return accept_drafts(
            drawn, runs.tokens, runs.last, runs.counts, runs.slots, runs.positions, self._slots, counted=counted,
            deferred=deferred,
        )


def _places(runs: Runs) -> Tensor:
    """[most, S]: the tokens that the runs' first tokens are drawn behind, then their second ones; at last the last again."""
    place = torch.arange(runs.most, device=runs.last.device)[:, None]
    return runs.last + torch.minimum(place, runs.counts)
