"""The options of `headrace bench serve`, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.arrivals import KINDS
from headrace.bench.workload import Chats, Lengths, PromptFile, TokenIds, WarmUp, Workload
from headrace.config import setting
from headrace.errors import ConfigError

WORKLOADS = ("random", "shared-prefix", "text", "chats")
DRAWN = ("random", "shared-prefix")
"""Workloads of random token ids."""
USUAL_IDS = "1000-31999"
OWN_FIELDS = frozenset({"model", "stream", "stream_options", "n", "prompt", "messages", "max_tokens"})
"""Of a request's body, which --body cannot set."""
POSITIVE = (
    "concurrency", "rate", "requests", "prefix_groups", "turns", "timeout_s", "sample_s", "goodput_ttft_ms",
    "goodput_tpot_ms",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of `headrace bench serve`."""

    url: str = setting("http://127.0.0.1:8000", "Where the server is.")
    api_key: str | None = setting(None, "The key that the server wants.", metavar="K")
    model: str | None = setting(None, "Name of the model; the first one that the server lists if not given.")
    workload: str = setting(
        "random", "What is asked: random token ids, the same after common prefixes, prompts of a file (--prompts), or made-up "
        "conversations of several turns.", choices=WORKLOADS
    )
    concurrency: tuple[int, ...] = setting((), "Users at once, each waiting for answers; 1 if no --rate is given.", metavar="N")
    rate: tuple[float, ...] = setting((), "Requests (conversations) a second, whether answered or not.", metavar="R")
    arrivals: str = setting("poisson", "How --rate spaces requests: at random, or evenly.", choices=KINDS)
    requests: int | None = setting(
        None, "Requests in a run, or conversations of --turns requests; 4 for each user and at least 8, or 64 with --rate, if "
        "not given.", metavar="N"
    )
    warmup: int | None = setting(
        None, "Requests before each run that are not measured; one for each user, or 4 with --rate, if not given.", metavar="N"
    )
    seed: int = setting(0, "The same seed asks the same; another one finds no prompt in the server's cache.", metavar="N")
    input_tokens: str = setting(
        "1024", "Tokens of a prompt, or words of a turn of chats; a number or a range.", metavar="N|N-N"
    )
    output_tokens: str = setting("128", "Most tokens of an answer; a number or a range.", metavar="N|N-N")
    ignore_eos: bool | None = setting(
        None, "Whether answers go on to their full length; yes for random and shared-prefix if not given."
    )
    prefix_tokens: int = setting(
        0, "Tokens before the prompts of shared-prefix, or words of a document before chats.", metavar="N"
    )
    prefix_groups: int = setting(1, "How many different prefixes or documents there are.", metavar="N")
    turns: int = setting(3, "Requests in a conversation of chats.", metavar="N")
    prompts: str | None = setting(
        None, 'For text, a file of JSON lines with "prompt" or "messages" and any other field of a request.', metavar="FILE"
    )
    token_ids: str | None = setting(
        None, "The range that random token ids are drawn from; 1000-31999 if not given, or those of the server's model, if it "
        "says that they are fewer.", metavar="N-N"
    )
    body: str = setting("{}", 'More fields of every request\'s body, such as {"temperature": 0}.', metavar="JSON")
    timeout_s: float = setting(600.0, "Seconds after which a request has failed.", metavar="S")
    sample_s: float = setting(0.5, "Seconds between two looks at the server's /metrics.", metavar="S")
    goodput_ttft_ms: float | None = setting(None, "Count answers whose first token came within this time.", metavar="MS")
    goodput_tpot_ms: float | None = setting(None, "Count answers whose other tokens took at most this each.", metavar="MS")
    raw: bool = setting(False, "Keep every request's own times, with --json.")


@dataclass(frozen=True, slots=True)
class Level:
    """The load of one run."""

    users: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        return f"concurrency {self.users}" if self.users else f"rate {self.rate:g}"

    def requests(self, settings: Settings) -> int:
        return settings.requests or (max(8, 4 * self.users) if self.users else 64)

    def warm_up(self, settings: Settings) -> int:
        return (self.users or 4) if settings.warmup is None else settings.warmup


def levels(settings: Settings) -> list[Level]:
    users = settings.concurrency or (() if settings.rate else (1,))
    return [Level(users=each) for each in users] + [Level(rate=each) for each in settings.rate]


def ids_within(vocab_size: int) -> str:
    """Token ids to draw from, of a model that has so many: none of the first, of which some are special, unless it has few."""
    usual = Lengths.of(USUAL_IDS, "--token-ids")
    most = max(1, min(usual.most, vocab_size - 1))
    return f"{min(usual.least, -(-most // 2))}-{most}"


def make_workload(settings: Settings, seed: str) -> Workload:
    """Raises ConfigError naming the flag, or the line of the file, that cannot work."""
    inputs, outputs = Lengths.of(settings.input_tokens, "--input-tokens"), _outputs(settings)
    ids = Lengths.of(settings.token_ids or USUAL_IDS, "--token-ids")
    match settings.workload:
        case "text":
            return PromptFile.read(Path(settings.prompts or ""), outputs)
        case "chats":
            return Chats(seed, settings.turns, inputs, outputs, settings.prefix_tokens, settings.prefix_groups)
        case "shared-prefix":
            return TokenIds(seed, inputs, outputs, ids, settings.prefix_tokens, settings.prefix_groups)
    return TokenIds(seed, inputs, outputs, ids)


def make_warm_up(settings: Settings, seed: str) -> Workload:
    """The same kind of requests, none of which leaves a measured one's prompt in the server's cache."""
    return WarmUp(_outputs(settings)) if settings.workload == "text" else make_workload(settings, seed)


def _outputs(settings: Settings) -> Lengths:
    return Lengths.of(settings.output_tokens, "--output-tokens")


def common_fields(settings: Settings) -> Mapping[str, Any]:
    """What every request's body has. Raises ConfigError for a --body that is none."""
    try:
        fields = json.loads(settings.body)
    except ValueError as error:
        raise ConfigError(f"--body: {error}") from None
    if not isinstance(fields, dict) or OWN_FIELDS & fields.keys():
        raise ConfigError(f"--body must be a JSON object without {', '.join(sorted(OWN_FIELDS))}")
    goes_on = settings.workload in DRAWN if settings.ignore_eos is None else settings.ignore_eos
    return {**fields, "ignore_eos": True} if goes_on else fields


def check(settings: Settings) -> None:
    """Raises ConfigError naming a flag whose value cannot work."""
    for name in POSITIVE:
        value = getattr(settings, name)
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None and not each > 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be more than 0, not {each!r}")
    if settings.warmup is not None and settings.warmup < 0:
        raise ConfigError(f"--warmup must be 0 or more, not {settings.warmup}")
    if settings.prefix_tokens < 0 or (settings.workload == "shared-prefix" and settings.prefix_tokens == 0):
        raise ConfigError("--workload shared-prefix needs --prefix-tokens of at least 1")
    if (settings.workload == "text") != (settings.prompts is not None):
        raise ConfigError("--workload text and --prompts FILE need each other")
    make_workload(settings, "")
    common_fields(settings)
