"""Measure LLM.generate in this process: prompts computed, first tokens, tokens a second, and the memory that it took.

--load 64x1024+128 is 64 prompts of 1,024 tokens at once, each answered by 128 tokens; --arrival 8x1024+32768 is a prompt of
32,768 tokens that arrives while 8 sequences of 1,024 tokens decode. Each may be given several times. Prompts are random.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.bench.engine_settings import EngineSettings, engine_setting
from headrace.config import setting
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.generation import WatchedLLM

_DEFAULT_LOADS = ("1x1024+128", "8x1024+128", "32x1024+128", "64x1024+128")


@dataclass(frozen=True, slots=True)
class Settings(EngineSettings):
    """Options of `headrace bench generate`."""

    load: tuple[str, ...] = setting(
        (), "Users, tokens of each prompt and of each answer; 1, 8, 32 and 64 users with 1024 and 128 if neither a load nor an "
        "arrival is given.", metavar="USERSxPROMPT+OUTPUT",
    )
    arrival: tuple[str, ...] = setting(
        (), "Decoding rows, tokens of each, and tokens of the prompt that arrives beside them.", metavar="ROWSxCONTEXT+PROMPT"
    )
    chunk_tokens: int | None = engine_setting("chunk_tokens")
    context: int | None = engine_setting("context")


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `loads` and `arrivals` have an entry for each --load and --arrival, in this order."""
    loads = [_numbers("--load", text) for text in settings.load or (() if settings.arrival else _DEFAULT_LOADS)]
    arrivals = [_numbers("--arrival", text) for text in settings.arrival]
    from headrace.bench.generation import Arrival, Load, WatchedLLM

    most = max([64, *(users for users, _, _ in loads), *(rows + 1 for rows, _, _ in arrivals)])
    with WatchedLLM(settings.model, max_seqs=most, **settings.engine()) as llm:
        console.print(f"{llm.info.model} on {llm.info.device}, {llm.info.dtype}, chunks of {llm.info.chunk_tokens} tokens")
        for note in llm.info.notes:
            console.print(note)
        _check_context(llm.info.context, loads, arrivals)
        held_bytes = _held_bytes(llm)
        results: dict[str, Any] = {"model": llm.info.model, "chunk_tokens": llm.info.chunk_tokens, "loads": [], "arrivals": []}
        for numbers in loads:
            results["loads"].append(llm.measure(Load(*numbers)))
            _print_load(console, results["loads"][-1])
        for numbers in arrivals:
            results["arrivals"].append(llm.measure_arrival(Arrival(*numbers)))
            _print_arrival(console, results["arrivals"][-1])
        results["memory"] = _memory(llm, held_bytes)
        for part, bytes_ in results["memory"].items():
            console.print(f"memory, {part}: {bytes_['taken']:,} bytes taken of {bytes_['planned']:,} planned")
    return results


def _numbers(option: str, text: str) -> tuple[int, int, int]:
    """AxB+C."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)\+([1-9]\d*)", text)
    if match is None:
        raise ConfigError(f"{option} {text}: three numbers are wanted, such as 8x1024+128")
    return int(match[1]), int(match[2]), int(match[3])


def _check_context(
    context: int, loads: Sequence[tuple[int, int, int]], arrivals: Sequence[tuple[int, int, int]]
) -> None:
    """Raise ConfigError for what is longer than any sequence, before anything is measured."""
    from headrace.bench.generation import FIRST_TOKENS

    for flag, tokens in [
        *((f"--load {users}x{prompt}+{output}", prompt + output) for users, prompt, output in loads),
        *((f"--arrival {rows}x{held}+{prompt}", max(held + FIRST_TOKENS, prompt) + 1) for rows, held, prompt in arrivals),
    ]:
        if tokens > context:
            raise ConfigError(f"{flag} needs sequences of {tokens} tokens, but the context holds {context}")


def _held_bytes(llm: WatchedLLM) -> int:
    """What PyTorch has allocated, from where the most it has counts anew; nothing on a CPU."""
    import torch

    if llm.info.device != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _memory(llm: WatchedLLM, held_bytes: int) -> dict[str, dict[str, int]]:
    """Bytes of each part, as the start left them, but the workspace as these loads took it."""
    import torch

    memory = {part: {"planned": planned, "taken": taken} for part, (planned, taken) in llm.memory.items()}
    if memory:
        memory["workspace"]["taken"] = torch.cuda.max_memory_allocated() - held_bytes
    return memory


def _print_load(console: Console, found: dict[str, Any]) -> None:
    first, between = found["ttft_ms"], found["itl_ms"]
    parts = [
        f"{found['users']} x {found['prompt_tokens']} + {found['output_tokens']} tokens: prompts "
        f"{found['prompt_tokens_per_s']:.0f} tokens/s, first tokens after {first['p50']:.1f} ms (last {first['max']:.1f})"
    ]
    if between is not None:
        parts.append(
            f"decoding {found['decode_tokens_per_s']:.0f} tokens/s, {between['p50']:.2f} ms between tokens (p95 "
            f"{between['p95']:.2f})"
        )
    console.print("; ".join((*parts, f"{found['output_tokens_per_s']:.0f} tokens/s in all")))


def _print_arrival(console: Console, found: dict[str, Any]) -> None:
    console.print(
        f"{found['prompt_tokens']} tokens beside {found['rows']} rows of {found['context']}: mixed step "
        f"{found['mixed_step_ms']:.1f} ms, between the rows' tokens p95 {found['itl_ms']['p95']:.1f} ms "
        f"({found['p95_over_step']:.2f} x); prompt {found['prompt_tokens_per_s']:.0f} tokens/s, {found['of_alone']:.0%} of "
        f"{found['alone_tokens_per_s']:.0f} alone"
    )
