"""What speculation takes: a drafter's weights, what it keeps of a sequence, and the hidden states that wait for it.

lookup has neither weights nor a cache. mtp is the checkpoint's own head, a layer of full attention whose keys and values lie in
the pages of the target's, and whose state has what the target made of the last token. dflash is a drafter of its own, whose
layers see a window, which every state has (`plan.dflash.dflash_cache`): that of --drafter DIR, the checkpoint's own, or the
published one of Qwen3.8-27B (DFlash2: 1,924,404,480 parameters, 5 layers of 8 heads of 128 that see 2,048 tokens, 5 tapped
layers, 7 drafts). For it every slot has a ring of the tapped hidden states of the last RING_TOKENS tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

from headrace.cache.layout import CacheGroup
from headrace.errors import ConfigError
from headrace.models.spec import DrafterCache, WeightMap
from headrace.plan.checkpoint import Model
from headrace.plan.dflash import DFlashSpec, dflash_cache, open_dflash, parameters, published_dflash
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes
from headrace.plan.extras import BudgetLine
from headrace.plan.mtp import mtp_cache, mtp_head
from headrace.plan.weight_memory import weight_bytes, widening_bytes
from headrace.quantities import counted
from headrace.types import MOST_DRAFTS

Method = Literal["off", "lookup", "mtp", "dflash"]
RING_TOKENS = 64
KEPT_TOGETHER = 512
"""Tokens of a prompt whose tapped hidden states lie side by side at once."""
_LOOKUP_DRAFTS = 7
_MTP_DRAFTS = 4


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """drafts: the most of a row; extended: of them, those that lookup puts behind the drafter's own. line: the weights, None
    without any; wide: what norms of them take more. cache: what lies in the model's pages and states. taps: hidden states that
    wait of a token.
    """

    method: Method
    drafts: int
    line: BudgetLine | None = None
    wide: BudgetLine | None = None
    cache: DrafterCache = field(default_factory=DrafterCache)
    taps: int = 0
    extended: int = 0

    @property
    def lines(self) -> tuple[BudgetLine, ...]:
        return tuple(line for line in (self.line, self.wide) if line is not None)

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn from scores; lookup's are point masses."""
        return self.method in ("mtp", "dflash")

    @property
    def observes(self) -> int:
        """Nodes of what it takes in of a captured step, at most."""
        return {"off": 0, "lookup": 8, "mtp": 40, "dflash": 80}[self.method] + (8 if self.extended else 0)

    @property
    def proposes(self) -> tuple[int, ...]:
        """Nodes of its captured proposals, at most: one for each number of drafts that is worth one."""
        own = self.drafts - self.extended
        made = {"off": (), "lookup": (20,), "mtp": tuple(40 * k for k in range(1, own + 1)), "dflash": (200 + 10 * own,)}
        return *made[self.method], *((made[self.method][-1] + 20,) if self.extended else ())

    def slot_bytes(self, hidden: int, dtypes: Dtypes) -> int:
        """Of one slot: hidden states that wait, and whose they are."""
        return RING_TOKENS * (self.taps * hidden * itemsize(dtypes.compute) + 8) if self.taps else 0

    def step_bytes(self, tokens: int, hidden: int, dtypes: Dtypes) -> int:
        """Of a step of so many tokens: hidden states that are tapped, and what is made of them side by side."""
        together = min(tokens, KEPT_TOGETHER) * (self.taps + 2)
        return (tokens * self.taps + together) * hidden * itemsize(dtypes.compute) if self.taps else 0

    def bytes_per_token(self, dtypes: Dtypes) -> int:
        """Keys and values of every token of the context."""
        pages = (CacheGroup(0, None, (0,), 2 * m.kv_heads * m.head_dim, 2 * m.kv_heads) for m in self.cache.attention)
        return sum(token_bytes(layer, dtypes.kv) for layer in pages)

    def bytes_per_sequence(self, dtypes: Dtypes) -> int:
        """What it keeps of a sequence whatever its length, in numbers of the activations' type: windows of keys and values."""
        kept = (prod(state.shape) for state in self.cache.states if state.type == "compute")
        return sum(kept) * itemsize(dtypes.compute) if self.taps else 0


