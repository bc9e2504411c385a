"""Stage 5: `python -m lab.own --work DIR --model DIR` has the lab model write, at temperature 1, what its drafters learn."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace import SamplingParams
from lab.batches import Ids, streams
from lab.engines import Engines

SHARES = {"prose": 0.2, "code": 0.15, "chat": 0.5, "copy": 0.15}
LENGTH = 512


class Continues(Protocol):
    def __call__(self, prompts: list[list[int]], tokens: list[int]) -> list[list[int] | None]:
        """For each prompt so many more tokens, whatever they are; None where there was no time."""
        ...


def beginnings(tokens: Mapping[str, Ids], count: int, length: int, seed: int) -> list[list[int]]:
    """Runs of an eighth to a half of `length` tokens from anywhere in the texts, by share of kind."""
    random = np.random.default_rng(seed)
    kinds = sorted(tokens)
    shares = np.array([SHARES[kind] for kind in kinds])
    found = []
    for kind in random.choice(kinds, count, p=shares / shares.sum()):
        size = int(random.integers(length // 8, length // 2))
        start = int(random.integers(len(tokens[kind]) - size))
        found.append(tokens[kind][start : start + size].tolist())
    return found


def sequences(tokens: Mapping[str, Ids], count: int, length: int, seed: int, continues: Continues) -> NDArray[np.uint16]:
    """[count, length]: beginnings of the texts and how the model goes on; fewer where there was no time."""
    prompts = beginnings(tokens, count, length, seed)
    ends = continues(prompts, [length - len(prompt) for prompt in prompts])
    return np.array([prompt + end for prompt, end in zip(prompts, ends, strict=True) if end is not None], dtype=np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="the model's checkpoint, as lab.export wrote it")
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--engines", type=int, default=6, help="processes that write at once")
    parser.add_argument("--seconds", type=float, help="after which no more sequences are begun")
    options = parser.parse_args()
    settings = {"dtype": "bfloat16", "max_seqs": 64, "context": LENGTH, "prefix_cache": "off", "cache_bytes": 2**30}
    with Engines(options.model, options.engines, speculate="off", **settings) as engines:
        write_parts(options.work, options.count, engines, options.seconds)


def write_parts(work: Path, count: int, engines: Engines, seconds: float | None = None) -> None:
    """`held-out-own.npy`, and `train-own.npy` with `count` sequences, or as many as there was time for."""
    def continues(prompts: list[list[int]], tokens: list[int]) -> list[list[int] | None]:
        params = [SamplingParams(max_tokens=count, temperature=1.0, ignore_eos=True, seed=n) for n, count in enumerate(tokens)]
        return [done and done.tokens for done in engines(prompts, params, seconds)]

    written = {
        part: sequences(streams(work, part), wanted, LENGTH, seed=3, continues=continues)
        for part, wanted in (("held-out", min(count, 256)), ("train", count))
    }
    for part, found in written.items():
        if not len(found):
            raise SystemExit(f"{part}: no sequence was written, of {count} that were asked for in {seconds or 'any'} seconds")
    for part, found in written.items():
        np.save(work / f"{part}-own.npy", found)
        print(f"{part}: {found.shape[0]} sequences of {found.shape[1]} tokens")


if __name__ == "__main__":
    main()
