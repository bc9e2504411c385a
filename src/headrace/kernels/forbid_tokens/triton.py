"""One launch, which passes by rows without a mask. Whole vectors of logits are read and written: single ones take longer."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from headrace.kernels.dispatch import early
from headrace.kernels.forbid_tokens.masks import TokenMasks
from headrace.kernels.tile import await_previous, let_next_start, store
from headrace.kernels.variant import Variant

_TILE = 4_096


@triton.jit(do_not_specialize=["places_of"])
def _forbid(
    logits, slots, positions, places, words, stride, vocab, width, places_of, TILE: tl.constexpr, EARLY: tl.constexpr
):
    """Grid [tiles, R]. places_of: numbers of a slot in `places`; width: words of a mask."""
    let_next_start(EARLY)
    await_previous(EARLY)
    row = tl.program_id(1)
    kept = places + tl.load(slots + row) * places_of
    place = tl.load(positions + row) - tl.load(kept)
    mask = tl.load(kept + 1 + place, mask=(place >= 0) & (place < places_of - 1), other=-1)
    if mask >= 0:
        word = tl.program_id(0) * (TILE // 32) + tl.arange(0, TILE // 32)
        bits = tl.load(words + mask * width + word, mask=word < width, other=0)
        token = word[:, None] * 32 + tl.arange(0, 32)[None, :]
        allowed = ((bits[:, None] >> tl.arange(0, 32)[None, :]) & 1) != 0
        at, inside = logits + row.to(tl.int64) * stride + token, token < vocab
        x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        store(at, tl.where(allowed, x, float("-inf")), mask=inside)


def forbid_tokens(logits: Tensor, slots: Tensor, positions: Tensor, masks: TokenMasks) -> None:
    rows, vocab = logits.shape
    if rows:
        _forbid[(triton.cdiv(vocab, _TILE), rows)](
            logits, slots, positions, masks.places, masks.words, logits.stride(0), vocab, masks.words.shape[1],
            masks.places.shape[1], _TILE, **early(logits.device),
        )


_SIGNATURE = {
    "slots": "*i64", "positions": "*i64", "places": "*i64", "words": "*i32", "stride": "i32", "vocab": "i32", "width": "i32",
    "places_of": "i32",
}
VARIANTS = tuple(
    Variant(
        dtype, _forbid, {"logits": f"*{dtype}"} | _SIGNATURE, {"TILE": _TILE}, early=True,
        aligned=("logits", "slots", "positions", "places", "words", "stride", "vocab", "width"),
    )
    for dtype in ("bf16", "fp16", "fp32")
)
