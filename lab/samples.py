"""How the model goes on with held-out texts, for its card: a few of each kind, chosen by nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.chat import START
from lab.document import Document, read

COUNTS = {"prose": 2, "code": 1, "chat": 2, "copy": 1}
BEGINNING, LONGEST = 240, 700
"""Characters of a text that is gone on with, and of a conversation's question at most."""
TOKENS, TEMPERATURE, TOP_P = 120, 0.8, 0.95
ANSWER = f"{START}assistant\n"


class Continues(Protocol):
    def __call__(self, prompts: Sequence[str]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Sample:
    kind: str
    prompt: str
    continued: str


def prompts(work: Path) -> list[tuple[str, str]]:
    """(kind, text), from the middle of each kind's held-out documents on."""
    found = []
    for kind, count in COUNTS.items():
        path = work / f"held-out-{kind}.jsonl"
        documents = list(read(path)) if path.exists() else []
        half = len(documents) // 2
        beginnings = (beginning for document in documents[half:] + documents[:half] for beginning in _beginning(document))
        found += [(kind, beginning) for beginning, _ in zip(beginnings, range(count), strict=False)]
    return found


def _beginning(document: Document) -> Iterator[str]:
    """A whole question, or a text's first words."""
    if START in document.text:
        asked, answer, _ = document.text.partition(ANSWER)
        if answer and len(asked) <= LONGEST:
            yield asked + answer
    elif len(document.text) > 2 * BEGINNING:
        yield document.text[:BEGINNING].rsplit(maxsplit=1)[0]


def samples(work: Path, continues: Continues) -> list[Sample]:
    chosen = prompts(work)
    ends = continues([prompt for _, prompt in chosen])
    return [Sample(kind, prompt, end) for (kind, prompt), end in zip(chosen, ends, strict=True)]


def served(checkpoint: Path) -> Continues:
    """By the engine, on a CPU: the same on every machine, or nearly."""
    from headrace import LLM, SamplingParams

    llm = LLM(checkpoint, device="cpu", context=1024, max_seqs=8)

    def continues(prompts: Sequence[str]) -> list[str]:
        params = [SamplingParams(max_tokens=TOKENS, temperature=TEMPERATURE, top_p=TOP_P, seed=n) for n in range(len(prompts))]
        return [done.text for done in llm.generate(list(prompts), params)]

    return continues
