"""Measure what the prefix cache saves, in this process: the second turn about a document, and requests that begin alike.

--document 24000 is a document of so many tokens, asked about twice: the second time its keys, values and states are there.
Then once more with another document in between, which with a small --cache-bytes takes the first one's place: it comes back
from host memory, if --ram-cache-bytes has any, or where that is too little for both from --ssd-cache.
--crowd 64x5820 is 64 requests at once that have 5,820 tokens in common, beside the sum of its parts: those tokens computed
once, and the requests behind them. Prompts are random token ids, so that no time goes into text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from headrace.bench.engine_settings import EngineSettings, engine_setting
from headrace.config import setting
from headrace.errors import ConfigError

_DEFAULT_DOCUMENT, _DEFAULT_CROWD = (24_000,), ("64x5820",)
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench prefix`."""

    document: tuple[int, ...] = setting(
        (), "Tokens of a document; 24000 if neither a document nor a crowd is given.", metavar="N"
    )
    crowd: tuple[str, ...] = setting(
        (), "Requests at once and the tokens that they share; 64x5820 if neither a document nor a crowd is given.",
        metavar="USERSxSHARED",
    )
    question_tokens: int = setting(64, "Tokens of each prompt beyond a document, or what is shared.", metavar="N")
    output_tokens: int = setting(32, "Tokens of each answer.", metavar="N")
    repeat: int = setting(3, "Times that each is measured; the median is told.", metavar="N")
    chunk_tokens: int | None = engine_setting("chunk_tokens")
    context: int | None = engine_setting("context")
    max_seqs: int | None = engine_setting(
        "max_seqs", "Most sequences that run at once; as many as the largest crowd if not given."
    )
    gpu_checkpoint_bytes: int | None = engine_setting("gpu_checkpoint_bytes")
    cache_bytes: int | None = engine_setting("cache_bytes")
    ram_cache_bytes: int = engine_setting("ram_cache_bytes")
    ssd_cache: str | None = engine_setting("ssd_cache")
    ssd_cache_bytes: int = engine_setting("ssd_cache_bytes")


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. `documents` and `crowds` have an entry for each asked for; `turns` and `times` are the repeats."""
    asked = settings.document or settings.crowd
    documents = settings.document if asked else _DEFAULT_DOCUMENT
    crowds = [_numbers(text) for text in (settings.crowd if asked else _DEFAULT_CROWD)]
    for name in ("question_tokens", "output_tokens", "repeat"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(settings, name)}")
    if any(tokens < 1 for tokens in documents):
        raise ConfigError(f"--document must be 1 or more, not {min(documents)}")
    from headrace.bench.prefix_reuse import Conversation, Crowd, PrefixLLM

    engine = {"max_seqs": max([1, *(users for users, _ in crowds)]), **settings.engine()}
    question, output = settings.question_tokens, settings.output_tokens
    with PrefixLLM(settings.model, **engine) as llm:
        console.print(f"{llm.info.model} on {llm.info.device}, {llm.info.dtype}, chunks of {llm.info.chunk_tokens} tokens")
        for note in llm.info.notes:
            console.print(note)
        _check_context(llm.info.context, documents, crowds, settings)
        llm.crowd(Crowd(2, _WARM_UP_TOKENS, 1, 2))
        results: dict[str, Any] = {"model": llm.info.model, "documents": [], "crowds": []}
        for tokens in documents:
            conversation = Conversation(tokens, question, output)
            without = llm.turns(conversation, opted_out=True)
            turns = [llm.turns(conversation) for _ in range(settings.repeat)]
            between = _median([llm.interleaved(conversation) for _ in range(settings.repeat)], "turn_2_ttft_ms")
            found = {**_median(turns, "turn_2_of_turn_1"), "uncached_turn_2_ttft_ms": without["turn_2_ttft_ms"]}
            found |= {"interleaved": between, "turns": turns}
            results["documents"].append(found)
            _print_document(console, found)
        for users, shared in crowds:
            times = [llm.crowd(Crowd(users, shared, question, output)) for _ in range(settings.repeat)]
            found = {**_median(times, "of_parts"), "times": times}
            results["crowds"].append(found)
            _print_crowd(console, found)
    return results


def _numbers(text: str) -> tuple[int, int]:
    """AxB."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ConfigError(f"--crowd {text}: two numbers are wanted, such as 64x5820")
    return int(match[1]), int(match[2])


def _check_context(
    context: int, documents: tuple[int, ...], crowds: list[tuple[int, int]], settings: Settings
) -> None:
    """Raise ConfigError for what is longer than any sequence, before anything is measured."""
    question, output = settings.question_tokens, settings.output_tokens
    for flag, tokens in [
        *((f"--document {tokens}", tokens + output + question + output) for tokens in documents),
        *((f"--crowd {users}x{shared}", shared + question + output) for users, shared in crowds),
    ]:
        if tokens > context:
            raise ConfigError(f"{flag} needs {tokens} tokens with questions and answers, but the context holds {context}")


def _median(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Of several measurements the one that is the median by this figure."""
    return sorted(found, key=lambda each: each[name])[(len(found) - 1) // 2]


def _print_document(console: Console, found: dict[str, Any]) -> None:
    console.print(
        f"a document of {found['document_tokens']} tokens: first token after {found['turn_1_ttft_ms']:.1f} ms; turn 2, "
        f"{found['cached_tokens']} of {found['turn_2_tokens']} tokens cached: {found['turn_2_ttft_ms']:.1f} ms, "
        f"{found['turn_2_of_turn_1']:.2%} (without the cache {found['uncached_turn_2_ttft_ms']:.1f} ms)"
    )
    between = found["interleaved"]
    where = "SSD" if between["ssd_hits"] else "host memory" if between["restores"] else "the device"
    copies = ", ".join(f"{each} {between['restore_ms'][each]:.1f} ms" for each in sorted(between["restore_ms"]))
    console.print(
        f"  with another document in between {between['turn_2_ttft_ms']:.1f} ms, {between['cached_tokens']} tokens from {where}"
        + (f" (copies from {copies})" if copies else "")
    )


def _print_crowd(console: Console, found: dict[str, Any]) -> None:
    console.print(
        f"{found['users']} x ({found['shared_tokens']} shared + {found['question_tokens']}) + {found['output_tokens']} tokens: "
        f"{found['all_s']:.3f} s, {found['of_parts']:.3f} x its parts ({found['prefix_s']:.3f} s for what is shared, "
        f"{found['behind_prefix_s']:.3f} s behind it); {found['cached_tokens']} tokens cached, first tokens after "
        f"{found['ttft_ms']['p50']:.1f} ms"
    )
