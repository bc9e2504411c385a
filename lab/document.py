"""Texts, as they pass from one stage of the recipe to the next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

KINDS = ("prose", "code", "chat", "copy")
HELD_OUT_SHARE = 25  # one document of so many


@dataclass(frozen=True, slots=True)
class Document:
    """kind: one of KINDS. name: unique, the same at every run. of: the document it was made of, if any."""

    kind: str
    name: str
    text: str
    of: str | None = None

    @property
    def held_out(self) -> bool:
        """By its name alone, so that it stays the same whatever is added; what is made of a text goes with it."""
        return int.from_bytes(blake2b((self.of or self.name).encode(), digest_size=8).digest(), "big") % HELD_OUT_SHARE == 0


def write(path: Path, documents: Iterable[Document]) -> int:
    """One JSON object a line. Returns how many characters of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    characters = 0
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(asdict(document), ensure_ascii=False) + "\n")
            characters += len(document.text)
    return characters


def read(path: Path) -> Iterator[Document]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield Document(**json.loads(line))
