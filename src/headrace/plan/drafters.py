"""What speculation takes: a drafter's weights, its cache groups, and the hidden states that wait for it.

lookup has neither weights nor a cache. mtp is the checkpoint's own head, a layer of full attention whose keys and values lie in
the pages of the target's, and whose state has what the target made of the last token. dflash is a
drafter of its own, whose layers see a window: that of --drafter DIR, or the published one
of Qwen3.8-27B (DFlash2: 1,924,404,480 parameters, 5 layers of 8 heads of 128 that see 2,048 tokens, 5 tapped layers, 7 drafts).
Every sequence keeps a ring of the tapped hidden states of the last RING_TOKENS tokens, and those of its last token, for dflash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.cache.layout import CacheGroup
from headrace.errors import ConfigError
from headrace.models.spec import DrafterCache
from headrace.plan.budget import weight_bytes, widening_bytes
from headrace.plan.checkpoint import Model
from headrace.plan.dflash import DFlashSpec, open_dflash, parameters, published_dflash
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes
from headrace.plan.extras import BudgetLine
from headrace.plan.mtp import mtp_cache, mtp_head

Method = Literal["off", "lookup", "mtp", "dflash"]
RING_TOKENS = 64
_LOOKUP_DRAFTS = 7
_MTP_DRAFTS = 4


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """drafts: the most of a row. line: the weights, None without any; wide: what norms of them take more. cache: what lies in
    the model's pages and states. group: of pages of its own, None without any. taps: hidden states kept of a token.
    """

    method: Method
    drafts: int
    line: BudgetLine | None = None
    group: CacheGroup | None = None
    taps: int = 0
    wide: BudgetLine | None = None
    cache: DrafterCache = field(default_factory=DrafterCache)

    @property
    def lines(self) -> tuple[BudgetLine, ...]:
        return tuple(line for line in (self.line, self.wide) if line is not None)

    def slot_bytes(self, hidden: int, dtypes: Dtypes) -> int:
        """Of one sequence's hidden states: the ring's and the last token's."""
        return (RING_TOKENS + 1) * self.taps * hidden * itemsize(dtypes.compute)

    def bytes_per_token(self, dtypes: Dtypes) -> int:
        """Keys and values of every token of the context."""
        layers = sum(token_bytes(_group(None, 1, mixer.kv_heads, mixer.head_dim), dtypes.kv) for mixer in self.cache.attention)
        return layers + self._own_bytes_per_token(dtypes)

    def _own_bytes_per_token(self, dtypes: Dtypes) -> int:
        return token_bytes(self.group, dtypes.kv) if self.group and self.group.window is None else 0

    def bytes_per_sequence(self, dtypes: Dtypes) -> int:
        """Keys and values of a window, whatever the length."""
        return self.group.window * token_bytes(self.group, dtypes.kv) if self.group and self.group.window else 0


NO_DRAFTER = DrafterMemory("off", 0)


def drafter_memory(
    model: Model, method: Method, drafts: int | None, folder: Path | None, dtypes: Dtypes
) -> DrafterMemory:
    """drafts: None takes the drafter's usual number. Raises ConfigError for a drafter that there is not, CheckpointError for
    tensors that are missing or do not fit.
    """
    if drafts is not None and drafts < 1:
        raise ConfigError(f"draft_tokens must be 1 or more, not {drafts}; --speculate off drafts nothing")
    if folder is not None and method != "dflash":
        raise ConfigError(f"--drafter {folder} is for --speculate dflash, not {method}")
    makers: Mapping[Method, Callable[[], DrafterMemory]] = {
        "off": lambda: NO_DRAFTER,
        "lookup": lambda: DrafterMemory("lookup", drafts or _LOOKUP_DRAFTS),
        "mtp": lambda: _mtp(model, drafts or _MTP_DRAFTS, dtypes),
        "dflash": lambda: _dflash(model, folder, drafts) if folder else _published_dflash(model, drafts),
    }
    return makers[method]()


def _mtp(model: Model, drafts: int, dtypes: Dtypes) -> DrafterMemory:
    kept = model.weight_map.kept
    if any(name.endswith("_scale_inv") for name in kept):  # fp8 in blocks, which is planned before it is served
        stored = sum(model.checkpoint.tensors[name].nbytes for name in kept)
        line = BudgetLine("weights mtp", stored, f"{len(kept)} tensors of the multi-token head, as they are stored")
        return DrafterMemory("mtp", drafts, line, cache=mtp_cache(model.spec))
    weights = mtp_head(model).weight_map
    wide = widening_bytes(weights, dtypes.compute)
    why = f"{len(weights.weights)} tensors of the multi-token head, plain ones in {dtypes.compute}"
    line = BudgetLine("weights mtp", weight_bytes(weights, dtypes.compute) - wide, why)
    more = BudgetLine("wide weights mtp", wide, "its norms, which are kept in float32") if wide else None
    return DrafterMemory("mtp", drafts, line, wide=more, cache=mtp_cache(model.spec))


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
