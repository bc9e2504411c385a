"""The lab model's multi-token-prediction head for training, in the published layout's names (without their `mtp.`).

At inference the head is applied k times: draft j attends to what it kept of the text, made of the target's hidden states, and
to its own earlier drafts. Training does the same for all positions at once: at depth j the keys of the text are depth 1's, and
each position has its own keys of the depths between (as in EAGLE-3's training-time test, Li et al., 2025).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.model import Block, Norm
from lab.shape import Shape


class MtpHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.pre_fc_norm_embedding = Norm(shape.hidden, shape.epsilon)
        self.pre_fc_norm_hidden = Norm(shape.hidden, shape.epsilon)
        self.layers = nn.ModuleList([Block(shape, attends=True)])
        self.norm = Norm(shape.hidden, shape.epsilon)

    def forward(self, hidden: Tensor, following: Tensor, depths: int) -> list[Tensor]:
        """hidden [B, T, H]: the target's, after its last norm. following [B, T + depths - 1, H]: embeddings of the tokens at
        positions 1, 2, ... Returns for each depth [B, T, H]: at depth j, counted from 1, row t predicts the token at t + j + 1.
        """
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outs = []
        for depth in range(depths):
            embedded = following[:, depth : depth + hidden.shape[1]]
            hidden = self._draft(hidden, embedded, depth, keys, values)
            outs.append(hidden)
        return outs

    def _draft(self, hidden: Tensor, embedded: Tensor, depth: int, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        block = self.layers[0]
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        positions = torch.arange(x.shape[1], device=x.device) + depth
        q, k, v, gate = block.self_attn.project(block.input_layernorm(x), positions)
        keys.append(k)
        values.append(v)
        x = x + block.self_attn.finish(attend(q, keys, values), gate)
        x = x + block.mlp(block.post_attention_layernorm(x))
        out: Tensor = self.norm(x)
        return out


def attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """q [B, heads, T, D]; keys and values of depths, [B, kv_heads, T, D] each: of the first all up to one's own position are
    seen, of the others one's own alone. Returns [B, heads, T, D].
    """
    share, tokens = q.shape[1] // keys[0].shape[1], q.shape[2]
    keys, values = ([x.repeat_interleave(share, 1) for x in both] for both in (keys, values))
    scale = q.shape[-1] ** -0.5
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    text = (q @ keys[0].transpose(-1, -2)).float().masked_fill(later, -torch.inf)
    own = [(q * key).float().sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat([text, *own], -1) * scale, -1).to(q.dtype)
    out = weights[..., :tokens] @ values[0]
    for number, value in enumerate(values[1:]):
        out = out + weights[..., tokens + number, None] * value
    return out
