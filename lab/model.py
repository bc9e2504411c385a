"""The lab model for training. Parameters have the names of the published layout, so that its state is the checkpoint.

Formulas as in transformers' Qwen3_5ForCausalLM, which the tests compare it with. B sequences of T tokens, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.delta import gated_delta_rule
from lab.shape import Shape


class Norm(nn.Module):
    """RMS norm around one: x / rms(x) * (1 + weight)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), x.shape[-1:], 1 + self.weight.float(), self._epsilon).to(x.dtype)


class GatedNorm(nn.Module):
    """RMS norm, times silu(gate)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        normed = functional.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self._epsilon)
        return (normed * functional.silu(gate.float())).to(x.dtype)


class GatedDelta(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        self.in_proj_qkv = nn.Linear(shape.hidden, shape.mixed_width, bias=False)
        self.in_proj_z = nn.Linear(shape.hidden, shape.value_width, bias=False)
        self.in_proj_a = nn.Linear(shape.hidden, shape.value_heads, bias=False)
        self.in_proj_b = nn.Linear(shape.hidden, shape.value_heads, bias=False)
        self.conv1d = nn.Conv1d(shape.mixed_width, shape.mixed_width, shape.taps, groups=shape.mixed_width, bias=False)
        self.A_log = nn.Parameter(torch.empty(shape.value_heads).uniform_(1, 16).log())
        steps = torch.empty(shape.value_heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step
        self.norm = GatedNorm(shape.state_size, shape.epsilon)
        self.out_proj = nn.Linear(shape.value_width, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape, (batch, tokens, _) = self._shape, x.shape
        mixed = functional.pad(self.in_proj_qkv(x).transpose(1, 2), (shape.taps - 1, 0))
        mixed = functional.silu(self.conv1d(mixed)).transpose(1, 2)
        q, k, v = mixed.split([shape.key_width, shape.key_width, shape.value_width], -1)
        q, k = (y.reshape(batch, tokens, shape.key_heads, -1) for y in (q, k))
        v = v.reshape(batch, tokens, shape.value_heads, -1)
        g = -self.A_log.float().exp() * functional.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        out = gated_delta_rule(q, k, v, g, self.in_proj_b(x).float().sigmoid())
        out = self.norm(out, self.in_proj_z(x).view(batch, tokens, shape.value_heads, -1))
        projected: Tensor = self.out_proj(out.flatten(2))
        return projected


def rotations(positions: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, size / 2] in float32 for positions [T]."""
    frequencies = theta ** (-torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size)
    angles = positions.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, T, D]: its first numbers turned, half against half."""
    half = cos.shape[-1]
    a, b, rest = x.float().split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        self.q_proj = nn.Linear(shape.hidden, 2 * shape.heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_size, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_size, shape.epsilon)
        self.k_norm = Norm(shape.head_size, shape.epsilon)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q [B, heads, T, D], k and v [B, kv_heads, T, D], gate [B, T, heads, D]; positions [T]."""
        shape, (batch, tokens, _) = self._shape, x.shape
        q, gate = self.q_proj(x).view(batch, tokens, shape.heads, 2 * shape.head_size).chunk(2, -1)
        k, v = (layer(x).view(batch, tokens, shape.kv_heads, shape.head_size) for layer in (self.k_proj, self.v_proj))
        cos, sin = rotations(positions, shape.rotary_size, shape.theta)
        q, k = rotated(self.q_norm(q).transpose(1, 2), cos, sin), rotated(self.k_norm(k).transpose(1, 2), cos, sin)
        return q, k, v.transpose(1, 2), gate

    def finish(self, out: Tensor, gate: Tensor) -> Tensor:
        """out [B, heads, T, D] -> [B, T, H]."""
        projected: Tensor = self.o_proj((out.transpose(1, 2) * gate.sigmoid()).flatten(2))
        return projected

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, gate = self.project(x, torch.arange(x.shape[1], device=x.device))
        return self.finish(functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), gate)


class Mlp(nn.Module):
    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, shape: Shape, attends: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = nn.Dropout(dropout)
        self.input_layernorm = Norm(shape.hidden, shape.epsilon)
        self.post_attention_layernorm = Norm(shape.hidden, shape.epsilon)
        self.mlp = Mlp(shape.hidden, shape.intermediate)
        if attends:
            self.self_attn = Attention(shape)
        else:
            self.linear_attn = GatedDelta(shape)
        self._attends = attends

    def forward(self, x: Tensor) -> Tensor:
        mixer = self.self_attn if self._attends else self.linear_attn
        x = x + self._dropout(mixer(self.input_layernorm(x)))
        return x + self._dropout(self.mlp(self.post_attention_layernorm(x)))


class Body(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape, attends, dropout) for attends in shape.attends)
        self.norm = Norm(shape.hidden, shape.epsilon)


class LabModel(nn.Module):
    """dropout: of what a layer adds to the residual stream, while training."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape, dropout)
        self.apply(_initialise)
        for block in self.model.layers:
            for name, weight in block.named_parameters():
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    weight.data /= math.sqrt(2 * shape.layers)  # what is added to the residual stream, by how often it is

    def hidden(self, ids: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """ids [B, T] -> hidden states [B, T, H] after the last norm, and the residual stream behind the layers `taps`."""
        x, tapped = self.model.embed_tokens(ids), []
        for number, block in enumerate(self.model.layers):
            x = block(x)
            if number in taps:
                tapped.append(x)
        return self.model.norm(x), tapped

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, vocabulary]."""
        return self.logits(self.hidden(ids)[0])


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
