"""The published drafters, written down in float32 from what is known of their layouts, token by token and head by head.

Nothing of the engine is used here, and nothing here is fast: these are what the engine's drafters are compared with. Weights
are dictionaries with the published names. Shapes: T tokens, H hidden size, V vocabulary, D size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]
Inner = Callable[[Tensor], Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, position: int, theta: float, size: int) -> Tensor:
    """x: [..., D]; the first `size` of a head are turned, half against half."""
    half = size // 2
    angles = position * theta ** (-torch.arange(half, dtype=torch.float64) * 2 / size)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b, rest = x[..., :half], x[..., half:size], x[..., size:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def attended(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """query [heads, D] over lists of [kv_heads, D], as many queries to a key's head as divide: [heads * D]."""
    group = query.shape[0] // keys[0].shape[0]
    outs = []
    for head in range(query.shape[0]):
        k = torch.stack([key[head // group] for key in keys])
        v = torch.stack([value[head // group] for value in values])
        outs.append(functional.softmax(k @ query[head] / math.sqrt(query.shape[1]), 0) @ v)
    return torch.cat(outs)


def gated_mlp(x: Tensor, weights: Weights, prefix: str) -> Tensor:
    up = functional.silu(weights[f"{prefix}gate_proj.weight"] @ x) * (weights[f"{prefix}up_proj.weight"] @ x)
    return weights[f"{prefix}down_proj.weight"] @ up


def mtp_hidden(
    weights: Weights, embedding: Tensor, hidden: Tensor, following: Tensor, *, heads: int, kv_heads: int, head_size: int,
    rotary_size: int, theta: float, eps: float,
) -> Tensor:
    """Qwen3.5's head for several tokens: hidden [T, H] is the target's after its final norm at positions 0 to T - 1,
    following [T] the token after each. Returns [T, H], after `mtp.norm`: logits are the target's head of it, and the next of
    several drafts takes it as its `hidden`. Norms here are zero-centred: 1 + weight.
    """
    def norm(x: Tensor, name: str) -> Tensor:
        return rms(x, 1 + weights[f"mtp.{name}.weight"], eps)

    layer, keys, values, outs = "layers.0.", [], [], []
    for position in range(len(hidden)):
        token = norm(embedding[following[position]], "pre_fc_norm_embedding")
        x = weights["mtp.fc.weight"] @ torch.cat([token, norm(hidden[position], "pre_fc_norm_hidden")])
        h = norm(x, layer + "input_layernorm")
        projected = (weights[f"mtp.{layer}self_attn.q_proj.weight"] @ h).view(heads, 2, head_size)
        query, gate = norm(projected[:, 0], layer + "self_attn.q_norm"), projected[:, 1]
        key = norm((weights[f"mtp.{layer}self_attn.k_proj.weight"] @ h).view(kv_heads, head_size), layer + "self_attn.k_norm")
        keys.append(rotated(key, position, theta, rotary_size))
        values.append((weights[f"mtp.{layer}self_attn.v_proj.weight"] @ h).view(kv_heads, head_size))
        out = attended(rotated(query, position, theta, rotary_size), keys, values) * torch.sigmoid(gate.reshape(-1))
        x = x + weights[f"mtp.{layer}self_attn.o_proj.weight"] @ out
        x = x + gated_mlp(norm(x, layer + "post_attention_layernorm"), weights, f"mtp.{layer}mlp.")
        outs.append(norm(x, "norm"))
    return torch.stack(outs)


def convolved(x: Tensor, base: Tensor, delta: Tensor) -> Tensor:
    """x [B, H] of a block; base [taps, H]; delta [B, taps, groups]: a token's own change of its groups of channels' taps."""
    width = x.shape[1] // delta.shape[2]
    rows = []
    for token in range(len(x)):
        row = torch.zeros_like(x[0])
        for tap in range(min(len(base), token + 1)):
            row = row + (base[tap] + delta[token, tap].repeat_interleave(width)) * x[token - tap]
        rows.append(row)
    return torch.stack(rows)


def dflash_block(
    weights: Weights, embedding: Tensor, context: Tensor, anchor: int, *, layers: int, block: int, mask_token: int, heads: int,
    kv_heads: int, head_size: int, window: int, theta: float, eps: float, group: int | None,
) -> Tensor:
    """Hidden states [block, H] after the final norm of one block: the anchor and block - 1 masks.

    context: [T, targets * H], the target's named layers' outputs side by side at positions 0 to T - 1; the anchor is at T.
    group: channels that share a change of the convolutions' taps; None for a drafter of the first form, without convolutions.
    A key is seen if it lies less than `window` positions before the query; the block sees all of itself.
    """
    start = len(context)
    seen = torch.stack([rms(weights["fc.weight"] @ row, weights["hidden_norm.weight"], eps) for row in context])
    x = embedding[torch.tensor([anchor] + [mask_token] * (block - 1))]
    for number in range(layers):
        at = f"layers.{number}."
        attention = f"{at}self_attn."

        def head_states(row: Tensor, kind: str, count: int, position: int | None, at: str = attention) -> Tensor:
            states = (weights[f"{at}{kind}_proj.weight"] @ row).view(count, head_size)
            if position is None:
                return states
            return rotated(rms(states, weights[f"{at}{kind}_norm.weight"], eps), position, theta, head_size)

        def sublayer(x: Tensor, norm: str, conv: str, inner: Inner, at: str = at) -> Tensor:
            h = torch.stack([rms(row, weights[f"{at}{norm}.weight"], eps) for row in x])
            if group is None:
                return x + inner(h)
            base = weights[f"{at}{conv}.base_kernel"]
            deltas = torch.stack([weights[f"{at}{conv}.kernel_projection.weight"] @ row for row in h])
            deltas = deltas.view(len(x), 2, base.shape[1], -1)
            inside = inner(convolved(h, base[0], deltas[:, 0]))
            return x + convolved(inside, base[1], deltas[:, 1])

        def attend(h: Tensor, attention: str = attention) -> Tensor:
            rows = list(seen) + list(h)
            keys = [head_states(row, "k", kv_heads, place, attention) for place, row in enumerate(rows)]
            values = [head_states(row, "v", kv_heads, None, attention) for row in rows]
            outs = []
            for offset, row in enumerate(h):
                position = start + offset
                first = max(position - window + 1, 0)
                query = head_states(row, "q", heads, position, attention)
                out = attended(query, keys[first:], values[first:])
                outs.append(weights[f"{attention}o_proj.weight"] @ out)
            return torch.stack(outs)

        def feed(h: Tensor, at: str = at) -> Tensor:
            return torch.stack([gated_mlp(row, weights, f"{at}mlp.") for row in h])

        x = sublayer(x, "input_layernorm", "attention_conv", attend)
        x = sublayer(x, "post_attention_layernorm", "mlp_conv", feed)
    return torch.stack([rms(row, weights["norm.weight"], eps) for row in x])


def selector_walk(weights: Weights, head: Tensor, hidden: Tensor, anchor: int, top_k: int) -> tuple[list[int], Tensor]:
    """The candidate selector's greedy walk over hidden [block, H] (after the final norm): block - 1 tokens, and each slot's
    scores [block - 1, V] with -inf beyond its candidates. Masks predict the token at their own place.
    """
    predecessor, tokens, scores = anchor, [], []
    for row in hidden[1:]:
        logits = head @ row
        best = logits.topk(top_k).indices
        turned = weights["candidate_selector.predecessor_codebook"][predecessor] * (
            weights["candidate_selector.hidden_projection.weight"] @ row
        )
        slot = torch.full_like(logits, -math.inf)
        slot[best] = logits[best] + weights["candidate_selector.successor_codebook"][best] @ turned
        predecessor = int(slot.argmax())
        tokens.append(predecessor)
        scores.append(slot)
    return tokens, torch.stack(scores)
