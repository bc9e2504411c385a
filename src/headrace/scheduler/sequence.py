"""One request on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.cache.prefix.lease import Lease
from headrace.scheduler.ssd_tier import Read
from headrace.types import MOST_DRAFTS, Admission, Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class Holding:
    """What a running sequence has: a state slot, and its pages."""

    slot: int
    lease: Lease


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, what it has generated, and how much of it is computed.

    planned: tokens given to the runner since the sequence last took a slot, and of drafts only those known to be accepted.
    drafted: drafts of uncommitted rows: so many tokens more may be computed. prefill_end: tokens known when it took the slot
    (prompt, and what was generated before a preemption), or all but the last: up to there rows carry tokens, from there on the
    slot's own next token, which at first is the last one known. in_flight, unseen: uncommitted rows, and how many of them will
    sample tokens. done: finished or cancelled, but rows are still in flight; what it holds is given back when the last one is
    committed, and what they sample is in `output` too, though nobody hears of it. frozen: where drafts are verified, the device
    computes nothing more of it. key: its known tokens as bytes, once they were looked up. arrival: how it will begin, while
    what it begins with comes from host memory. read: what it waited for to come from SSD; sought: how often it was looked
    for there; stateless: there are pages of it, and no state to go on from. cached_tokens: of the prompt, when it first took a
    slot. proposes: how many drafts the device's drafter has for it, as of the last row that is committed. drafts_made,
    drafts_kept: in all. ends: tokens that end its message.
    """

    id: int
    request: Request
    output: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    holding: Holding | None = None
    planned: int = 0
    drafted: int = 0
    prefill_end: int = 0
    in_flight: int = 0
    unseen: int = 0
    done: bool = False
    frozen: bool = False
    prompt_counted: bool = False
    key: bytes = b""
    arrival: Admission | None = None
    read: Read | None = None
    sought: int = 0
    stateless: bool = False
    cached_tokens: int | None = None
    proposes: int = MOST_DRAFTS
    drafts_made: int = 0
    drafts_kept: int = 0
    ends: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ends = frozenset(self.request.end_ids)

    @property
    def prefilling(self) -> bool:
        return self.planned < self.prefill_end

    @property
    def decodes(self) -> bool:
        """Whether its next row is one of its slot's next token; what begins in the plan in the making is not there yet."""
        there = self.holding is not None and self.arrival is None
        return there and self.planned >= self.prefill_end and self.tokens_left > 0

    @property
    def known(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt) + len(self.output)

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be sampled, those that uncommitted rows are sure to yield taken off."""
        return self.request.max_tokens - len(self.output) - self.unseen

    def room(self, tokens: int) -> int:
        """How many tokens are computed at most once the next row adds `tokens`: the last that is sampled never is."""
        most = len(self.request.prompt) + max(0, self.request.max_tokens - 1)
        return min(self.planned + self.drafted + tokens, most)

    def known_tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens start ... end - 1 of prompt and output."""
        prompt = self.request.prompt
        if end <= len(prompt):
            return prompt[start:end]
        known_output = tuple(self.output[max(0, start - len(prompt)) : end - len(prompt)])
        return prompt[start:] + known_output
