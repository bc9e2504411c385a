"""Stage 3: `python -m lab.tokenizer --work DIR` learns a byte-level BPE vocabulary and writes all text as token ids."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lab.chat import END_OF_TEXT, SPECIAL
from lab.document import KINDS, read

VOCABULARY = 8_192
# Words with the blank before them, digits one by one, runs of blanks as they indent code.
PIECES = r"'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PARTS = ("train", "held-out")


def train(texts: Iterator[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """Special tokens have the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ))
    return tokenizer


def files(work: Path, part: str) -> list[tuple[str, Path]]:
    """The part's files that exist, with their kinds."""
    found = [(kind, work / f"{part}-{kind}.jsonl") for kind in KINDS]
    return [(kind, path) for kind, path in found if path.exists()]


def encoded(tokenizer: Tokenizer, path: Path) -> np.ndarray:
    """Every document's ids in uint16, each document behind an end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([document.text for document in read(path)])
    return np.concatenate([np.array([end, *encoding.ids], dtype=np.uint16) for encoding in encodings])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    path = work / "tokenizer.json"
    if not path.exists():
        train(document.text for _, file in files(work, "train") for document in read(file)).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    for part in PARTS:
        for kind, file in files(work, part):
            ids = encoded(tokenizer, file)
            np.save(file.with_suffix(".npy"), ids)
            print(f"{part} {kind}: {len(ids):,} tokens, {file.stat().st_size / len(ids):.2f} bytes each")


if __name__ == "__main__":
    main()
