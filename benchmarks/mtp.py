"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/mtp.py`, drafts by the 27B shape's multi-token head.

Milliseconds of one proposal of 1 to 7 drafts, greedy, beside the floor (bytes of the head's layer and of the target's head at
3.9 TB/s), and of what a step's tokens cost to take in; as CUDA graphs, medians of replays. --head bf16 or int8: the target's.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from benchmarks.captured import milliseconds, profile
from torch import Tensor

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder, build_decoder
from headrace.plan.dtypes import Dtypes
from headrace.plan.mtp import mtp_layer
from headrace.plan.shapes import declared_model
from headrace.random_weights import make_weights
from headrace.speculate.drafter import Asked, Seen, Surroundings
from headrace.speculate.mtp import MtpDrafter, build_mtp

DEVICE, PAGE, MOST, READ_BYTES_PER_S = torch.device("cuda"), 16, 7, 3.9e12


def drafter_of(head: str, rows: int, context: int, vocabulary: int | None) -> tuple[Decoder, MtpDrafter, Pools, Tensor]:
    """The target's embedding and head, a drafter, its pools, and a page table [rows, pages] of its own pages."""
    model = declared_model("qwen3.8-27b:w4a16-head8" if head == "int8" else "qwen3.8-27b:bf16")
    spec = replace(model.spec, layers=(mtp_layer(model.spec),))
    formats = {path: format for path, format in model.formats.items() if path == "head"}
    decoder = build_decoder(spec, dtype=torch.bfloat16, device=DEVICE, formats=formats)
    module = build_mtp(spec, mtp_layer(spec), 0, dtype=torch.bfloat16, device=DEVICE)
    for each in (decoder, module):
        make_weights(each)
        each.prepare()
    mixer = module.attention.spec
    width = -(-(context + MOST + 1) // PAGE)
    pages = rows * width
    keys, values = (torch.randn(pages + 1, PAGE, mixer.kv_heads, mixer.head_dim, dtype=torch.bfloat16, device=DEVICE)
                    for _ in range(2))
    hidden = torch.randn(rows + 1, spec.hidden, dtype=torch.bfloat16, device=DEVICE)
    pools = Pools((keys,), (values,), (None,), (None,), (0,), windows=(hidden,))
    layout = CacheLayout((CacheGroup(0, None, (0,), 2048),), PAGE, (pages,), rows, padding=True, drafts=MOST)
    around = Surroundings(decoder, pools, layout, Dtypes("bfloat16", "bfloat16", "float16"), 0, (0,), context + MOST, rows)
    table = torch.randperm(pages, device=DEVICE).view(rows, width)
    return decoder, MtpDrafter(module, around, MOST, vocabulary), pools, table


def asked(rows: int, drafts: int, context: int, table: Tensor) -> Asked:
    def greedy(scores: Tensor, place: int, candidates: Tensor | None = None) -> Tensor:
        return scores.argmax(-1)

    def all_of(value: int) -> Tensor:
        return torch.full((rows,), value, dtype=torch.int64, device=DEVICE)

    slots = torch.arange(rows, device=DEVICE)
    return Asked(slots, all_of(drafts), slots + 7, all_of(context), (table[:rows],), drafts, greedy)


def seen(rows: int, tokens: int, context: int, table: Tensor, final: Tensor) -> Seen:
    offsets = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device=DEVICE)
    positions = (context - tokens + torch.arange(tokens, device=DEVICE)).repeat(rows)
    owner = torch.arange(rows, device=DEVICE).repeat_interleave(tokens)
    at = table[owner, positions // PAGE] * PAGE + positions % PAGE
    slots = torch.arange(rows, device=DEVICE)
    batch = Batch(positions + 3, positions, offsets, slots, offsets[1:], (table[:rows],), (at,), (tokens,) * rows)
    kept = torch.full((rows,), tokens, dtype=torch.int64, device=DEVICE)
    return Seen(batch, (), final[: rows * tokens], positions[offsets[:-1].long()], kept, slots, slots >= 0)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", default="int8", choices=("int8", "bf16"))
    parser.add_argument("--vocabulary", type=int, help="draft only the first tokens, so many")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--drafts", nargs="+", type=int, default=list(range(1, MOST + 1)))
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--replays", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    decoder, drafter, pools, table = drafter_of(
        options.head, max(options.rows), options.context, options.vocabulary
    )
    head = sum(p.nbytes for p in decoder.head.parameters())  # type: ignore[union-attr]
    whole = decoder.spec.vocab_size
    weights = sum(p.nbytes for p in drafter.weights) + head * (options.vocabulary or whole) // whole
    final = torch.randn(2048, decoder.spec.hidden, dtype=torch.bfloat16, device=DEVICE)
    for rows in options.rows:
        cells = []
        for drafts in options.drafts:
            question = asked(rows, drafts, options.context, table)
            took = milliseconds(lambda question=question: drafter.propose(question), options.replays)  # type: ignore[misc]
            kv = rows * options.context * 2 * 4 * 256 * 2
            floor = 1e3 * drafts * (weights + kv) / READ_BYTES_PER_S
            cells.append(f"{drafts}: {took:.3f} ({took / floor:.2f} x)")
        print(f"propose, {rows} rows, {options.head} head:  " + "  ".join(cells), flush=True)
        for tokens in (1, 4, 8):
            given = seen(rows, tokens, options.context, table, final)
            took = milliseconds(lambda given=given: drafter.observe(given), options.replays)  # type: ignore[misc]
            print(f"  taking in {tokens} tokens a row: {1e3 * took:.1f} us", flush=True)
        if options.profile:
            profile(f"propose 1, {rows} rows", lambda: drafter.propose(asked(rows, 1, options.context, table)))  # noqa: B023
            profile(f"take in, {rows} rows", lambda: drafter.observe(seen(rows, 1, options.context, table, final)))  # noqa: B023
    pages = pools.keys[0]
    assert pages is not None and bool(pages.isfinite().all())


if __name__ == "__main__":
    main()
