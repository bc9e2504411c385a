"""The frozen messages that carry a request through headrace: Request -> StepPlan -> StepResult -> TokenEvent.

The front (HTTP, `LLM`) makes Requests and reads TokenEvents. The scheduler makes StepPlans and commits
StepResults. The runner turns the one into the other. Nothing else is shared between them. What is made for every row of every
step is a msgspec.Struct, which takes a tenth of a frozen dataclass's time to make; `msgspec.structs.replace` changes one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import Struct

from headrace.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "error"]

MAX_LOGPROBS = 20
"""The most alternatives that `logprobs` and `prompt_logprobs` may ask for."""
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
"""The longest stop string. It travels with each of `n` requests, and looking for it takes memory for each character."""
MAX_STOP_IDS = 1024
MAX_SALT_CHARS = 1024
MAX_CHOICES = 128
MAX_LOGIT_BIAS = 1024
MOST_DRAFTS = 15
"""Of a row, which has a token more."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when a message ends.

    The order of operations on one position's logits: logit_bias, repetition / presence / frequency penalty, EOS and
    stop ids masked until `min_tokens`, temperature, top_k, top_p, min_p, then a Gumbel-max draw with noise keyed by
    (seed, position, token id). Reported log-probabilities are those of the model's own logits, before any of these; where a
    mask says which tokens are allowed, of these alone.

    n: independent completions. seed: None draws one. temperature: 0 is greedy. top_k: 0 or -1 is off. top_p, min_p: 1.0 and
    0.0 are off. presence_penalty and frequency_penalty count generated tokens; repetition_penalty counts prompt and
    generated tokens. logit_bias: token id -> number added to its logit. logprobs, prompt_logprobs: how many alternatives to
    report beside the token itself; None reports nothing. stop: strings that end the message and are left out of its text.
    stop_token_ids: tokens that end it. min_tokens: EOS and stop ids cannot be drawn before. max_tokens: None runs to the
    end of the context. cache_prompt: False keeps the prompt out of the prefix cache. cache_salt: requests share cached
    prefixes only with requests of the same salt.

    Raises RequestError naming the field whose value can never work.
    """

    n: int = 1
    seed: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    cache_prompt: bool = True
    cache_salt: str = ""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        _check_types(self)
        object.__setattr__(self, "top_k", max(0, self.top_k) if self.top_k >= -1 else self.top_k)
        _check_numbers(self)
        _check_lists(self)


def _require(ok: bool, param: str, rule: str, value: object) -> None:
    if not ok:
        raise RequestError(f"{param} must be {rule}, not {value!r}", param=param)


_WHOLE = ("n", "seed", "top_k", "logprobs", "prompt_logprobs", "min_tokens", "max_tokens")
_MAY_BE_NONE = ("seed", "logprobs", "prompt_logprobs", "max_tokens")
_REAL = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def _check_types(p: SamplingParams) -> None:
    """HTTP bodies come with the right types; keywords in Python may not."""
    for name in _WHOLE:
        value = getattr(p, name)
        _require(type(value) is int or (value is None and name in _MAY_BE_NONE), name, "an integer", value)
    for name in _REAL:
        value = getattr(p, name)
        _require(isinstance(value, int | float) and not isinstance(value, bool), name, "a number", value)
    _require(isinstance(p.cache_salt, str), "cache_salt", "a string", p.cache_salt)


def _check_numbers(p: SamplingParams) -> None:
    _require(1 <= p.n <= MAX_CHOICES, "n", f"from 1 to {MAX_CHOICES}", p.n)
    _require(p.seed is None or -(2**63) <= p.seed < 2**63, "seed", "a 64-bit integer", p.seed)
    _require(math.isfinite(p.temperature) and 0 <= p.temperature <= 100, "temperature", "from 0 to 100", p.temperature)
    _require(p.top_k >= 0, "top_k", "-1, 0 or more", p.top_k)
    _require(0 < p.top_p <= 1, "top_p", "above 0 and at most 1", p.top_p)
    _require(0 <= p.min_p <= 1, "min_p", "from 0 to 1", p.min_p)
    _require(-2 <= p.presence_penalty <= 2, "presence_penalty", "from -2 to 2", p.presence_penalty)
    _require(-2 <= p.frequency_penalty <= 2, "frequency_penalty", "from -2 to 2", p.frequency_penalty)
    _require(0 < p.repetition_penalty <= 100, "repetition_penalty", "above 0 and at most 100", p.repetition_penalty)
    for name, count in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        _require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"from 0 to {MAX_LOGPROBS}", count)
    _require(p.min_tokens >= 0, "min_tokens", "0 or more", p.min_tokens)
    _require(p.max_tokens is None or p.max_tokens >= 0, "max_tokens", "0 or more", p.max_tokens)
    _require(p.max_tokens is None or p.min_tokens <= p.max_tokens, "min_tokens", "at most max_tokens", p.min_tokens)


def _check_lists(p: SamplingParams) -> None:
    _require(len(p.stop) <= MAX_STOP_STRINGS, "stop", f"at most {MAX_STOP_STRINGS} strings", len(p.stop))
    _require(all(isinstance(s, str) and s for s in p.stop), "stop", "non-empty strings", list(p.stop))
    longest = max(map(len, p.stop), default=0)
    _require(longest <= MAX_STOP_CHARS, "stop", f"strings of at most {MAX_STOP_CHARS} characters", longest)
    count = len(p.stop_token_ids)
    _require(count <= MAX_STOP_IDS, "stop_token_ids", f"at most {MAX_STOP_IDS} token ids", count)
    _require(all(isinstance(t, int) and t >= 0 for t in p.stop_token_ids), "stop_token_ids", "token ids",
             list(p.stop_token_ids))
    _require(len(p.cache_salt) <= MAX_SALT_CHARS, "cache_salt", f"at most {MAX_SALT_CHARS} characters", len(p.cache_salt))
    _require(len(p.logit_bias) <= MAX_LOGIT_BIAS, "logit_bias", f"at most {MAX_LOGIT_BIAS} entries", len(p.logit_bias))
    for token, bias in p.logit_bias.items():
        _require(isinstance(token, int) and token >= 0, "logit_bias", "keyed by token ids", token)
        _require(-100 <= bias <= 100, "logit_bias", "from -100 to 100", bias)


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to make: a prompt and everything that decides its tokens (`n` choices are `n` requests).

    prompt: token ids, at least one. seed: always set; the same request with the same seed gives the same tokens.
    max_tokens: resolved against the context, so prompt + max_tokens <= context. eos_ids: tokens of the model that end the
    message (empty under ignore_eos); params.stop_token_ids end it too. arrival_s: the front's monotonic clock. message_ends:
    token counts of the prompt, rising, at which a message in it ends. salt: who may share what is cached of it.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    max_tokens: int
    eos_ids: tuple[int, ...] = ()
    arrival_s: float = 0.0
    message_ends: tuple[int, ...] = ()
    salt: str = ""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens that end the message."""
        return self.eos_ids + self.params.stop_token_ids


