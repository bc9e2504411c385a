"""The lab model's block drafter for training, in the DFlash2 layout's names: masks behind the last token, in one pass.

Hidden states of the target's layers are injected as keys and values; convolutions within the block; the selector adds to a
candidate's logit how well it follows the candidate before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lab.model import Mlp, rotated, rotations
from lab.shape import Shape


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """targets: layers whose outputs are read. group: channels that share a change of the convolutions' taps."""

    layers: int = 2
    block: int = 8
    intermediate: int = 384
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    window: int = 1024
    targets: tuple[int, ...] = (2, 5, 7)
    taps: int = 2
    group: int = 16
    rank: int = 64
    top_k: int = 64
    theta: float = 10_000.0

    def config(self, target: Shape, mask: int, end: int) -> dict[str, Any]:
        """config.json of the drafter."""
        return {
            "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "is_causal": False,
            "hidden_size": target.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_size,
            "layer_types": ["sliding_attention"] * self.layers, "sliding_window": self.window, "use_sliding_window": True,
            "max_window_layers": 0, "vocab_size": target.vocabulary, "max_position_embeddings": target.context,
            "rope_theta": self.theta, "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "rms_norm_eps": target.epsilon, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
            "bos_token_id": None, "eos_token_id": end, "num_target_layers": target.layers,
            "dflash_config": {
                "block_size": self.block, "mask_token_id": mask, "target_layer_ids": list(self.targets),
                "conv_kernel_size": self.taps, "conv_group_size": self.group, "selector_rank": self.rank,
                "selector_top_k": self.top_k,
            },
        }


