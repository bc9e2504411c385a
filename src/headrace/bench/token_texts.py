"""Texts as token ids, cut into sequences of one length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from headrace.engine.tokenizer import Tokenizer
from headrace.errors import ConfigError


def read_tokens(path: str, tokenizer: Callable[[], Tokenizer], vocab_size: int) -> np.ndarray:
    """The ids that an .npy file holds, or those of a text in UTF-8. Raises ConfigError naming the file."""
    file = Path(path)
    try:
        found = np.load(file) if file.suffix == ".npy" else np.array(tokenizer().encode(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--text {path}: {error}") from None
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"--text {path}: token ids are integers in one dimension, not {found.dtype} of shape {found.shape}")
    if not len(found) or found.min() < 0 or found.max() >= vocab_size:
        raise ConfigError(f"--text {path}: token ids are from 0 to {vocab_size - 1}, and there is at least one")
    return found


def cut(texts: Sequence[np.ndarray], tokens: int, length: int) -> list[list[int]]:
    """Sequences of `length` ids, in turn from each text as long as it lasts, until they are `tokens` or nothing is left."""
    pieces = [[text[at : at + length].tolist() for at in range(0, len(text) - length + 1, length)] for text in texts]
    rounds = max(map(len, pieces), default=0)
    in_turn = [each[number] for number in range(rounds) for each in pieces if number < len(each)]
    return in_turn[: max(1, tokens // length)]
