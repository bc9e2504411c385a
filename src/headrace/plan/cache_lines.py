"""Lines of the cache, and of what attention gathers from it on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.models.spec import ModelSpec
from headrace.plan.cache_needs import CacheNeeds
from headrace.plan.dtypes import Dtypes, itemsize, token_bytes
from headrace.plan.extras import AMONG, BudgetLine
from headrace.plan.workspace import gathered_bytes, mask_bytes
from headrace.quantities import counted, exact_size


def cache_lines(layout: CacheLayout, dtypes: Dtypes, state_bytes: int) -> list[BudgetLine]:
    lines = page_lines(layout, dtypes)
    if state_bytes:
        why = f"{counted(layout.slots, 'sequence')} of {exact_size(state_bytes)}, {dtypes.state}"
        lines.append(BudgetLine("state slots", layout.slots * state_bytes, why))
    if layout.checkpoints:
        why = f"{counted(layout.checkpoints, 'state')} of {exact_size(state_bytes)}, kept where conversations resume"
        lines.append(BudgetLine("gpu checkpoints", layout.checkpoints * state_bytes, why))
    return lines


def page_lines(layout: CacheLayout, dtypes: Dtypes) -> list[BudgetLine]:
    """One for each group."""
    lines = []
    for group, count in zip(layout.groups, layout.pages, strict=True):
        size = layout.page_tokens * token_bytes(group, dtypes.kv)
        kind = "full context" if group.window is None else f"window of {group.window}"
        pages = f"{counted(count, 'page')} of {counted(layout.page_tokens, 'token')}"
        why = f"{pages}, {counted(len(group.layers), 'layer')}, {kind}, {dtypes.kv}"
        lines.append(BudgetLine(f"kv pages {group.index}", count * size, why))
    return lines


def gathered_lines(
    spec: ModelSpec, layout: CacheLayout, dtypes: Dtypes, fixed: Sequence[BudgetLine]
) -> list[BudgetLine]:
    """What attention needs on a CPU, where it gathers what it reads, beyond the workspace of `fixed`."""
    groups = layout.groups
    if not groups:
        return []
    exact = max(4, itemsize(dtypes.compute))
    count = max(gathered_bytes(spec, group, layout.pages[group.index] * layout.page_tokens, exact) for group in groups)
    count += max(mask_bytes(spec, group, exact) for group in groups)
    there = sum(line.bytes for line in fixed if line.name.endswith("workspace"))
    why = f"one layer's keys and values of all sequences, gathered, and masks: {exact_size(count)}{AMONG}"
    return [BudgetLine("attention workspace", count - there, why)] if count > there else []


def gathered_share(needs: CacheNeeds) -> float:
    """Of the cache's bytes, at most, those of gathered_lines."""
    exact = max(4, itemsize(needs.dtypes.compute))
    spec, page = needs.spec, needs.config.page_tokens
    shares = (gathered_bytes(spec, each, page, exact) / needs.page_bytes(each) for each in cache_groups(spec))
    return max(shares, default=0.0)
