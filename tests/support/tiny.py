"""Tiny random checkpoints in Hugging Face form: config, weights, tokenizer, chat template, generation config.

Weights are drawn so that logits are lively (several units) and every parameter matters: transformers' own initialisation
would leave biases at zero, norms at one and logits near zero. Decays are slow enough that a state holds many tokens, as in
trained models, and layers add less than the residual stream holds: otherwise norms of sums that cancel blow up rounding, and
transformers in float32 is itself further from the exact logits than what is tested.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.support.oracle import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

MODEL_TYPES = ("qwen3_5_text", "qwen3_5", "qwen3", "llama")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("th", "the", "in", "an", "and", "er", "re", "on", "at", "en", "nd", "st", "es", "or", "te", "of", "ed", "is", "it",
          "al", "ar", "to", "ing", "ion", "ou", "le", "se", "me", "hel", "lo", "hello", "wor", "ld", "world", " the", " a")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tiny_checkpoint(
    directory: Path,
    model_type: str = "qwen3_5_text",
    seed: int = 0,
    *,
    config: Mapping[str, Any] | None = None,
    shards: int = 1,
    mtp: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write a whole checkpoint into `directory` (created) and return it.

    model_type: one of MODEL_TYPES; "qwen3_5" is the multimodal form with a vision tower. config: fields that replace the
    defaults (text fields, also for "qwen3_5"). shards: safetensors files, with an index when more than one. mtp: add
    tensors of a multi-token-prediction head. The vocabulary is exactly the tokenizer's unless config says otherwise.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    fields = {**tiny_config(model_type), "vocab_size": tokenizer.get_vocab_size(), **(config or {})}
    model = random_model(model_type, fields, seed)
    tensors = checkpoint_tensors(model, dtype)
    if mtp:
        tensors |= mtp_tensors(fields, seed, dtype)
    write_shards(directory, tensors, shards)
    write_config(directory, model, dtype, mtp=mtp)
    write_tokenizer(directory, tokenizer)
    return directory


def tiny_config(model_type: str) -> dict[str, Any]:
    """Fields of a small model of this type, without its vocabulary."""
    fields: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 1024, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    }
    if model_type.startswith("qwen3_5"):
        fields |= {
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                       "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0]},
        }
    return fields


def random_config(model_type: str, rng: random.Random) -> dict[str, Any]:
    """Fields of a random small model: odd head counts, k/v head ratios 1 to 4, 1 to 8 layers, any layer pattern."""
    kv_heads, ratio, head_dim, layers = rng.randint(1, 3), rng.randint(1, 4), rng.choice((8, 12, 16, 32)), rng.randint(1, 8)
    heads = kv_heads * ratio
    fields: dict[str, Any] = {
        "vocab_size": rng.randint(64, 400), "intermediate_size": rng.randint(5, 70), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "max_position_embeddings": 1024,
        "hidden_size": heads * rng.choice([m for m in (4, 8, 12, 24) if heads * m >= 24]),
        "tie_word_embeddings": rng.random() < 0.5,
        "rms_norm_eps": rng.choice((1e-5, 1e-6)), "attention_bias": rng.random() < 0.3,
    }
    theta = rng.choice((1e3, 1e4, 1e6))
    if model_type.startswith("qwen3_5"):
        return fields | _random_hybrid(rng, layers, head_dim, theta)
    if model_type == "qwen3":
        window = rng.random() < 0.5
        fields |= {"use_sliding_window": window, "sliding_window": rng.randint(2, 100),
                   "max_window_layers": rng.randint(0, layers)}
        return fields | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    rope = rng.choice((
        {"rope_type": "default"}, {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 128},
    ))
    return fields | {"rope_parameters": {**rope, "rope_theta": theta}, "mlp_bias": rng.random() < 0.3}


def _random_hybrid(rng: random.Random, layers: int, head_dim: int, theta: float) -> dict[str, Any]:
    key_heads, odds = rng.randint(1, 3), rng.choice((0.0, 0.25, 0.5, 1.0))
    types = ["full_attention" if rng.random() < odds else "linear_attention" for _ in range(layers)]
    factor = rng.choice((0.25, 0.5, 1.0)) if head_dim % 8 == 0 else 0.5
    half = int(head_dim * factor) // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    return {
        "layer_types": types, "linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * rng.randint(1, 4),
        "linear_key_head_dim": rng.choice((8, 12, 16, 32)), "linear_value_head_dim": rng.choice((8, 12, 16, 32)),
        "linear_conv_kernel_dim": rng.randint(2, 5),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor,
                            "mrope_section": section},
    }


def random_model(model_type: str, fields: Mapping[str, Any], seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A transformers model with these fields and random weights, in evaluation mode, with its plain attention."""
    tokens = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    config: Any
    if model_type == "qwen3_5":
        vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
                  "out_hidden_size": fields["hidden_size"], "num_position_embeddings": 16, "patch_size": 4}
        config = transformers.Qwen3_5Config(text_config={**fields, **tokens}, vision_config=vision, image_token_id=3,
                                            video_token_id=4, vision_start_token_id=5, vision_end_token_id=6,
                                            tie_word_embeddings=fields["tie_word_embeddings"])
        model = transformers.Qwen3_5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    else:
        config = transformers.AutoConfig.for_model(model_type, **fields, **tokens)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model, seed)
    return model.to(dtype).eval()


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Redraw every parameter in place, in name order, from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(_rescaled(name, parameter, noise))


