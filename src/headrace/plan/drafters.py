"""What speculation takes: a drafter's weights, its cache groups, and the hidden states that wait for it.

lookup has neither weights nor a cache. mtp is the checkpoint's own head, a layer of full attention whose keys and values are
pages like any layer's. dflash is a drafter of its own, whose layers see a window: that of --drafter DIR, or the published one
of Qwen3.8-27B (DFlash2: 1,924,404,480 parameters, 5 layers of 8 heads of 128 that see 2,048 tokens, 5 tapped layers, 7 drafts).
Every sequence keeps a ring of the tapped hidden states of the last RING_TOKENS tokens, and those of its last token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.cache.layout import CacheGroup
from headrace.errors import ConfigError
from headrace.models.spec import AttentionSpec
from headrace.plan.checkpoint import Model
from headrace.plan.dflash import DFlashSpec, open_dflash, parameters, published_dflash
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes
from headrace.plan.extras import BudgetLine

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
        "dflash": lambda: _dflash(model, folder, drafts) if folder else _published_dflash(model, drafts),
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


def _published_dflash(model: Model, drafts: int | None) -> DrafterMemory:
    spec, weights = published_dflash()
    if (model.spec.hidden, model.spec.vocab_size) != (spec.hidden, spec.vocab_size):
        raise ConfigError("--speculate dflash needs --drafter DIR: the published drafter is for Qwen3.8-27B")
    count = parameters(weights)
    line = BudgetLine("weights dflash", 2 * count, f"the published drafter's {count:,} parameters in bfloat16")
    return _dflash_memory(spec, drafts, line)


def _dflash(model: Model, folder: Path, drafts: int | None) -> DrafterMemory:
    found = open_dflash(folder, model.spec)
    tensors = [found.checkpoint.tensors[weight.source] for weight in found.weight_map.weights]
    stored = sum(tensor.nbytes for tensor in tensors)
    line = BudgetLine("weights dflash", stored, f"{len(tensors)} tensors of {folder}, as they are stored")
    return _dflash_memory(found.spec, drafts, line)


def _dflash_memory(spec: DFlashSpec, drafts: int | None, line: BudgetLine) -> DrafterMemory:
    mixer, most = spec.attention, spec.block - 1
    if drafts is not None and drafts > most:
        raise ConfigError(f"draft_tokens {drafts}: the drafter proposes {most} at most, a block of {spec.block} but one")
    group = _group(mixer.window, len(spec.layers), mixer.kv_heads, mixer.head_dim)
    return DrafterMemory("dflash", drafts or most, line, group, len(spec.taps))