@dataclass(frozen=True, slots=True)
class PageUpdate:
    """Pages newly given to a sequence: entries first, first + 1, ... of its page list in cache group `group`."""

    group: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Page `source` of cache group `group` is copied to page `target` of it."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The state that a slot has before a step's rows, accepted drafts included, is copied to a checkpoint slot."""

    slot: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence takes a slot. The runner clears the slot (states, counts) and installs its sampling parameters, and the last
    token that is known as its next.

    output: tokens generated before a preemption; they count for penalties and are replayed by the rows that follow. start:
    tokens that are cached: its rows begin there. pages: what holds them. checkpoint: the checkpoint slot with the state there;
    None where the model has none, nothing is cached, or it comes from host memory. restored: then the step whose plan brings
    it and the pages, this one or one before.
    """

    sequence: int
    slot: int
    request: Request
    output: tuple[int, ...] = ()
    start: int = 0
    pages: tuple[PageUpdate, ...] = ()
    checkpoint: int | None = None
    restored: int | None = None


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Between the device and host memory: pages and states that are kept there too, then pages and states that come back.

    to_host: pages by device page and host page; states: by checkpoint slot and host checkpoint; from_host: by host page and
    device page; resumed: by slot and host checkpoint. Rows of the plan do not wait for what comes back, but those of sequences
    that it admits as restored by it. waits: the plan may overwrite what an earlier one copies to host memory or brings
    back, and behind its own copies what these read.
    """

    to_host: tuple[PageCopy, ...] = ()
    states: tuple[StateCopy, ...] = ()
    from_host: tuple[PageCopy, ...] = ()
    resumed: tuple[StateCopy, ...] = ()
    waits: bool = False