def _rescaled(name: str, parameter: Tensor, noise: Tensor) -> Tensor:
    if name.endswith("A_log"):
        return noise - 0.5
    if name.endswith("dt_bias"):
        return noise - 3.0
    if "norm" in name:
        return parameter + 0.2 * noise  # about its own centre, 0 or 1
    if name.endswith("bias"):
        return 0.2 * noise
    if "conv1d" in name:
        return noise / math.sqrt(parameter.shape[-1])
    return noise * _gain(name) / math.sqrt(parameter.shape[-1])


def _gain(name: str) -> float:
    if "embed_tokens" in name or "lm_head" in name:
        return 2.0
    return 0.5 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) else 1.0


def checkpoint_tensors(model: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What a checkpoint of `model` holds: its parameters by name, a tied head once."""
    tied = model.config.get_text_config().tie_word_embeddings
    return {n: t.detach().to(dtype).clone() for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}


def mtp_tensors(fields: Mapping[str, Any], seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors of a one-layer MTP head, named as Qwen3.5 checkpoints name them."""
    hidden, inner = fields["hidden_size"], fields["intermediate_size"]
    q, kv = fields["num_attention_heads"] * fields["head_dim"], fields["num_key_value_heads"] * fields["head_dim"]
    layer = "mtp.layers.0."
    shapes = {
        "mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (hidden,),
        layer + "input_layernorm.weight": (hidden,), layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_proj.weight": (2 * q, hidden), layer + "self_attn.k_proj.weight": (kv, hidden),
        layer + "self_attn.v_proj.weight": (kv, hidden), layer + "self_attn.o_proj.weight": (hidden, q),
        layer + "self_attn.q_norm.weight": (fields["head_dim"],), layer + "self_attn.k_norm.weight": (fields["head_dim"],),
        layer + "mlp.gate_proj.weight": (inner, hidden), layer + "mlp.up_proj.weight": (inner, hidden),
        layer + "mlp.down_proj.weight": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(seed + 1)
    return {n: (torch.randn(s, generator=generator) / math.sqrt(s[-1])).to(dtype) for n, s in shapes.items()}


def write_shards(directory: Path, tensors: Mapping[str, Tensor], shards: int) -> None:
    """model.safetensors, or `shards` files of neighbouring tensors with model.safetensors.index.json."""
    if shards == 1:
        save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    cuts = [round(i * len(names) / shards) for i in range(shards + 1)]
    files = {f"model-{i + 1:05}-of-{shards:05}.safetensors": names[cuts[i]:cuts[i + 1]] for i in range(shards)}
    for file, held in files.items():
        save_file({n: tensors[n] for n in held}, directory / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": {n: file for file, held in files.items() for n in held}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def write_config(directory: Path, model: Any, dtype: torch.dtype, *, mtp: bool = False) -> None:
    """config.json and generation_config.json."""
    config = model.config
    config.dtype = str(dtype).removeprefix("torch.")
    config.save_pretrained(directory)
    path = directory / "config.json"
    written = json.loads(path.read_text()) | {"architectures": [type(model).__name__]}
    if mtp:
        (written.get("text_config") or written)["mtp_num_hidden_layers"] = 1
    path.write_text(json.dumps(written, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "pad_token_id": 0}))


def build_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer: the special tokens (ids 0, 1, 2), the 256 bytes, a few English merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {t: i for i, t in enumerate((*SPECIAL_TOKENS, *alphabet))}
    merges: list[tuple[str, str]] = []
    for word in MERGES:
        pieces = _pieces(word.replace(" ", "Ġ"), vocabulary)
        for right in range(1, len(pieces)):
            pair = ("".join(pieces[:right]), pieces[right])
            if "".join(pair) not in vocabulary:
                vocabulary["".join(pair)] = len(vocabulary)
                merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return tokenizer


def _pieces(word: str, vocabulary: Mapping[str, int]) -> list[str]:
    """The longest known prefix of `word`, then its characters."""
    cut = next(n for n in range(len(word), 0, -1) if word[:n] in vocabulary)
    return [word[:cut], *word[cut:]]


def write_tokenizer(directory: Path, tokenizer: Tokenizer) -> None:
    """tokenizer.json and tokenizer_config.json with a ChatML template."""
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {str(i): {"content": t, "special": True, "lstrip": False, "rstrip": False, "normalized": False,
                      "single_word": False}
             for i, t in enumerate(SPECIAL_TOKENS)}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "bos_token": None, "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
