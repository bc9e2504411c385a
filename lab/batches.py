"""Windows of tokens, drawn anew for every step: the same for a step however often a run was interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.chat import END_OF_TEXT, SPECIAL

END_OF_TEXT_ID = SPECIAL.index(END_OF_TEXT)
SHARES = {"prose": 0.24, "code": 0.21, "chat": 0.28, "copy": 0.27}  # of the windows; what there is no text of falls to the rest
WHOLE = ("chat", "copy")  # whose windows begin where a conversation does: an answer without its question teaches nothing
Ids = NDArray[np.uint16]
Rows = NDArray[np.int64]


def streams(work: Path, part: str) -> dict[str, Ids]:
    """The tokens of a part ("train", "held-out") by kind. Raises FileNotFoundError when there are none."""
    found = {kind: work / f"{part}-{kind}.npy" for kind in SHARES}
    loaded = {kind: np.load(path) for kind, path in found.items() if path.exists()}
    if not loaded:
        raise FileNotFoundError(f"no tokens in {work}: run lab.text and lab.tokenizer first")
    return loaded


class Windows:
    """windows [count, length] of a step: `length` tokens each, from a kind chosen by its share and a place chosen evenly, among
    the beginnings of documents for the kinds that are `WHOLE`.
    """

    def __init__(self, tokens: Mapping[str, Ids], length: int, seed: int) -> None:
        for kind, ids in tokens.items():
            if len(ids) < length:
                raise ValueError(f"{kind}: {len(ids)} tokens are less than a window of {length}")
        self._tokens, self._length, self._seed = [tokens[kind] for kind in tokens], length, seed
        self._places = [places(ids, length, kind in WHOLE) for kind, ids in tokens.items()]
        shares = np.array([SHARES[kind] for kind in tokens])
        self._shares = shares / shares.sum()

    def of_step(self, step: int, count: int) -> Rows:
        random = np.random.default_rng([self._seed, step])
        kinds = random.choice(len(self._tokens), count, p=self._shares)
        starts = [self._places[kind][random.integers(len(self._places[kind]))] for kind in kinds]
        rows = [self._tokens[kind][start : start + self._length] for kind, start in zip(kinds, starts, strict=True)]
        return np.stack(rows).astype(np.int64)


def places(ids: Ids, length: int, whole: bool) -> Sequence[int] | NDArray[np.int64]:
    """Where a window of a text may begin: at a document's beginning alone, where that is asked and there is one."""
    everywhere = range(len(ids) - length + 1)
    found = np.flatnonzero(ids[: len(everywhere)] == END_OF_TEXT_ID) if whole else []
    return found if len(found) else everywhere


def in_order(ids: Ids, length: int) -> Rows:
    """All of a text in windows of `length` + 1 tokens that share one: [windows, length + 1]; the rest is left out."""
    count = (len(ids) - 1) // length
    return np.stack([ids[i * length : (i + 1) * length + 1] for i in range(count)]).astype(np.int64)


def spread(ids: Ids, length: int, count: int | None) -> Rows:
    """[count, length + 1], evenly from all over a text; all that there are for None."""
    found = in_order(ids, min(length, len(ids) - 1))
    return found if count is None or count > len(found) else found[np.arange(count) * len(found) // count]
