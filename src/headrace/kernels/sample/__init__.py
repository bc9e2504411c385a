"""Drawing tokens from logits.

For a row with logits x, in this order: x[t] += logit_bias[t]; repetition, then presence and frequency penalty; EOS and stop
ids to -inf while fewer than min_tokens tokens are generated. Temperature 0 takes the highest, the lowest id among equals.
Otherwise z = (x - max x) / temperature, and of the tokens ranked by (z downwards, id upwards)
    top_k keeps the first k: exactly k, so that top_k = 1 is greedy;
    top_p keeps the shortest run from the front whose softmax mass, among those kept so far, reaches p;
    min_p keeps z >= log(min_p);
the token drawn is the one with the largest z + gumbel(seed, position, token). Computed in the logits' type; masses in float64.
A row's token depends on nothing but its own logits, parameters, marks and position. On a GPU nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from headrace.kernels.sample.adjust import adjust_
from headrace.kernels.sample.draw import draw_greedy, draw_head, draw_nucleus, draw_whole
from headrace.kernels.sample.logprobs import LOWEST_LOGPROB, top_logprobs
from headrace.kernels.sample.slots import Features, RowParams, SlotState

__all__ = ["LOWEST_LOGPROB", "Features", "SlotState", "sample", "top_logprobs"]

_CPU_CACHE_ELEMENTS = 2**16
_GPU_BLOCK_ELEMENTS = 2**23

Draw = Callable[[Tensor, RowParams, Tensor], Tensor]


def sample(logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, features: Sequence[Features]) -> Tensor:
    """One token for each row: logits [R, V] float32 or float64, slots and positions [R] int64 -> [R] int64.

    features: one for each row, saying what the parameters in its slot switch on. Logits are left as they are.
    """
    if all(f.greedy and not f.adjusts for f in features):
        return draw_greedy(logits)
    logits = _adjusted(logits, state, slots, features)
    params = RowParams.gather(state, slots, logits.dtype)
    drawn = torch.empty_like(slots)
    for rows, draw in _shares(logits, features):
        drawn[rows] = draw(logits[rows], params.take(rows), positions[rows])
    return drawn


def _adjusted(logits: Tensor, state: SlotState, slots: Tensor, features: Sequence[Features]) -> Tensor:
    chosen = [row for row, f in enumerate(features) if f.adjusts]
    if not chosen:
        return logits
    order = _upload(chosen, logits.device)
    logits = logits.clone()
    step = _block_rows("adjust", logits)
    for start in range(0, len(chosen), step):
        rows, company = order[start : start + step], [features[row] for row in chosen[start : start + step]]
        logits[rows] = adjust_(logits.index_select(0, rows), state, slots[rows], company)
    return logits


def _shares(logits: Tensor, features: Sequence[Features]) -> Iterator[tuple[Tensor | slice, Draw]]:
    """Rows that are drawn alike, in blocks, with their way of drawing; slices where all rows are alike."""
    ways: dict[str, list[int]] = {}
    for row, f in enumerate(features):
        ways.setdefault(_way(f), []).append(row)
    order = None if len(ways) == 1 else _upload([row for rows in ways.values() for row in rows], logits.device)
    first = 0
    for way, rows in ways.items():
        draw = _draw_of(way, max(features[row].top_k for row in rows))
        step = _block_rows(way, logits)
        for start in range(first, first + len(rows), step):
            block = slice(start, min(start + step, first + len(rows)))
            yield (block if order is None else order[block]), draw
        first += len(rows)


def _way(f: Features) -> str:
    if f.greedy:
        return "greedy"
    if f.top_k:
        return "head"
    return "nucleus" if f.nucleus else "whole"


def _draw_of(way: str, top_k: int) -> Draw:
    ways: dict[str, Draw] = {
        "greedy": lambda logits, params, positions: draw_greedy(logits),
        "head": partial(draw_head, top_k=top_k),
        "nucleus": draw_nucleus,
        "whole": draw_whole,
    }
    return ways[way]


def _block_rows(way: str, logits: Tensor) -> int:
    """Rows handled at once: so many that a GPU's temporaries stay bounded, and whole rows stay in a CPU's cache."""
    if logits.is_cuda:
        return max(1, _GPU_BLOCK_ELEMENTS // logits.shape[-1])
    return max(1, _CPU_CACHE_ELEMENTS // logits.shape[-1]) if way in ("adjust", "whole") else logits.shape[0]


def _upload(rows: Sequence[int], device: torch.device) -> Tensor:
    """Row numbers on the device, without waiting for it."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
