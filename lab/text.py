"""Stage 1: `python -m lab.text --work DIR` gathers prose and code, and makes copying tasks of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from lab.copying import copying_chats
from lab.document import Document, write
from lab.sources import SOURCES


def gather(downloads: Path) -> list[Document]:
    """Raises MissingPackage, and ValueError for a name that two documents have."""
    documents = []
    for source in SOURCES:
        found = list(source.read(downloads))
        print(f"{source.name}: {len(found)} documents, {sum(len(d.text) for d in found):,} characters ({source.licence})")
        documents += found
    if len({document.name for document in documents}) < len(documents):
        raise ValueError("two documents have one name")
    return documents


def write_parts(work: Path, documents: Iterable[Document]) -> None:
    """`train-KIND.jsonl` and `held-out-KIND.jsonl`."""
    by_part: dict[str, list[Document]] = {}
    for document in documents:
        by_part.setdefault(f"{'held-out' if document.held_out else 'train'}-{document.kind}", []).append(document)
    for part, found in sorted(by_part.items()):
        print(f"{part}: {len(found)} documents, {write(work / f'{part}.jsonl', found):,} characters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for everything the recipe makes")
    parser.add_argument("--copying", type=int, default=48_000, help="conversations with copying tasks")
    arguments = parser.parse_args()
    documents = gather(arguments.work / "downloads")
    write_parts(arguments.work, [*documents, *copying_chats(documents, arguments.copying)])


if __name__ == "__main__":
    main()
