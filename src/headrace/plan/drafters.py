"""What speculation takes: a drafter's weights, its cache groups, and the hidden states that wait for it.

lookup has neither weights nor a cache. mtp is the checkpoint's own head, a layer of full attention whose keys and values are
pages like any layer's. dflash is a drafter of its own, whose layers see a window: that of --drafter DIR, or the published one
of Qwen3.8-27B (DFlash2: 1,924,404,480 parameters, 5 layers of 8 heads of 128 that see 2,048 tokens, 5 tapped layers, 7 drafts).
Every sequence keeps a ring of the tapped hidden states of the last RING_TOKENS tokens, and those of its last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from headrace.cache.layout import CacheGroup
from headrace.errors import CheckpointError, ConfigError
from headrace.models.fields import Fields
from headrace.models.spec import AttentionSpec
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes
from headrace.plan.extras import BudgetLine
from headrace.plan.json_file import read_json_object
from headrace.plan.safetensors_header import read_header

Method = Literal["off", "lookup", "mtp", "dflash"]
RING_TOKENS = 64
_LOOKUP_DRAFTS = 7
_MTP_DRAFTS = 4


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """drafts: the most of a row. line: the weights, None without any. group: None without a cache. taps: hidden states kept
    of a token.
    """

    method: Method
    drafts: int
    line: BudgetLine | None = None
    group: CacheGroup | None = None
    taps: int = 0

    def slot_bytes(self, hidden: int, dtypes: Dtypes) -> int:
        """Of one sequence's hidden states: the ring's and the last token's."""
        return (RING_TOKENS + 1) * self.taps * hidden * itemsize(dtypes.compute)

    def bytes_per_token(self, dtypes: Dtypes) -> int:
        """Keys and values of every token of the context."""
        return token_bytes(self.group, dtypes.kv) if self.group and self.group.window is None else 0

    def bytes_per_sequence(self, dtypes: Dtypes) -> int:
        """Keys and values of a window, whatever the length."""
        return self.group.window * token_bytes(self.group, dtypes.kv) if self.group and self.group.window else 0


NO_DRAFTER = DrafterMemory("off", 0)


def drafter_memory(model: Model, method: Method, drafts: int | None, folder: Path | None) -> DrafterMemory:
    """drafts: None takes the drafter's usual number. Raises ConfigError for a drafter that there is not."""
    if drafts is not None and drafts < 1:
        raise ConfigError(f"draft_tokens must be 1 or more, not {drafts}; --speculate off drafts nothing")
    if folder is not None and method != "dflash":
        raise ConfigError(f"--drafter {folder} is for --speculate dflash, not {method}")
    makers: Mapping[Method, Callable[[], DrafterMemory]] = {
        "off": lambda: NO_DRAFTER,
        "lookup": lambda: DrafterMemory("lookup", drafts or _LOOKUP_DRAFTS),
        "mtp": lambda: _mtp(model, drafts or _MTP_DRAFTS),
        "dflash": lambda: _dflash(folder, drafts) if folder else _published_dflash(model, drafts),
    }
    return makers[method]()


def _mtp(model: Model, drafts: int) -> DrafterMemory:
    names = model.weight_map.kept
    mixers = [layer.mixer for layer in model.spec.layers if isinstance(layer.mixer, AttentionSpec)]
    if not names or not mixers:
        raise ConfigError(f"--speculate mtp: {model.checkpoint.path} has no multi-token head")
    layers = max(1, model.spec.mtp_layers)
    stored = sum(model.checkpoint.tensors[name].nbytes for name in names)
    line = BudgetLine("weights mtp", stored, f"{len(names)} tensors of the multi-token head, as they are stored")
    return DrafterMemory("mtp", drafts, line, _group(None, layers, mixers[-1].kv_heads, mixers[-1].head_dim), taps=1)


def _group(window: int | None, layers: int, kv_heads: int, head_dim: int) -> CacheGroup:
    """The index is given by Extras.all_groups."""
    return CacheGroup(0, window, tuple(range(layers)), layers * 2 * kv_heads * head_dim, layers * 2 * kv_heads)


_DFLASH2_HIDDEN = 5120
_DFLASH2_WINDOW, _DFLASH2_LAYERS, _DFLASH2_TAPS, _DFLASH2_BLOCK = 2048, 5, 5, 8
_DFLASH2_KV_HEADS, _DFLASH2_HEADS, _DFLASH2_HEAD_DIM = 8, 32, 128
_DFLASH2_INNER, _DFLASH2_VOCAB, _DFLASH2_RANK, _DFLASH2_CONV_GROUPS = 17_408, 248_320, 256, 320


def dflash2_parameters() -> int:
    """Of the published drafter, from its shapes: tapped states' projection, layers with two convolutions each, selector."""
    hidden, inner = _DFLASH2_HIDDEN, _DFLASH2_INNER
    queries, keys = _DFLASH2_HEADS * _DFLASH2_HEAD_DIM, _DFLASH2_KV_HEADS * _DFLASH2_HEAD_DIM
    convolution = prod((2, 2, hidden)) + prod((2, 2, _DFLASH2_CONV_GROUPS)) * hidden
    attention = hidden * (2 * queries + 2 * keys) + 2 * _DFLASH2_HEAD_DIM
    layer = attention + 3 * hidden * inner + 2 * hidden + 2 * convolution
    selector = 2 * _DFLASH2_VOCAB * _DFLASH2_RANK + _DFLASH2_RANK * hidden
    return _DFLASH2_TAPS * hidden * hidden + 2 * hidden + _DFLASH2_LAYERS * layer + selector


def _published_dflash(model: Model, drafts: int | None) -> DrafterMemory:
    if (model.spec.hidden, model.spec.vocab_size) != (_DFLASH2_HIDDEN, _DFLASH2_VOCAB):
        raise ConfigError("--speculate dflash needs --drafter DIR: the published drafter is for Qwen3.8-27B")
    count = dflash2_parameters()
    line = BudgetLine("weights dflash", 2 * count, f"the published drafter's {count:,} parameters in bfloat16")
    group = _group(_DFLASH2_WINDOW, _DFLASH2_LAYERS, _DFLASH2_KV_HEADS, _DFLASH2_HEAD_DIM)
    return DrafterMemory("dflash", drafts or _DFLASH2_BLOCK - 1, line, group, _DFLASH2_TAPS)


def _dflash(folder: Path, drafts: int | None) -> DrafterMemory:
    fields = Fields(read_json_object(folder / "config.json"))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no safetensors files")
    tensors = [tensor for file in files for tensor in read_header(file).values()]
    inner = fields.mapping("dflash_config")
    block = (inner if inner.get("block_size") is not None else fields).count("block_size", _DFLASH2_BLOCK)
    heads, layers = fields.count("num_attention_heads"), fields.layer_count("num_hidden_layers")
    head_dim = fields.count("head_dim", fields.count("hidden_size") // heads)
    window = fields.count("sliding_window") if fields.get("sliding_window") is not None else None
    stored = sum(tensor.nbytes for tensor in tensors)
    line = BudgetLine("weights dflash", stored, f"{len(tensors)} tensors of {folder}, as they are stored")
    taps = inner.get("target_layer_ids")
    if not isinstance(taps, list) or not taps:
        raise CheckpointError(f"{folder / 'config.json'}: dflash_config.target_layer_ids must list the layers that are tapped")
    group = _group(window, layers, fields.count("num_key_value_heads", heads), head_dim)
    return DrafterMemory("dflash", drafts or max(1, block - 1), line, group, len(taps))
