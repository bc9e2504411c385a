"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/dflash.py`, drafts by the drafter of the 27B shape.

Milliseconds of a proposal of 7 drafts, greedy, and of taking in what a step has seen, for numbers of rows; as CUDA graphs,
medians of replays. Beside a proposal its floor: the weights of the drafter and of the target's head, and the rows' windows, at
3.9 TB/s, or the multiplications at 790 TFLOP/s. Random weights. --profile: kernel by kernel.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from benchmarks.captured import milliseconds, profile
from torch import Tensor

from headrace.cache.layout import CacheLayout
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import build_decoder
from headrace.plan.dflash import dflash_cache, parameters, published_dflash
from headrace.plan.dtypes import Dtypes
from headrace.plan.shapes import declared_model
from headrace.random_weights import make_weights
from headrace.speculate.dflash import DFlashDrafter
from headrace.speculate.dflash_model import build_dflash
from headrace.speculate.drafter import Asked, Seen, Surroundings

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
READ_BYTES_PER_S, FLOPS_PER_S = 3.9e12, 790e12


def drafter_of(head: str, rows: int) -> DFlashDrafter:
    """Beside the target's embedding and head."""
    model = declared_model("qwen3.8-27b:w4a16-head8" if head == "int8" else "qwen3.8-27b:bf16")
    formats = {path: format for path, format in model.formats.items() if path == "head"}
    target = replace(model.spec, layers=model.spec.layers[3:4])
    decoder = build_decoder(target, dtype=DTYPE, device=DEVICE, formats=formats)
    spec, _ = published_dflash()
    module = build_dflash(spec, dtype=DTYPE, device=DEVICE)
    for each in (decoder, module):
        make_weights(each)
        each.prepare()
    types = {"compute": DTYPE, "kv": DTYPE, "int64": torch.int64}
    windows = tuple(
        torch.zeros(rows + 1, *state.shape, dtype=types[state.type], device=DEVICE) for state in dflash_cache(spec, 1).states
    )
    for ring in windows[1:]:
        ring.normal_()
    layout = CacheLayout((), 16, (), rows, padding=True, drafts=spec.block - 1)
    pools = Pools((), (), (), (), (), windows=windows)
    around = Surroundings(decoder, pools, layout, Dtypes("bfloat16", "bfloat16", "float16"), 0, (), 4096, rows)
    return DFlashDrafter(module, around, spec.block - 1)


def fill(drafter: DFlashDrafter, context: int) -> None:
    """Rings of the last tokens of sequences of so many."""
    positions = drafter._positions
    size = positions.shape[1]
    for position in range(max(0, context - size), context):
        positions[:, position % size] = position + 1


def asked(rows: int, context: int, most: int) -> Asked:
    def greedy(scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
        best = scores.argmax(1)
        return best if candidates is None else candidates.gather(1, best[:, None])[:, 0]

    slots = torch.arange(rows, device=DEVICE)
    counts, positions = (torch.full((rows,), value, device=DEVICE) for value in (most, context))
    return Asked(slots, counts, slots + 7, positions, (), most, greedy)


def seen(drafter: DFlashDrafter, rows: int, tokens: int, context: int) -> Seen:
    offsets = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device=DEVICE)
    positions = (context - tokens + torch.arange(tokens, device=DEVICE)).repeat(rows)
    slots = torch.arange(rows, device=DEVICE)
    batch = Batch(positions, positions, offsets, slots, offsets[1:], (), (), (tokens,) * rows)
    kept = torch.full((rows,), tokens, device=DEVICE)
    taps = tuple(torch.randn(rows * tokens, drafter.spec.hidden, dtype=DTYPE, device=DEVICE) for _ in drafter.taps)
    return Seen(batch, taps, taps[0], torch.full_like(kept, context - tokens), kept, slots, slots >= 0)


def floor_ms(drafter: DFlashDrafter, rows: int, context: int, head_bytes: int) -> float:
    """Of a proposal, whose places are all the block's but the first, and which takes in a block of tokens."""
    spec = drafter.spec
    codebooks = 2 * spec.vocab_size * (spec.selector.rank if spec.selector else 0)
    weights = parameters(published_dflash()[1]) - codebooks
    mixer, block = spec.attention, spec.block
    window = min(context, mixer.window or context) * 2 * mixer.kv_heads * mixer.head_dim * 2 * len(spec.layers)
    read = 2 * weights + head_bytes + rows * window
    fc = len(spec.taps) * spec.hidden**2
    kept = fc + len(spec.layers) * 2 * mixer.kv_heads * mixer.head_dim * spec.hidden
    flops = 2 * rows * (block * (weights - fc + kept) + (block - 1) * spec.vocab_size * spec.hidden)
    return 1e3 * max(read / READ_BYTES_PER_S, flops / FLOPS_PER_S)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", default="int8", choices=("int8", "bf16"))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--contexts", nargs="+", type=int, default=[1024])
    parser.add_argument("--replays", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    drafter = drafter_of(options.head, max(options.rows))
    head = drafter._decoder.head
    head_bytes = sum(p.nbytes for p in head.parameters()) if head is not None else 0
    for context in options.contexts:
        drafter._positions.zero_()
        fill(drafter, context)
        for rows in options.rows:
            question = asked(rows, context, drafter.most)
            took = milliseconds(lambda question=question: drafter.propose(question), options.replays)  # type: ignore[misc]
            floor = floor_ms(drafter, rows, context, head_bytes)
            cells = []
            for tokens in (1, 8):
                given = seen(drafter, rows, tokens, context)
                taking = milliseconds(lambda given=given: drafter.observe(given), options.replays)  # type: ignore[misc]
                cells.append(f"{tokens} a row {1e3 * taking:.1f} us")
            print(f"context {context}, {rows} rows, {options.head} head: propose {took:.3f} ms, {took / floor:.2f} x "
                  f"{floor:.3f}; take in {', '.join(cells)}", flush=True)
            if options.profile:
                profile(f"propose, {rows} rows", lambda question=question: drafter.propose(question))  # type: ignore[misc]
    assert all(bool(ring.keys.isfinite().all() & ring.values.isfinite().all()) for ring in drafter._rings)


if __name__ == "__main__":
    main()
