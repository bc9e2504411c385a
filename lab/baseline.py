"""What a model must beat: a count-based 5-gram model of the same tokens, `python -m lab.baseline --work DIR`.

Witten-Bell interpolation, from single tokens (themselves mixed with the uniform distribution) to four tokens of history:

    P_n(w | h) = (c(h w) + t(h) P_{n-1}(w | h')) / (c(h) + t(h))

c counts, t(h) is how many different tokens followed h, h' is h without its first token (Witten and Bell, 1991, method C).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.document import KINDS

ORDER = 5
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
Keys = NDArray[np.uint64]
Numbers = NDArray[np.float64]


def keys(ids: NDArray[np.uint16], length: int) -> Keys:
    """A 64-bit number for each run of `length` tokens: [len(ids) - length + 1]. Two runs have one number by accident only."""
    runs = np.lib.stride_tricks.sliding_window_view(ids, length)
    mixed = np.zeros(len(runs), np.uint64)
    for column in range(length):
        mixed = (mixed ^ (runs[:, column].astype(np.uint64) + np.uint64(1))) * MULTIPLIER
        mixed ^= mixed >> np.uint64(29)
    return mixed


def histories_of(ids: NDArray[np.uint16], length: int) -> Keys:
    """The number of what stands before the last token of each run of `length`."""
    return keys(ids[:-1], length - 1) if length > 1 else np.zeros(len(ids), np.uint64)


@dataclass(frozen=True, slots=True)
class Counts:
    """How often each run of a length occurs, by its number in order."""

    keys: Keys
    counts: NDArray[np.int64]

    def of(self, wanted: Keys) -> NDArray[np.int64]:
        places = np.searchsorted(self.keys, wanted).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == wanted, self.counts[places], 0)


def counted(numbers: Keys) -> Counts:
    return Counts(*np.unique(numbers, return_counts=True))


class NGrams:
    def __init__(self, ids: NDArray[np.uint16], vocabulary: int, order: int = ORDER) -> None:
        self._vocabulary, self._order = vocabulary, order
        self._runs, self._histories, self._followers = [], [], []
        for length in range(1, order + 1):
            runs = keys(ids, length)
            first = np.unique(runs, return_index=True)[1]
            histories = histories_of(ids, length)
            self._runs.append(counted(runs))
            self._histories.append(counted(histories))
            self._followers.append(counted(histories[first]))

    def log_probabilities(self, ids: NDArray[np.uint16]) -> Numbers:
        """Natural logarithms for each token behind the first order - 1, which are only history."""
        context = self._order - 1
        chance: Numbers = np.full(len(ids) - context, 1 / self._vocabulary)
        for length in range(1, self._order + 1):
            skip = context - (length - 1)
            runs = keys(ids, length)[skip:]
            histories = histories_of(ids, length)[skip:]
            followers = self._followers[length - 1].of(histories)
            seen = self._histories[length - 1].of(histories)
            mixed = (self._runs[length - 1].of(runs) + followers * chance) / np.maximum(seen + followers, 1)
            chance = np.where(seen > 0, mixed, chance)
        return np.log(chance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=8192)
    arguments = parser.parse_args()
    parts = {kind: arguments.work / f"train-{kind}.npy" for kind in KINDS}
    ngrams = NGrams(np.concatenate([np.load(path) for path in parts.values() if path.exists()]), arguments.vocabulary)
    for kind in KINDS:
        path = arguments.work / f"held-out-{kind}.npy"
        if path.exists():
            print(f"{kind}: {-ngrams.log_probabilities(np.load(path)).mean():.4f} nats a token")


if __name__ == "__main__":
    main()
