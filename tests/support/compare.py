"""The decoder run over sequences in arbitrary company and pieces, and the equality rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tests.support.packing import Packing
from torch import Tensor

from headrace.models.decoder import Decoder

LOGIT_TOLERANCE = 2e-4
"""Largest difference to transformers in float32, relative to max(1, max |logit|)."""
TIE_TOLERANCE = 1e-4
"""Two best logits so close, relatively, may change places in float32; at most 1 sequence in EXCUSED_OF."""
EXCUSED_OF = 200


def packing_for(decoder: Decoder, sequences: Sequence[Sequence[int]], dtype: torch.dtype, rng: random.Random) -> Packing:
    """Memory for these sequences, of random page size, with random pages and slots."""
    page_tokens = rng.choice((1, 3, 16, 64))
    pages = sum(-(-len(s) // page_tokens) for s in sequences) + 2
    slots, seed = len(sequences) + 2, rng.randrange(99)
    packing = Packing(decoder.spec, dtype, page_tokens=page_tokens, pages=pages, slots=slots, seed=seed)
    for sequence in range(len(sequences)):
        packing.admit(sequence)
    return packing


@torch.inference_mode()
def logits_alone(decoder: Decoder, tokens: Sequence[int], dtype: torch.dtype, chunk_tokens: int, rng: random.Random) -> Tensor:
    """[n, vocab] of one sequence, `chunk_tokens` at a time."""
    packing = packing_for(decoder, [tokens], dtype, rng)
    parts = [tokens[i : i + chunk_tokens] for i in range(0, len(tokens), chunk_tokens)]
    return torch.cat([decoder.logits(decoder(packing.pack([(0, part)]), packing.pools)) for part in parts])


@torch.inference_mode()
def logits_batched(
    decoder: Decoder, sequences: Sequence[Sequence[int]], dtype: torch.dtype, rng: random.Random
) -> list[Tensor]:
    """[n, vocab] of each sequence, all of them together, in pieces of random sizes and rows of random order."""
    packing = packing_for(decoder, sequences, dtype, rng)
    done = [0] * len(sequences)
    found: list[list[Tensor]] = [[] for _ in sequences]
    while waiting := [i for i, s in enumerate(sequences) if done[i] < len(s)]:
        chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
        rows = []
        for i in chosen:
            part = sequences[i][done[i] : done[i] + rng.choice((1, 1, 2, 5, 8, 9, 33, 64, 65, 200))]
            done[i] += len(part)
            rows.append((i, part))
        logits = decoder.logits(decoder(packing.pack(rows), packing.pools))
        for (i, _), own in zip(rows, logits.split([len(part) for _, part in rows]), strict=True):
            found[i].append(own)
    return [torch.cat(parts) for parts in found]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to max(1, max |expected|)."""
    return float((found.double() - expected.double()).abs().max()) / max(1.0, float(expected.abs().max()))


@dataclass(slots=True)
class Tally:
    """Sequences compared, and those excused by a near tie."""

    sequences: int = 0
    excused: int = 0

    def greedy(self, found: Tensor, expected: Tensor) -> None:
        """Greedy tokens must be equal; a first difference is excused where the expected logits' best two nearly tie."""
        self.sequences += 1
        differs = (found.argmax(-1) != expected.argmax(-1)).nonzero()
        if not len(differs):
            return
        row = expected[int(differs[0, 0])]
        best, second = row.topk(2).values.tolist()
        assert best - second <= TIE_TOLERANCE * max(1.0, float(row.abs().max())), "greedy tokens differ without a tie"
        self.excused += 1

    def settle(self) -> None:
        print(f"{self.excused} of {self.sequences} sequences excused by a near tie")
        assert self.excused * EXCUSED_OF <= max(EXCUSED_OF, self.sequences)
