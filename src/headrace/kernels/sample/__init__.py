"""Drawing tokens from logits.

For a row with logits x, in this order: x[t] += logit_bias[t]; repetition, then presence and frequency penalty; EOS and stop
ids to -inf while fewer than min_tokens tokens are generated. Temperature 0 takes the highest, the lowest id among equals.
Otherwise z = (x - max x) / temperature, and of the tokens ranked by (z downwards, id upwards)
    top_k keeps the first k: exactly k, so that top_k = 1 is greedy;
    top_p keeps the shortest run from the front whose softmax mass, among those kept so far, reaches p;
    min_p keeps z >= log(min_p);
the token drawn is the one with the largest z + gumbel(seed, position, token). Computed in the logits' type; masses in float64.
A row's token depends on nothing but its own logits, parameters, marks and position. On a GPU nothing here waits for it.

Two ways to draw. `sample` is told by the host what each row wants. `draw_on_device` launches the same kernels on the same
shapes whatever the rows want and reads it from their slots, so that a CUDA graph captured once serves every batch of as many
rows. It is right for rows that satisfy `draws_on_device`: the host asks that of a batch before it replays the graph, and
otherwise leaves the logits to `sample`.

Rows may be drawn `against` a draft whose distribution is known (`odds.Odds`): then the token is that draft as often as can be,
and distributed as ever (`accept`). `draw_drafts` draws such drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from headrace.kernels.dispatch import runs_triton
from headrace.kernels.sample.accept import decided
from headrace.kernels.sample.adjust import adjust_
from headrace.kernels.sample.draw import draw_greedy, draw_head, draw_nucleus, draw_whole
from headrace.kernels.sample.logprobs import LOWEST_LOGPROB, top_logprobs
from headrace.kernels.sample.odds import ODDS, Against, Odds
from headrace.kernels.sample.ranking import gpu_block_rows
from headrace.kernels.sample.slots import Features, RowParams, SlotState

__all__ = [
    "DEVICE_TOP_K", "LOWEST_LOGPROB", "Against", "Features", "Odds", "SlotState", "draw_drafts", "draw_on_device",
    "draws_on_device", "sample", "top_logprobs",
]

DEVICE_TOP_K = ODDS
"""The largest top_k that `draw_on_device` combines with top_p."""

_CPU_CACHE_ELEMENTS = 2**16

Draw = Callable[[Tensor, RowParams, Tensor], Tensor]


def sample(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, features: Sequence[Features],
    against: Against | None = None,
) -> Tensor:
    """One token for each row: logits [R, V] float32 or float64, slots and positions [R] int64 -> [R] int64.

    features: one for each row, saying what the parameters in its slot switch on. against: the rows' drafts, where they have
    any. Logits are left as they are.
    """
    if runs_triton(logits):
        return _sample_on_device(logits, state, slots, positions, features, against)
    if all(f.greedy and not f.adjusts for f in features):
        return draw_greedy(logits)
    return sample_by_ways(logits, state, slots, positions, features, against)


def _sample_on_device(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, features: Sequence[Features], against: Against | None
) -> Tensor:
    """All rows by the kernels, then those again that the kernels do not draw, a bounded number at a time."""
    drawn = draw_on_device(logits, state, slots, positions, against=against)
    rest = [row for row, f in enumerate(features) if not draws_on_device(f)]
    step = gpu_block_rows(logits.shape[-1])
    for first in range(0, len(rest), step):
        part = rest[first : first + step]
        rows, company = _upload(part, logits.device), [features[row] for row in part]
        drawn[rows] = sample_by_ways(logits[rows], state, slots[rows], positions[rows], company)
    return drawn


def sample_by_ways(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, features: Sequence[Features],
    against: Against | None = None,
) -> Tensor:
    """`sample` by PyTorch's operations: each row in the way that looks at the least of its vocabulary."""
    logits = _adjusted(logits, state, slots, features)
    params = RowParams.gather(state, slots, logits.dtype)
    drawn = torch.empty_like(slots)
    for rows, draw in _shares(logits, features):
        drawn[rows] = draw(logits[rows], params.take(rows), positions[rows])
    return drawn if against is None else decided(logits, params, slots, positions, drawn, against)


def draws_on_device(f: Features) -> bool:
    """Whether `draw_on_device` draws a row of these features: all but those with top_p after a top_k above DEVICE_TOP_K."""
    return f.greedy or f.top_k <= DEVICE_TOP_K or not f.nucleus


def draw_on_device(
    logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, next_tokens: Tensor | None = None,
    against: Against | None = None,
) -> Tensor:
    """`sample` for rows that satisfy `draws_on_device`, on a CUDA device, without the host knowing what they want.

    logits [R, V] of 32 or 16 bits, slots and positions [R] int64 -> [R] int64; computed in float32. With next_tokens [S]
    int64, each row's token is also put there at its slot, counted as generated, and marked where penalties count it. Slots
    may repeat only where the results are ignored (padding). Takes at most V / 16 + V / 64 + 520 bytes of workspace a row (20
    KB for 248,320 tokens).
    """
    from headrace.kernels.sample import triton

    return triton.draw(logits, state, slots, positions, next_tokens, against=against)


def draw_drafts(logits: Tensor, state: SlotState, slots: Tensor, positions: Tensor, odds: Odds, place: int) -> Tensor:
    """`draw_on_device` from a drafter's logits [R, V], and how in `odds`: drafts number `place`, counted from 0, of the slots.

    Rows with a temperature whose slots are `free` are drawn from what top_k, top_p and min_p leave of the ODDS best tokens.
    """
    from headrace.kernels.sample import triton

    return triton.draw(logits, state, slots, positions, drafted=(odds, place))


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
        return gpu_block_rows(logits.shape[-1])
    return max(1, _CPU_CACHE_ELEMENTS // logits.shape[-1]) if way in ("adjust", "whole") else logits.shape[0]


def _upload(rows: Sequence[int], device: torch.device) -> Tensor:
    """Row numbers on the device, without waiting for it."""
    return torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True)