class PlainNorm(nn.Module):
    """RMS norm, times the weight."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self._epsilon).to(x.dtype)


class BlockConvolution(nn.Module):
    """Short convolutions within a block, of a sublayer's input and of its output; a token's input changes its taps."""

    def __init__(self, hidden: int, shape: DrafterShape) -> None:
        super().__init__()
        first = torch.zeros(2, shape.taps, hidden)
        first[:, 0] = 1  # nothing is mixed at first
        self.base_kernel = nn.Parameter(first)
        self.kernel_projection = nn.Linear(hidden, 2 * shape.taps * hidden // shape.group, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)
        self._group, self._taps = shape.group, shape.taps

    def kernels(self, x: Tensor) -> Tensor:
        """x [..., H] -> taps [..., 2, taps, H]."""
        changes = self.kernel_projection(x).unflatten(-1, (2, self._taps, -1)).repeat_interleave(self._group, -1)
        kernels: Tensor = self.base_kernel.to(x.dtype) + changes
        return kernels

    @staticmethod
    def mix(x: Tensor, kernels: Tensor) -> Tensor:
        """x [B, N, block, H], kernels [B, N, block, taps, H]: tap t takes the token t places before, none before the block."""
        out = kernels[..., 0, :] * x
        for tap in range(1, kernels.shape[-2]):
            out = out + kernels[..., tap, :] * functional.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
        return out


class BlockAttention(nn.Module):
    def __init__(self, hidden: int, epsilon: float, shape: DrafterShape) -> None:
        super().__init__()
        self._shape = shape
        self.q_proj = nn.Linear(hidden, shape.heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(hidden, shape.kv_heads * shape.head_size, bias=False)
        self.v_proj = nn.Linear(hidden, shape.kv_heads * shape.head_size, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_size, hidden, bias=False)
        self.q_norm = PlainNorm(shape.head_size, epsilon)
        self.k_norm = PlainNorm(shape.head_size, epsilon)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] -> [B, heads, T, D]."""
        return x.unflatten(-1, (-1, self._shape.head_size)).transpose(1, 2)

    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B, T, H], positions [T] or [B, 1, T]."""
        cos, sin = rotations(positions.flatten(), self._shape.head_size, self._shape.theta)
        return rotated(self.k_norm(self._heads(self.k_proj(x))), *(t.view(*positions.shape, -1) for t in (cos, sin)))

    def values(self, x: Tensor) -> Tensor:
        return self._heads(self.v_proj(x))

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """x [B, Q, H] at positions [B, Q]; context [B, T, H] at 0 to T - 1; seen [B, 1, Q, T + Q]. Returns [B, Q, H]."""
        where = positions[:, None]
        cos, sin = rotations(where.flatten(), self._shape.head_size, self._shape.theta)
        q = rotated(self.q_norm(self._heads(self.q_proj(x))), *(t.view(*where.shape, -1) for t in (cos, sin)))
        k = torch.cat([self.keys(context, torch.arange(context.shape[1], device=x.device)), self.keys(x, where)], 2)
        v = torch.cat([self.values(context), self.values(x)], 2)
        out = functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        projected: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected


class DrafterLayer(nn.Module):
    def __init__(self, hidden: int, epsilon: float, shape: DrafterShape) -> None:
        super().__init__()
        self.input_layernorm = PlainNorm(hidden, epsilon)
        self.post_attention_layernorm = PlainNorm(hidden, epsilon)
        self.self_attn = BlockAttention(hidden, epsilon, shape)
        self.mlp = Mlp(hidden, shape.intermediate)
        self.attention_conv = BlockConvolution(hidden, shape)
        self.mlp_conv = BlockConvolution(hidden, shape)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """x [B, N, block, H]."""
        def attend(h: Tensor) -> Tensor:
            out: Tensor = self.self_attn(h.flatten(1, 2), context, positions, seen)
            return out.view_as(h)

        x = x + self._around(self.attention_conv, self.input_layernorm(x), attend)
        return x + self._around(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)

    @staticmethod
    def _around(convolution: BlockConvolution, h: Tensor, inner: Any) -> Tensor:
        kernels = convolution.kernels(h)
        inside = inner(convolution.mix(h, kernels[..., 0, :, :]))
        return convolution.mix(inside, kernels[..., 1, :, :])


class CandidateSelector(nn.Module):
    def __init__(self, vocabulary: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocabulary, rank) * 0.1)
        self.successor_codebook = nn.Parameter(torch.randn(vocabulary, rank) * 0.1)
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def forward(self, hidden: Tensor, predecessors: Tensor, candidates: Tensor) -> Tensor:
        """What is added to the logits of candidates [..., C] by hidden [..., H] behind tokens [...]: [..., C].

        Of all tokens, of which some are taken: gradients of rows of the codebook that many candidates share are slow.
        """
        turned = self.predecessor_codebook[predecessors] * self.hidden_projection(hidden)
        return functional.linear(turned, self.successor_codebook).gather(-1, candidates)


class BlockDrafter(nn.Module):
    def __init__(self, target: Shape, shape: DrafterShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.targets) * target.hidden, target.hidden, bias=False)
        self.hidden_norm = PlainNorm(target.hidden, target.epsilon)
        self.layers = nn.ModuleList(DrafterLayer(target.hidden, target.epsilon, shape) for _ in range(shape.layers))
        self.norm = PlainNorm(target.hidden, target.epsilon)
        self.candidate_selector = CandidateSelector(target.vocabulary, target.hidden, shape.rank)

    def forward(self, taps: Tensor, anchors: Tensor, anchored: Tensor, mask: Tensor) -> Tensor:
        """taps [B, T, targets * H]; anchors [B, N]: positions whose tokens are known but not yet seen by the target; anchored
        [B, N, H] their embeddings; mask [H] the mask token's. Returns [B, N, block, H]: behind the first, the token at each's
        own position is predicted.
        """
        block = self.shape.block
        context = self.hidden_norm(self.fc(taps))
        masks = mask.to(anchored.dtype).expand(*anchors.shape, block - 1, -1)
        x = torch.cat([anchored[:, :, None], masks], 2)
        positions = (anchors[:, :, None] + torch.arange(block, device=anchors.device)).flatten(1)
        seen = self._seen(positions, anchors.repeat_interleave(block, 1), taps.shape[1])
        for layer in self.layers:
            x = layer(x, context, positions, seen)
        out: Tensor = self.norm(x)
        return out

    def _seen(self, positions: Tensor, anchors: Tensor, tokens: int) -> Tensor:
        """[B, 1, Q, T + Q]: the text before the anchor, within the window; of the blocks one's own."""
        text = torch.arange(tokens, device=positions.device)
        before = (text < anchors[..., None]) & (text > positions[..., None] - self.shape.window)
        blocks = torch.arange(positions.shape[1], device=positions.device) // self.shape.block
        own = (blocks[:, None] == blocks).expand(len(positions), -1, -1)
        return torch.cat([before, own], -1)[:, None]
