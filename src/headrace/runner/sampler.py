"""The sampler: every slot's sampling parameters and token counts on the device, and the draw of a step's tokens.

The runner calls `draw_at` once a step, right behind the model (whose logits may lie in a captured graph's static buffer, so
they are only read, but for tokens that a mask does not allow, which become -inf there), or replays a graph with
`draw_on_device` in it and calls `drawn`. It never waits: what is drawn goes to the host by `Drawn.to_host`, and to the next
step by `next_tokens`. Only where sequences have masks does `await_masks`, to be called between a step and its draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.sample import Against, Features, SlotState, draw_on_device, draws_on_device, sample, top_logprobs
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_ONCE, IN_PROMPT
from headrace.runner.allowed import AllowedTokens
from headrace.runner.scores import TokenScores
from headrace.runner.script import Script
from headrace.types import Admission, Request, TokenLogprob

_COLDEST = 1e-30
"""Temperatures below it are drawn as if at it: already greedy but for exact ties, and still a normal float32."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of those rows of a draw which asked for them, if any did."""

    rows: tuple[int, ...] = ()
    scores: TokenScores | None = None

    def to_host(self) -> Scored:
        """Copies that may be read once the device has come this far."""
        return Scored(self.rows, self.scores and self.scores.to_host())

    def read(self) -> dict[int, TokenLogprob]:
        """By row, each with as many alternatives as it asked for. Waits for a device."""
        return dict(zip(self.rows, self.scores.read() if self.scores else (), strict=True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of a draw, [R] int64, and what their rows asked for beside them."""

    tokens: Tensor
    scored: Scored = field(default_factory=Scored)

    def to_host(self) -> Drawn:
        """Copies that may be read once the device has come this far."""
        return Drawn(self.tokens.to("cpu", non_blocking=True), self.scored.to_host())

    def results(self) -> Iterator[tuple[tuple[int, ...], tuple[TokenLogprob, ...]]]:
        """Each row's one token, with its log-probability if it asked for that. Waits for a device."""
        found = self.scored.read()
        for row, token in enumerate(self.tokens.tolist()):
            yield (token,), (found[row],) if row in found else ()


class Sampler:
    """Owns the per-slot memory of `slots` sequences (`plan.sampler_memory.sampler_bytes` of it) and draws their tokens.

    next_tokens: [slots] int64, each slot's newest drawn token, at first its last known one: the input of its next step. Nothing
    here waits for the device. Marks (counts) are kept for the slots whose parameters need them, ends of messages with
    ends_marked for all. script: what is drawn instead, of requests with log-probabilities, which no graph draws for. allowed:
    masks of what may be drawn, by slot, in an engine that has them: of the same device.
    """

    def __init__(
        self, slots: int, vocab_size: int, device: torch.device, dtype: torch.dtype, *, ends_marked: bool = False,
        allowed: AllowedTokens | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"logits are sampled in float32 or float64, not {dtype}")
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.dtype = dtype
        self._ends_marked = ends_marked
        self.state = SlotState.allocate(slots, vocab_size, self.device)
        self.next_tokens = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self._features = [Features()] * slots
        self._logprobs: list[int | None] = [None] * slots
        self._reporting, self._dependent, self._helped = set[int](), set[int](), set[int]()  # slots, see the questions below
        self._held_draws = [0] * slots  # draws until min_tokens is surely reached
        self.script: Script | None = None
        self.allowed = allowed

    def admit(self, admissions: Sequence[Admission]) -> None:
        """Installs each request's parameters in its slot, with the tokens that it has already generated counted."""
        for admission in admissions:
            self._install(admission)

    def await_masks(self) -> None:
        """A step is on its way: what is drawn of it may be masked now."""
        if self.allowed is not None:
            self.allowed.send()

    def draw(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Drawn:
        """Draws one token for each row of logits [R, V], in the sampler's dtype.

        slots: R different slots. positions: of the tokens being drawn, which with the seed decide the noise.
        """
        where = self._upload([slots, positions])  # [2, R]
        return self.draw_at(logits, slots, where[0], where[1])

    def draw_at(self, logits: Tensor, slots: Sequence[int], where: Tensor, positions: Tensor) -> Drawn:
        """As `draw`, with the slots also on the device, as `where` [R] int64, and the positions [R] int64 only there."""
        return self.drawn(logits, self.tokens_at(logits, slots, where, positions, where), slots)

    def tokens_at(
        self, logits: Tensor, slots: Sequence[int], where: Tensor, positions: Tensor, counted: Tensor,
        against: Against | None = None,
    ) -> Tensor:
        """The device's part of `draw_at`. counted [R] int64: the slots again, or padding for rows whose tokens do not count.
        against: drafts of the rows.
        """
        if runs_triton(logits) and self.draws_on_device(slots) and self.script is None:
            return self.draw_on_device(logits, counted, positions, against)
        tokens = self.tokens_of(logits, slots, where, positions, against)
        self._count(counted, tokens, [self._features[slot] for slot in slots])
        return tokens

    def tokens_of(
        self, logits: Tensor, slots: Sequence[int], where: Tensor, positions: Tensor, against: Against | None = None
    ) -> Tensor:
        """As `tokens_at`, of `independent` slots, each as often as it may be. They are not counted."""
        if self.script is not None:
            return self.script.tokens(where, positions)
        self._forbid(logits, where, positions)
        return sample(logits, self.state, where, positions, [self._features[slot] for slot in slots], against)

    def reports(self, slots: Sequence[int]) -> bool:
        """Whether one of these slots asked for log-probabilities."""
        return not self._reporting.isdisjoint(slots)

    def independent(self, slots: Sequence[int]) -> bool:
        """Whether these slots' draws depend on no tokens generated before them, so that nothing has to be counted first."""
        return self._dependent.isdisjoint(slots)

    def draws_on_device(self, slots: Sequence[int]) -> bool:
        """Whether `draw_on_device` draws what these slots want."""
        return self._helped.isdisjoint(slots)

    def draw_on_device(
        self, logits: Tensor, where: Tensor, positions: Tensor, against: Against | None = None
    ) -> Tensor:
        """The device's part of a draw that needs no host, so that a graph can hold it: tokens [R], counted as generated."""
        self._forbid(logits, where, positions)
        return draw_on_device(logits, self.state, where, positions, self.next_tokens, against)

    def drawn(self, logits: Tensor, tokens: Tensor, slots: Sequence[int]) -> Drawn:
        """The host's part of a draw: tokens [R] drawn from logits [R, V] for `slots`, with what they asked for beside them."""
        self.note_draw(slots)
        return Drawn(tokens, self.scored(logits, tokens, slots))

    def note_draw(self, slots: Sequence[int]) -> None:
        """Each of `slots` has generated a token or more."""
        for slot in self._dependent.intersection(slots):
            if self._features[slot].held_open:
                self._held_draws[slot] -= 1
                if self._held_draws[slot] == 0:
                    self._set_features(slot, replace(self._features[slot], held_open=False))

    def score(self, logits: Tensor, tokens: Tensor, k: int) -> TokenScores:
        """Log-probabilities of tokens [N] int64 under logits [N, V], with k alternatives to each."""
        return TokenScores(tokens, *top_logprobs(logits, tokens, k), (k,) * tokens.shape[0])

    def _forbid(self, logits: Tensor, where: Tensor, positions: Tensor) -> None:
        if self.allowed is not None:
            self.allowed.forbid(logits, where, positions)

    def _install(self, admission: Admission) -> None:
        slot, request, p = admission.slot, admission.request, admission.request.params
        if self.script is not None:
            self.script.begin(slot, request)
        if self.allowed is not None:
            self.allowed.admit(admission)
        features = _features_of(request, self.vocab_size)
        held_draws = max(0, p.min_tokens - len(admission.output)) if features.held_open else 0
        self._set_features(slot, replace(features, held_open=held_draws > 0))
        self._held_draws[slot] = held_draws
        self._logprobs[slot] = p.logprobs
        _put(self._reporting, slot, p.logprobs is not None)
        self.next_tokens[slot].fill_((admission.output or request.prompt)[-1])  # an assignment would wait for the device
        temperature = max(p.temperature, _COLDEST) if p.temperature > 0 else 0.0
        numbers = (temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.repetition_penalty)
        seed = (request.seed + 2**63) % 2**64 - 2**63
        self.state.integers[slot] = self._upload([seed, min(p.top_k, self.vocab_size), p.min_tokens, len(admission.output)])
        self.state.numbers[slot] = self._upload(numbers, torch.float64)
        self._set_bias(slot, _biased(p.logit_bias, self.vocab_size), p.logit_bias)
        self._set_marks(admission)

    def _set_features(self, slot: int, features: Features) -> None:
        self._features[slot] = features
        _put(self._dependent, slot, features.penalised or features.held_open)
        _put(self._helped, slot, not draws_on_device(features))

    def _set_bias(self, slot: int, tokens: Sequence[int], bias: Mapping[int, float]) -> None:
        self.state.bias_tokens[slot].zero_()[: len(tokens)] = self._upload(tokens)
        self.state.bias_values[slot].zero_()[: len(tokens)] = self._upload([bias[t] for t in tokens], torch.float64)

    def _set_marks(self, admission: Admission) -> None:
        marks = self.state.marks[admission.slot].zero_()  # [V]
        if self._features[admission.slot].penalised:
            marks.index_fill_(0, self._upload(admission.request.prompt), IN_PROMPT)
            output = self._upload(admission.output)
            marks.index_add_(0, output, torch.full_like(output, GENERATED_ONCE, dtype=torch.int32))
        if self._ends_marked or self._features[admission.slot].held_open:
            ends = self._upload(_in_vocabulary(admission.request.end_ids, self.vocab_size))
            marks[ends] += ENDS_MESSAGE

    def _count(self, where: Tensor, tokens: Tensor, features: Sequence[Features]) -> None:
        self.next_tokens[where] = tokens
        self.state.count_generated(where)
        if any(f.penalised for f in features):
            self.state.marks[where, tokens] += GENERATED_ONCE

    def scored(self, logits: Tensor, tokens: Tensor, slots: Sequence[int]) -> Scored:
        """Log-probabilities of tokens [R] under logits [R, V], perhaps of fewer bits, for the slots that asked for them."""
        asked = [(row, k) for row, slot in enumerate(slots) if (k := self._logprobs[slot]) is not None]
        if not asked:
            return Scored()
        rows, counts = zip(*asked, strict=True)
        if len(rows) < len(slots):
            where = self._upload(rows)
            logits, tokens = logits[where], tokens[where]
        return Scored(rows, TokenScores(tokens, *top_logprobs(logits.to(self.dtype), tokens, max(counts)), counts))

    def _upload(self, values: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        """Host numbers on the device, without waiting for it."""
        return torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)


def _in_vocabulary(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Of any tokens each one once, without those that the model has no logit for, which no draw could return."""
    return [token for token in dict.fromkeys(tokens) if token < vocab_size]


def _biased(bias: Mapping[int, float], vocab_size: int) -> list[int]:
    """The tokens that logit_bias really changes."""
    return [token for token in _in_vocabulary(bias, vocab_size) if bias[token] != 0]


def _features_of(request: Request, vocab_size: int) -> Features:
    p = request.params
    return Features(
        greedy=p.temperature == 0,
        top_k=min(p.top_k, vocab_size),
        nucleus=p.top_p < 1,
        bias_entries=len(_biased(p.logit_bias, vocab_size)),
        penalised=(p.presence_penalty, p.frequency_penalty, p.repetition_penalty) != (0, 0, 1),
        held_open=p.min_tokens > 0 and bool(_in_vocabulary(request.end_ids, vocab_size)),
    )


def _put(slots: set[int], slot: int, there: bool) -> None:
    """The slot is one of them, or not."""
    (slots.add if there else slots.discard)(slot)
