"""What may be asked for differently where a plan does not fit: every setting that takes memory, one change of each kind at a
time. Of a kind the last takes least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.plan.dtypes import itemsize
from headrace.plan.execution import chunk_tokens
from headrace.plan.memory_limit import memory_limit
from headrace.plan.planner import Plan, Request
from headrace.plan.published import FORMATS
from headrace.plan.speculation import DRAFT_SETTINGS

KV_DTYPE = "int8"
"""Of the types of 8 bits the one that costs least quality (docs/decisions/0022-shipped-model.md); their bytes are the same."""
SMALL_CHUNK_TOKENS = 256
_SMALLER_FORMATS = ("fp8", "nvfp4", "w4a16", "w4a16-head8")
"""Falling: those that models are published in, and the head in 8 bits too."""
_HEAD8 = "-head8"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A different request; equal to itself alone. kind: only one of each is made at a time. settings: what to give instead, by
    flag ("kv-dtype"; "format" is the name's, behind the colon), None for what is to be left out.
    """

    kind: str
    settings: Mapping[str, Any]
    apply: Callable[[Request], Request]


def changes(plan: Plan) -> tuple[Change, ...]:
    """Those that cost little, or what nobody needs."""
    parts = (_vision, _memory, _steps, _types, _drafts, _checkpoints, _formats)
    return tuple(change for part in parts for change in part(plan))


def last_resorts(plan: Plan) -> Iterator[Change]:
    """Those that make an engine slower."""
    if min(chunk_tokens(plan.request.engine, stage.hardware) for stage in plan.case.stages) > SMALL_CHUNK_TOKENS:
        yield _engine("chunk", "chunk-tokens", SMALL_CHUNK_TOKENS)
    if plan.request.engine.graphs != "off":
        yield _engine("graphs", "graphs", "off")


def _vision(plan: Plan) -> Iterator[Change]:
    """Without the tower that is asked for."""
    if plan.request.plan.vision == "on":
        settings = {"vision": "off"}
        yield Change("vision", settings, lambda request: replace(request, plan=replace(request.plan, vision="off")))


def _memory(plan: Plan) -> Iterator[Change]:
    """A cache of what there is room for, instead of a size; as much memory as usual, where less or too much is asked for."""
    engine, hardware = plan.request.engine, [stage.hardware for stage in plan.case.stages]
    usual = replace(engine, memory_bytes=None, memory_fraction=None)
    if engine.cache_bytes is not None:
        yield _engine("memory", "cache-bytes", None)
    for name in ("memory_bytes", "memory_fraction"):
        limits = [(memory_limit(each, usual)[0] or 0, memory_limit(each, engine)[0] or 0, each.free_bytes) for each in hardware]
        if getattr(engine, name) is not None and any(not least <= asked <= free for least, asked, free in limits):
            yield _engine("memory", name.replace("_", "-"), None)


def _steps(plan: Plan) -> Iterator[Change]:
    """Chunks and pages of the usual size, where larger ones are asked for."""
    engine, usual = plan.request.engine, EngineConfig()
    chunk = engine.chunk_tokens
    if chunk is not None and any(chunk > chunk_tokens(usual, stage.hardware) for stage in plan.case.stages):
        yield _engine("chunk", "chunk-tokens", None)
    if engine.page_tokens > usual.page_tokens:
        yield _engine("pages", "page-tokens", usual.page_tokens)


def _types(plan: Plan) -> Iterator[Change]:
    if itemsize(plan.dtypes.compute) > 2:
        yield _engine("dtype", "dtype", "auto")
    if itemsize(plan.dtypes.kv) > 1:
        yield _engine("kv", "kv-dtype", KV_DTYPE)
    if itemsize(plan.dtypes.state) > 2:
        yield _engine("state", "state-dtype", "fp16")


def _drafts(plan: Plan) -> Iterator[Change]:
    """Fewer drafts, the checkpoint's own head instead of a drafter, none: of a drafter that was asked for."""
    method = plan.drafter.method
    if method == "off" or plan.request.decides:
        return
    if plan.drafter.drafts > 1 and plan.request.engine.verify_tokens is None:
        yield _engine("drafts", "draft-tokens", 1)
    if method == "dflash" and plan.model.weight_map.kept:
        yield _instead(plan, "mtp")
    yield _instead(plan, "off")


def _instead(plan: Plan, method: str) -> Change:
    """Another drafter. What is for the one that was asked for is left out: its value is None."""
    without = {name: None for name in ("drafter", *DRAFT_SETTINGS) if getattr(plan.request.engine, name) is not None}
    settings = {"speculate": method, **{name.replace("_", "-"): None for name in without}}
    return Change("drafts", settings, lambda request: replace(
        request, engine=replace(request.engine, speculate=method, **without)  # type: ignore[arg-type]
    ))


def _checkpoints(plan: Plan) -> Iterator[Change]:
    if plan.request.engine.prefix_cache == "on" and plan.request.engine.gpu_checkpoint_bytes:
        yield _engine("checkpoints", "gpu-checkpoint-bytes", 0)


def _formats(plan: Plan) -> Iterator[Change]:
    """Formats of fewer bytes, of a model that is declared in them."""
    given = plan.request.format
    if given is None:
        return
    if given in _SMALLER_FORMATS:
        names = _SMALLER_FORMATS[_SMALLER_FORMATS.index(given) + 1 :]
    elif given.startswith("w4"):
        names = (given + _HEAD8,) if given + _HEAD8 in FORMATS else ()
    else:
        names = _SMALLER_FORMATS if given == FORMATS[0] else _SMALLER_FORMATS[1:]
    for name in names:
        yield _format(name)


def _format(name: str) -> Change:
    return Change("format", {"format": name}, lambda request: replace(request, format=name))


def _engine(kind: str, flag: str, value: Any) -> Change:
    field = flag.replace("-", "_")
    return Change(kind, {flag: value}, lambda request: replace(request, engine=replace(request.engine, **{field: value})))
