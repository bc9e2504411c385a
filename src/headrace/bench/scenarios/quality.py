"""Measure what types of cached keys, values and states cost in perplexity, and whether steps with drafts cost any.

Texts are followed token for token, by each --way: computed as prompts in chunks (prompts), generated one token a step (steps),
or with drafts, of which any number is right (drafts). --types bf16/fp32 are types of KV and of states; others are measured
against the first. With --free the model also writes so many tokens itself, without drafts and with them, which an engine in
float32 scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from headrace.bench.engine_settings import ModelSettings, engine_setting
from headrace.bench.perplexity import Losses, Measured, Types, losses_table
from headrace.bench.teacher import Teacher
from headrace.bench.token_texts import cut, read_tokens
from headrace.bench.written import PROMPT_TOKENS, Writing, Written, score, write
from headrace.config import KV_DTYPES, STATE_DTYPES, EngineConfig, setting
from headrace.engine.model_source import find_model, find_tokenizer
from headrace.errors import ConfigError
from headrace.plan.checkpoint import Model

WAYS = ("steps", "prompts", "drafts")
"""In this order: others are measured against steps."""
_TYPES = ("bf16/fp32", "bf16/fp16", "fp16/fp32", "int8/fp32", "fp8/fp32", "int8/fp16")


@dataclass(frozen=True, slots=True)
class Settings(ModelSettings):
    """Options of `headrace bench quality`."""

    cache_bytes: int | None = engine_setting("cache_bytes")
    text: tuple[str, ...] = setting(
        (), "Texts, of which in turn as much is taken: token ids in an .npy file, or text for the model's tokenizer.",
        metavar="FILE",
    )
    types: tuple[str, ...] = setting(
        (), "Types of KV and of states, the reference first; bf16/fp32, bf16/fp16, fp16/fp32, int8/fp32, fp8/fp32 and "
        "int8/fp16 if not given.", metavar="KV/STATE",
    )
    way: tuple[str, ...] = setting((), "How texts are followed: prompts, steps, drafts; all if not given.", metavar="WAY")
    tokens: int = setting(20_480, "Tokens of all texts.", metavar="N")
    length: int = setting(4096, "Tokens of each sequence.", metavar="N")
    max_seqs: int = setting(8, "Sequences at once.", metavar="N")
    free: int = setting(
        0, "Tokens that the model writes itself, with the first types and with those of the same KV and other states.",
        metavar="N",
    )
    speculate: str = engine_setting("speculate", "What drafts the tokens that the model writes itself; auto is lookup.")
    drafter: str | None = engine_setting("drafter")
    draft_tokens: int | None = engine_setting("draft_tokens")

    def config(self, types: Types, **settings: Any) -> EngineConfig:
        """Of an engine with these types of KV and states."""
        kv, state = types
        common: dict[str, Any] = {
            "random_weights": self.random_weights, "device": self.device, "dtype": self.dtype, "loop": self.loop,
            "graphs": self.graphs, "cache_bytes": self.cache_bytes, "kv_dtype": kv, "state_dtype": state,
            "context": self.length, "max_seqs": self.max_seqs, "prefix_cache": "off",
        }
        return EngineConfig(**common | settings)


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `followed` has an entry for each types and way, `written` those of --free."""
    types, ways = parse_types(settings.types or _TYPES), _ways(settings.way or WAYS)
    model = find_model(settings.model, settings.config(types[0]))
    texts = _texts(settings, model)
    losses = Losses(types[0])
    found = [measured for each in types for measured in _follow(settings, model, each, ways, texts, losses, console)]
    console.print(losses_table(found))
    written = _write(settings, model, types, texts, console) if settings.free else []
    return {
        "model": settings.model, "sequences": len(texts), "length": settings.length,
        "followed": [asdict(each) for each in found], "written": [asdict(each) for each in written],
    }


def parse_types(given: Sequence[str]) -> list[Types]:
    """Raises ConfigError naming what is not a type of KV and one of states."""
    found = []
    for text in given:
        kv, _, state = text.partition("/")
        if kv not in KV_DTYPES or state not in STATE_DTYPES:
            raise ConfigError(
                f"--types {text}: one of {', '.join(KV_DTYPES)} for KV and one of {', '.join(STATE_DTYPES)} for states is "
                "wanted, such as int8/fp16"
            )
        found.append((kv, state))
    return found


def _ways(given: Sequence[str]) -> list[str]:
    for way in given:
        if way not in WAYS:
            raise ConfigError(f"--way {way}: one of {', '.join(WAYS)} is wanted")
    return [way for way in WAYS if way in given]


def _texts(settings: Settings, model: Model) -> list[list[int]]:
    if not settings.text:
        raise ConfigError("--text is needed: texts to follow")
    if settings.free and settings.speculate == "off":
        raise ConfigError("--free is written with drafts too: --speculate must name who drafts")
    least, most = PROMPT_TOKENS + 1 if settings.free else 2, model.spec.max_context
    if not least <= settings.length <= most:
        raise ConfigError(f"--length must be from {least} to {most}, the model's own limit, not {settings.length}")
    config = EngineConfig(random_weights=settings.random_weights)
    read = [read_tokens(path, lambda: find_tokenizer(model, config), model.spec.vocab_size) for path in settings.text]
    texts = cut(read, settings.tokens, settings.length)
    if not texts:
        raise ConfigError(f"no --text has as many tokens as a sequence of --length {settings.length}")
    return texts


def _follow(
    settings: Settings, model: Model, types: Types, ways: Sequence[str], texts: Sequence[Sequence[int]], losses: Losses,
    console: Console,
) -> Iterator[Measured]:
    teacher = Teacher(model, settings.config(types))
    try:
        follow = {"prompts": teacher.through_prompts, "steps": teacher.through_steps, "drafts": teacher.through_drafts}
        for way in ways:
            measured = losses.add(types, way, follow[way](texts))
            console.print(f"{teacher.info.dtype}, KV {types[0]}, states {types[1]}, {way}: {measured.loss:.5f} nats a token")
            yield measured
    finally:
        teacher.close()


def _write(
    settings: Settings, model: Model, types: Sequence[Types], texts: Sequence[Sequence[int]], console: Console
) -> list[Written]:
    writings = [writing for each in types if each[0] == types[0][0] for writing in _writings(settings, model, each, texts)]
    scorer = Teacher(model, settings.config(("auto", "fp32"), dtype="float32"), most=1)
    try:
        pairs = [score(scorer, plain, drafted) for plain, drafted in zip(writings[::2], writings[1::2], strict=True)]
    finally:
        scorer.close()
    for plain, drafted in pairs:
        console.print(
            f"{plain.tokens} tokens written with KV {plain.kv}, states {plain.state}: {plain.loss:.4f} ± {plain.error:.4f} "
            f"nats a token in float32; with drafts {drafted.loss:.4f} ± {drafted.error:.4f}, "
            f"{drafted.over_plain:+.2%} ± {drafted.over_error:.2%} prompt by prompt, {drafted.tokens_a_row:.2f} tokens a row"
        )
    return [each for pair in pairs for each in pair]


def _writings(settings: Settings, model: Model, types: Types, texts: Sequence[Sequence[int]]) -> Iterator[Writing]:
    speculate = "lookup" if settings.speculate == "auto" and not settings.drafter else settings.speculate
    own = {"speculate": speculate, "drafter": settings.drafter, "draft_tokens": settings.draft_tokens}
    teacher = Teacher(model, settings.config(types, **own), most=0)
    try:
        yield from write(teacher, types, texts, settings.free, settings.length)
    finally:
        teacher.close()