NO_DRAFTER = DrafterMemory("off", 0)


def drafter_memory(
    model: Model, method: Method, drafts: int | None, folder: Path | None, dtypes: Dtypes, context: int | None = None
) -> DrafterMemory:
    """drafts: None takes the drafter's usual number. context: the longest sequence, None for the model's own limit. Raises
    ConfigError for a drafter that there is not, CheckpointError for tensors that are missing or do not fit.
    """
    if folder is not None and method != "dflash":
        raise ConfigError(f"--drafter {folder} is for --speculate dflash, not {method}")
    most_tokens = context or model.spec.max_context
    makers: Mapping[Method, Callable[[], DrafterMemory]] = {
        "off": lambda: NO_DRAFTER,
        "lookup": lambda: DrafterMemory("lookup", drafts or _LOOKUP_DRAFTS),
        "mtp": lambda: _mtp(model, drafts or _MTP_DRAFTS, dtypes),
        "dflash": lambda: (
            _dflash(model, folder, drafts, dtypes, most_tokens) if folder
            else _published_dflash(model, drafts, dtypes, most_tokens)
        ),
    }
    return makers[method]()


def _mtp(model: Model, drafts: int, dtypes: Dtypes) -> DrafterMemory:
    kept = model.weight_map.kept
    if any(name.endswith("_scale_inv") for name in kept):  # fp8 in blocks, which is planned before it is served
        stored = sum(model.checkpoint.tensors[name].nbytes for name in kept)
        line = BudgetLine("weights mtp", stored, f"{counted(len(kept), 'tensor')} of the multi-token head, as they are stored")
        return DrafterMemory("mtp", drafts, line, cache=mtp_cache(model.spec))
    weights = mtp_head(model).weight_map
    wide = widening_bytes(weights, dtypes.compute)
    why = f"{counted(len(weights.weights), 'tensor')} of the multi-token head, plain ones in {dtypes.compute}"
    line = BudgetLine("weights mtp", weight_bytes(weights, dtypes.compute) - wide, why)
    more = BudgetLine("wide weights mtp", wide, "its norms, which are kept in float32") if wide else None
    return DrafterMemory("mtp", drafts, line, wide=more, cache=mtp_cache(model.spec))


def _published_dflash(model: Model, drafts: int | None, dtypes: Dtypes, context: int) -> DrafterMemory:
    spec, weights = published_dflash()
    if (model.spec.hidden, model.spec.vocab_size) != (spec.hidden, spec.vocab_size):
        raise ConfigError("--speculate dflash needs --drafter DIR: the published drafter is for Qwen3.8-27B")
    return _dflash_memory(spec, weights, drafts, dtypes, context)


def _dflash(model: Model, folder: Path, drafts: int | None, dtypes: Dtypes, context: int) -> DrafterMemory:
    found = open_dflash(folder, model.spec)
    return _dflash_memory(found.spec, found.weight_map, drafts, dtypes, context)


def _dflash_memory(spec: DFlashSpec, weights: WeightMap, drafts: int | None, dtypes: Dtypes, context: int) -> DrafterMemory:
    most = min(spec.block - 1, MOST_DRAFTS)
    if drafts is not None and drafts > most:
        raise ConfigError(f"draft_tokens {drafts}: the drafter proposes {most} at most, a block of {spec.block} but one")
    wide = widening_bytes(weights, dtypes.compute)
    tensors, numbers = counted(len(weights.weights), "tensor"), counted(parameters(weights), "number")
    why = f"{tensors} of the drafter, {numbers}, plain ones in {dtypes.compute}"
    line = BudgetLine("weights dflash", weight_bytes(weights, dtypes.compute) - wide, why)
    more = BudgetLine("wide weights dflash", wide, "its norms, which are kept in float32") if wide else None
    return DrafterMemory("dflash", drafts or most, line, more, dflash_cache(spec, context), len(spec.taps))