class Row(Struct, frozen=True, gc=False):
    """One sequence's share of a step. Prefill, decode and verification differ only in these numbers.

    start: position of the first token (a lower bound while earlier steps are uncommitted). tokens: certain tokens known to
    the host; empty means one token, the slot's next input token, which is on the device. drafts: proposals after them, which a
    row of at most 16 tokens in all may have. asked: how many the drafter on the device is to propose instead, for a row without
    tokens and drafts that the host knows. samples: whether the row ends in a sampled token (False for a chunk that stops inside
    the prompt); each accepted draft makes it one more.
    """

    sequence: int
    slot: int
    start: int
    tokens: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    page_updates: tuple[PageUpdate, ...] = ()
    samples: bool = True
    asked: int = 0

    @property
    def draft_count(self) -> int:
        """Drafts of either kind."""
        return len(self.drafts) or self.asked


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the runner does next, in this order: checkpoints, copies to host memory, page copies, copies from host memory,
    admissions, the rows as one batch.
    """

    step: int
    admissions: tuple[Admission, ...]
    rows: tuple[Row, ...]
    page_copies: tuple[PageCopy, ...] = ()
    checkpoints: tuple[StateCopy, ...] = ()
    host: HostCopies | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token under the model's own distribution, and its best alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RowResult(Struct, frozen=True, gc=False):
    """What a row produced: sampled tokens in order (empty for an unfinished prompt), and log-probabilities if asked for.

    prompt_logprobs: for prompt positions start + 1 ... start + n of the row, as many as the prompt holds. proposes: how many
    drafts the drafter on the device has for what follows, at most. error: why the request cannot go on, if so: its tokens here
    are nobody's.
    """

    sequence: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    proposes: int = MOST_DRAFTS
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One RowResult for each row of the plan, in the plan's order. waited_s: how long the host waited for the device to be done
    with this step.
    """

    step: int
    rows: tuple[RowResult, ...]
    waited_s: float = 0.0


class TokenEvent(Struct, frozen=True, gc=False):
    """News of one request, from the engine to the front.

    tokens: newly committed tokens, an ending EOS or stop token included. prompt_logprobs: sent once, with the first
    tokens; the first prompt token has no entry, so there are len(prompt) - 1. finish_reason ends the request, and nothing
    follows it; stop_reason is the stop token id that ended it, error a message for finish_reason "error". drafted_tokens,
    accepted_tokens: of the request so far.
    """

    request: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0


RESTORE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper ends of what `RestoreTimes` counts apart; one more counts what took longer."""


@dataclass(frozen=True, slots=True)
class RestoreTimes:
    """Of restores from a tier: seconds in all, and how many took how long."""

    tier: str
    sum_s: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges and running totals of the engine, as /metrics shows them.

    kv_pages_used: by running sequences; kv_pages_cached: kept for later ones, and given up where pages are short; *_bytes: of
    these, host_* of what is in host memory, ssd_bytes of files. Each request that begins is a hit, whose prompt begins with
    something cached, or a miss, for a reason; prefix_short are hits that might have been longer, by the reason why they are
    not. restores_total: sequences that began, or after a preemption went on, with something from host memory; ssd_hits_total:
    requests that had it read from SSD before. ssd_waiting: entries that wait to be written. ssd_misses: entries that could not
    be read; ssd_dropped: entries that were not written. drafted, accepted: drafts verified, and accepted, by their number in a
    row. draft_tokens_chosen: of all rows of the last step; draft_gain: what drafts are expected to add to the tokens a second,
    0.5 is half as much more; draft_break_even: the least chance of a draft with which they pay.
    """

    steps: int = 0
    requests_running: int = 0
    requests_waiting: int = 0
    preemptions_total: int = 0
    kv_pages_used: int = 0
    kv_pages_total: int = 0
    slots_used: int = 0
    slots_total: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    cached_tokens_total: int = 0
    kv_pages_cached: int = 0
    kv_cached_bytes: int = 0
    checkpoints_used: int = 0
    checkpoints_total: int = 0
    checkpoint_bytes: int = 0
    host_pages_bytes: int = 0
    host_checkpoint_bytes: int = 0
    restores_total: int = 0
    prefix_hits_total: int = 0
    prefix_misses: tuple[tuple[str, int], ...] = ()
    prefix_short: tuple[tuple[str, int], ...] = ()
    restore_times: tuple[RestoreTimes, ...] = ()
    ssd_bytes: int = 0
    ssd_waiting: int = 0
    ssd_hits_total: int = 0
    ssd_misses: tuple[tuple[str, int], ...] = ()
    ssd_dropped: tuple[tuple[str, int], ...] = ()
    ssd_read_bytes_total: int = 0
    ssd_written_bytes_total: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    draft_tokens_chosen: int = 0
    draft_gain: float = 0.0
    draft_break_even: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine is: sent once, when it is ready.

    notes: what `auto` settings were resolved to and why, a line each. budget: (name, bytes) of every memory line.
    """

    model: str
    device: str
    dtype: str
    context: int
    max_seqs: int
    chunk_tokens: int
    page_tokens: int
    kv_pages: int
    vocab_size: int
    notes: tuple[str, ...] = ()
    budget: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished completion, as `LLM.generate` returns it.

    tokens include an ending EOS or stop token; text does not, and ends before a stop string.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    index: int = 0
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
