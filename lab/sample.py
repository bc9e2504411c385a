"""`python -m lab.sample --work DIR --out DIR` takes a few held-out texts of each kind, for tests that have no others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.document import Document, read, write
from lab.tokenizer import files

LONGEST, COUNTS = 4_000, {"prose": 4, "code": 4, "chat": 16, "copy": 16}
CONVERSATIONS, LONGEST_CONVERSATION = ("chat", "copy"), 1_200


def sample(documents: Sequence[Document], count: int) -> list[Document]:
    """`count` of one kind, evenly from all over: conversations whole, but no long ones; of other texts the beginning."""
    fitting = [each for each in documents if each.kind not in CONVERSATIONS or len(each.text) <= LONGEST_CONVERSATION]
    count = min(count, len(fitting))
    chosen = [fitting[place * len(fitting) // count] for place in range(count)]
    return [each if each.kind in CONVERSATIONS else replace(each, text=beginning(each.text)) for each in chosen]


def beginning(text: str) -> str:
    """Whole lines of it, up to LONGEST characters."""
    return text if len(text) <= LONGEST else text[: text.rfind("\n", 0, LONGEST) + 1 or LONGEST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for kind, file in files(options.work, "held-out"):
        found = sample(list(read(file)), COUNTS[kind])
        print(f"{kind}: {len(found)} documents, {write(options.out / file.name, found):,} characters")


if __name__ == "__main__":
    main()
