"""The lab model's sizes, and the configuration that its checkpoint has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3.5 text model: every fourth layer attends, the others are Gated DeltaNet. Embedding and head are one tensor."""

    vocabulary: int = 8192
    hidden: int = 384
    layers: int = 8
    intermediate: int = 640
    heads: int = 6
    kv_heads: int = 2
    head_size: int = 64
    rotary_share: float = 0.25
    theta: float = 10_000.0
    key_heads: int = 2
    value_heads: int = 4
    state_size: int = 128  # of a key head and of a value head
    taps: int = 4
    context: int = 4096
    epsilon: float = 1e-6

    @property
    def attends(self) -> tuple[bool, ...]:
        return tuple(layer % 4 == 3 for layer in range(self.layers))

    @property
    def key_width(self) -> int:
        return self.key_heads * self.state_size

    @property
    def value_width(self) -> int:
        return self.value_heads * self.state_size

    @property
    def mixed_width(self) -> int:
        """Queries, keys and values of a Gated DeltaNet layer side by side: the channels of its convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def rotary_size(self) -> int:
        return int(self.head_size * self.rotary_share)

    def config(self, end: int) -> dict[str, Any]:
        """config.json. end: the id that ends a turn, and a text."""
        third = self.rotary_size // 6
        return {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
            "vocab_size": self.vocabulary, "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "intermediate_size": self.intermediate, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size, "attention_bias": False, "attn_output_gate": True, "hidden_act": "silu",
            "layer_types": ["full_attention" if full else "linear_attention" for full in self.attends],
            "full_attention_interval": 4, "rms_norm_eps": self.epsilon, "tie_word_embeddings": True,
            "max_position_embeddings": self.context, "initializer_range": 0.02, "use_cache": True,
            "linear_num_key_heads": self.key_heads, "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.state_size, "linear_value_head_dim": self.state_size,
            "linear_conv_kernel_dim": self.taps, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
            "bos_token_id": None, "eos_token_id": end, "pad_token_id": 0,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": self.theta, "partial_rotary_factor": self.rotary_share,
                "mrope_interleaved": True, "mrope_section": [self.rotary_size // 2 - 2 * third, third, third],
            },
        }
