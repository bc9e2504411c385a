"""Memory as arithmetic: what every part takes, in bytes, before anything is allocated. The engine allocates exactly this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from headrace.cache.layout import CacheGroup, CacheLayout, cache_groups, state_elements
from headrace.config import Dtype, EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import ModelSpec, Weight, WeightMap
from headrace.plan.draft_memory import progress_bytes, ring_bytes
from headrace.plan.dtypes import STORED_BYTES, Dtypes, itemsize, token_bytes
from headrace.plan.execution import chunk_tokens, resolve_execution
from headrace.plan.extras import NONE, BudgetLine, Extras
from headrace.plan.graph_rows import EIGHT_BIT_NODES, FOUR_BIT_NODES, PLAIN_NODES, StepNodes, graph_bytes, prompt_shapes
from headrace.plan.sampler_memory import sampler_bytes
from headrace.plan.workspace import (
    ASSUMED_PROCESSORS,
    LOGIT_ROWS,
    SMALL_BYTES,
    Sizes,
    decoded_bytes,
    gathered_bytes,
    kept_bytes,
    layers_bytes,
    library_bytes,
    logit_rows,
    logits_bytes,
    mask_bytes,
    reference_layers_bytes,
    reference_mlp_bytes,
    step_tokens,
    table_bytes,
    upload_bytes,
)

DEFAULT_MAX_SEQS = 64
DEFAULT_GPU_FRACTION = 0.90
CPU_CACHE_SHARE = 4
"""On a CPU the cache takes at most one part in this many of the RAM, unless told otherwise."""
CHECKPOINT_SHARE = 8
"""Checkpoints of states take at most one part in this many of the cache, unless told otherwise."""
LEAST_CHECKPOINTS = 8
"""So many are wanted however few sequences run: a conversation has some at its end, and there are others."""
_AMONG = ", the layers' workspace among them"
_MOST_DEPTH = 2
"""Uncommitted plans that the loop holds at most, see plan.execution."""
LOW_BIT_TYPES = ("int32", "int8", "uint8", "float8_e4m3fn")
"""Of weights that are decoded when they are used."""


@dataclass(frozen=True, slots=True)
class Budget:
    """All lines, and what the cache lines buy. context: the longest sequence; chunk_tokens: of a step that computes prompts;
    notes: what was decided and why.
    """

    lines: tuple[BudgetLine, ...]
    layout: CacheLayout
    context: int
    max_seqs: int
    chunk_tokens: int
    notes: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        return sum(line.bytes for line in self.lines)


def weight_bytes(weights: WeightMap, dtype: Dtype) -> int:
    """Bytes of the weights on the device: vectors (norms, decays) are kept in float32 or wider, packed weights and their scales
    as they are stored, the rest in `dtype`.
    """
    return sum(_weight_bytes(weight, dtype) for weight in weights.weights) + widening_bytes(weights, dtype)


def widening_bytes(weights: WeightMap, dtype: Dtype) -> int:
    """What vectors take more because they are kept in float32 or wider."""
    vectors = (weight for weight in weights.weights if weight.dtype is None and len(weight.shape) == 1)
    return sum(weight.shape[0] for weight in vectors) * (max(4, itemsize(dtype)) - itemsize(dtype))


def _weight_bytes(weight: Weight, dtype: Dtype) -> int:
    if weight.dtype is None:
        return prod(weight.shape) * itemsize(dtype)
    return prod(weight.shape) * (4 if weight.transform == "offset_bytes" else STORED_BYTES[weight.dtype])


def make_budget(
    spec: ModelSpec, weights: WeightMap, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, drafts: int = 0,
    extras: Extras = NONE,
) -> Budget:
    """The budget of one engine whose rows carry at most `drafts`. Raises ConfigError, with the numbers, when it cannot fit."""
    check_settings(spec, config)
    chunk = chunk_tokens(config, hardware)
    config = replace(config, chunk_tokens=chunk)
    graphs = resolve_execution(config, hardware, dtypes.compute).graphs
    sized = partial(_sized, spec, weights, hardware, config, dtypes, drafts, extras, graphs=graphs)
    seqs = config.max_seqs or _most_beside_fixed(sized)
    fixed, cache_bytes, source = sized(seqs)
    notes, state_bytes = [], state_bytes_per_sequence(spec, dtypes)
    if config.max_seqs is None:
        fewer, why = _default_seqs(spec, config, dtypes, cache_bytes, drafts, extras)
        if fewer < seqs:
            seqs = fewer
            fixed, cache_bytes, source = sized(seqs)
            notes.append(f"max-seqs: {seqs}, so that {why} ({state_bytes:,} bytes each)")
    notes.insert(0, f"cache: {cache_bytes:,} bytes, {source}")
    layout = _buy(spec, config, dtypes, cache_bytes, seqs, drafts, extras, padding=graphs or drafts > 0)
    context, note = _context(spec, config, layout, cache_bytes)
    notes.append(note)
    gathered = _gathered_lines(spec, layout, dtypes, fixed) if hardware.kind == "cpu" else []
    lines = (*fixed, *gathered, *_cache_lines(layout, dtypes, state_bytes))
    budget = Budget(lines, layout, context, seqs, chunk, tuple(notes))
    _check_memory(budget, hardware)
    return budget


def _sized(
    spec: ModelSpec, weights: WeightMap, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, drafts: int, extras: Extras,
    seqs: int, *, graphs: bool,
) -> tuple[tuple[BudgetLine, ...], int, str]:
    """(lines of fixed size, the cache's bytes, where they come from) of an engine of so many sequences."""
    fixed = _fixed_lines(spec, weights, hardware, config, dtypes, seqs, drafts, extras, graphs=graphs)
    return fixed, *_cache_bytes(spec, hardware, config, dtypes, sum(line.bytes for line in fixed), drafts, extras)


def _most_beside_fixed(sized: Callable[[int], object]) -> int:
    """The usual sequences, or half as many and half again, so that what they need beside the cache leaves some of it."""
    seqs = DEFAULT_MAX_SEQS
    while seqs > 1:
        try:
            sized(seqs)
            return seqs
        except ConfigError:
            seqs //= 2
    return seqs


def with_full_pages(budget: Budget, count: int, dtypes: Dtypes) -> Budget:
    """The same budget with fewer pages of full context, no more than `count`: what the smallest of several cards has."""
    layout = budget.layout
    pages = tuple(
        min(has, count) if group.window is None else has for group, has in zip(layout.groups, layout.pages, strict=True)
    )
    smaller = {line.name: line for line in _page_lines(replace(layout, pages=pages), dtypes)}
    full = any(group.window is None for group in layout.groups)
    context = min(budget.context, count * layout.page_tokens) if full else budget.context
    lines = tuple(smaller.get(line.name, line) for line in budget.lines)
    return replace(budget, lines=lines, layout=replace(layout, pages=pages), context=context)


def _check_memory(budget: Budget, hardware: Hardware) -> None:
    """A CPU's cache is only taken as it is used, and what was asked for may never fit. A GPU's is taken at start."""
    has, whose = (hardware.free_bytes, "free") if hardware.kind == "cuda" else (hardware.memory_bytes, "")
    if budget.total_bytes > has:
        largest = max(budget.lines, key=lambda line: line.bytes)
        raise ConfigError(
            f"the engine would need {budget.total_bytes:,} bytes, the {hardware.name if whose else 'machine'} has {has:,}"
            f"{whose and ' ' + whose}; most of it is {largest.name}, {largest.bytes:,} bytes: {largest.why}"
        )


def state_bytes_per_sequence(spec: ModelSpec, dtypes: Dtypes) -> int:
    """Bytes of one state slot: S in the state type, convolution tails in the activations' type, and what a drafter keeps."""
    s, tails = state_elements(spec)
    types = {"compute": itemsize(dtypes.compute), "kv": itemsize(dtypes.kv), "int64": 8}
    kept = sum(prod(state.shape) * types[state.type] for state in spec.drafter.states) if spec.drafter else 0
    return s * itemsize(dtypes.state) + tails * itemsize(dtypes.compute) + kept


def check_settings(spec: ModelSpec, config: EngineConfig) -> None:
    """Raise ConfigError for settings that no machine could serve this model with."""
    for name in ("context", "max_seqs", "chunk_tokens", "page_tokens", "memory_bytes", "cache_bytes"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if config.memory_fraction is not None and not 0 < config.memory_fraction <= 1:
        raise ConfigError(f"memory_fraction must be above 0 and at most 1, not {config.memory_fraction}")
    given = [n for n in ("memory_bytes", "memory_fraction", "cache_bytes") if getattr(config, n) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other: give one")
    for name in ("gpu_checkpoint_bytes", "ram_cache_bytes"):
        value = getattr(config, name)
        if value is not None and value < 0:
            raise ConfigError(f"{name} must be 0 or more, not {value}")
    _check_tiers(spec, config)
    if config.wait_for_gpu < 0:
        raise ConfigError(f"wait_for_gpu must be 0 or more, not {config.wait_for_gpu}")
    if config.context == 1:
        raise ConfigError("context must be 2 or more, not 1: a prompt and an answer of a token each")
    for name, tokens in (("context", config.context), ("page_tokens", config.page_tokens)):
        if tokens is not None and tokens > spec.max_context:
            raise ConfigError(f"{name} {tokens} is more than the model's own limit of {spec.max_context} tokens")


def _check_tiers(spec: ModelSpec, config: EngineConfig) -> None:
    """Raise ConfigError for what cannot be kept beside the device."""
    if config.ssd_cache is not None and config.ssd_cache_bytes < 1:
        raise ConfigError(f"ssd_cache_bytes must be 1 or more, not {config.ssd_cache_bytes}")
    given = "ram_cache_bytes" if config.ram_cache_bytes else "ssd_cache" if config.ssd_cache is not None else None
    windows = [group.window for group in cache_groups(spec) if group.window is not None]
    if given and windows and config.prefix_cache == "on":
        raise ConfigError(
            f"{given}: {spec.model_type} has layers with a window of {min(windows)} tokens, whose pages are kept on the device "
            "alone: leave it out"
        )


def _default_seqs(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, cache_bytes: int, drafts: int, extras: Extras
) -> tuple[int, str]:
    """(sequences, why no more): states take half of the cache, or less where the context that is asked for needs the rest."""
    half = max(1, cache_bytes // 2 // max(1, state_bytes_per_sequence(spec, dtypes)))
    alone, two = (_least_bytes(spec, config, dtypes, seqs, drafts, extras) for seqs in (1, 2))
    beside = max(1, 1 + (cache_bytes - alone) // max(1, two - alone))
    if beside < half:
        return beside, f"the context of {config.context} tokens has room beside their states"
    return half, "states take at most half of the cache"


def _least_bytes(spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, seqs: int, drafts: int, extras: Extras) -> int:
    """Of a cache of so many sequences of which one can have the context that is asked for."""
    one = full_cache_bytes(spec, config, dtypes, config.context or 1, 1, drafts, extras)
    windows = [group for group in extras.all_groups(spec) if group.window is not None]
    grown = sum(
        (_group_pages(group, config, config.context or spec.max_context, seqs, drafts)
         - _group_pages(group, config, config.context or spec.max_context, 1, drafts)) * _page_bytes(group, config, dtypes)
        for group in windows
    )
    return one + (seqs - 1) * state_bytes_per_sequence(spec, dtypes) + grown


def _fixed_lines(
    spec: ModelSpec, weights: WeightMap, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, seqs: int, drafts: int,
    extras: Extras, *, graphs: bool,
) -> tuple[BudgetLine, ...]:
    assert config.chunk_tokens is not None
    slots = seqs + (graphs or drafts > 0)
    low_bit = any(weight.dtype in LOW_BIT_TYPES for weight in weights.weights)
    wide = widening_bytes(weights, dtypes.compute)
    sizes = Sizes(
        step_tokens(config.chunk_tokens, seqs, drafts), seqs, drafts, itemsize(dtypes.compute),
        hardware.processors or ASSUMED_PROCESSORS, hardware.capability, low_bit and hardware.kind == "cuda",
    )
    lines = [
        BudgetLine("weights", weight_bytes(weights, dtypes.compute) - wide,
                   f"{len(weights.weights)} tensors, plain ones in {dtypes.compute}"),
        *([BudgetLine("wide weights", wide, "norms and decays, which are kept in float32")] if wide else []),
        BudgetLine("sampler", sampler_bytes(slots, spec.vocab_size), f"token counts, parameters of {seqs} sequences"),
        *(_gpu_step_lines(spec, sizes) if hardware.kind == "cuda" else _cpu_step_lines(spec, sizes, weights)),
        _table_line(spec, config, dtypes, hardware, sizes, slots, extras, graphs=graphs),
    ]
    if low_bit and hardware.kind == "cuda" and sizes.narrow > 2:
        lines.append(BudgetLine("low-bit workspace", decoded_bytes(weights, sizes.exact), "the largest packed weight, decoded"))
    if drafts:
        slot_bytes = ring_bytes(spec, dtypes, drafts) + progress_bytes(drafts)
        why = f"{slots} slots of {slot_bytes:,} bytes for up to {drafts} drafts a row, one of them padding"
        lines.append(BudgetLine("drafts", slots * slot_bytes, why))
    if graphs:
        more = f" and {drafts} drafts each" if drafts else ""
        kept = "their activations, their logits, and what the driver keeps"
        why = f"steps of up to {seqs} rows{more}, and of short prompts, captured: {kept}"
        shapes = prompt_shapes(seqs, config.chunk_tokens, config.context or spec.max_context)
        tapped = extras.taps * spec.hidden * itemsize(dtypes.compute)
        captured = graph_bytes(
            spec, dtypes, seqs, drafts, LOGIT_ROWS, low_bit=low_bit,
            library_bytes=library_bytes(hardware.capability) if _has_plain(spec, weights) else 0, prompts=len(shapes),
            prompt_bytes=max((layers_bytes(spec, sizes.captured(s)) + s.tokens * tapped for s in shapes), default=0),
            nodes=_step_nodes(weights, extras), taps=extras.taps, coin=config.synthetic_acceptance is not None,
        )
        lines.append(BudgetLine("graphs", captured, why))
    if extras.slot_bytes:
        why = f"{slots} slots of {extras.slot_bytes:,} bytes: {extras.slot_why}"
        lines.append(BudgetLine("draft inputs", slots * extras.slot_bytes, why))
    if slots > seqs:
        pages = sum(_page_bytes(group, config, dtypes) for group in extras.all_groups(spec))
        state = state_bytes_per_sequence(spec, dtypes)
        lines.append(BudgetLine("padding", state + pages, "a state slot and a page for what no sequence may have"))
    return (*lines, *extras.lines)


def _has_plain(spec: ModelSpec, weights: WeightMap) -> bool:
    """Whether a library multiplies by a weight that is not packed."""
    plain = (weight.target for weight in weights.weights if weight.dtype is None and len(weight.shape) == 2)
    return spec.tied or any(target != "embedding.weight" for target in plain)


def _step_nodes(weights: WeightMap, extras: Extras) -> StepNodes:
    packed = {w.dtype for w in weights.weights if w.target.startswith("layers.") and w.dtype in LOW_BIT_TYPES}
    rounds = extras.rounds_inputs or packed - {"int32"}
    found = EIGHT_BIT_NODES if rounds else FOUR_BIT_NODES if packed else PLAIN_NODES
    return replace(found, observes=extras.observes, proposes=extras.proposes)


def _gpu_step_lines(spec: ModelSpec, sizes: Sizes) -> Iterator[BudgetLine]:
    layers, logits = layers_bytes(spec, sizes), logits_bytes(spec, sizes)
    yield BudgetLine("workspace", layers, f"the most of {sizes.tokens} tokens' activations that lies there at once in a layer")
    if logits > layers:
        rows = logit_rows(sizes.rows, sizes.drafts)
        why = f"{rows} rows of logits at once, more of them in slices: {logits:,} bytes{_AMONG}"
        yield BudgetLine("logits workspace", logits - layers, why)
    yield BudgetLine("small workspace", SMALL_BYTES, "a step's tensors of up to 1 MiB, which PyTorch's allocator keeps apart")
    why = "sums that kernels leave for each other, and cuBLAS's workspace, from the first step on"
    yield BudgetLine("kernel buffers", kept_bytes(sizes), why)


def _cpu_step_lines(spec: ModelSpec, sizes: Sizes, weights: WeightMap) -> Iterator[BudgetLine]:
    """One of these lies there at once; lines are what each takes beyond those before."""
    layers = reference_layers_bytes(spec, sizes)
    multiplied = reference_mlp_bytes(spec, sizes) + decoded_bytes(weights, sizes.exact)
    rows = logit_rows(sizes.rows, sizes.drafts)
    logits = 3 * rows * spec.vocab_size * sizes.exact
    yield BudgetLine("workspace", layers, f"{sizes.tokens} tokens' activations")
    if multiplied > layers:
        why = f"the largest packed weight, decoded: {multiplied:,} bytes{_AMONG}"
        yield BudgetLine("low-bit workspace", multiplied - layers, why)
    if logits > max(layers, multiplied):
        why = f"{rows} rows of logits at once, more of them in slices: {logits:,} bytes{_AMONG}"
        yield BudgetLine("logits workspace", logits - max(layers, multiplied), why)


def _table_line(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, hardware: Hardware, sizes: Sizes, slots: int, extras: Extras, *,
    graphs: bool,
) -> BudgetLine:
    """Where sequences' pages are, and the numbers sent with each step, of no more pages than there could be."""
    groups, context = extras.all_groups(spec), config.context or spec.max_context
    most = [hardware.free_bytes // _page_bytes(group, config, dtypes) for group in groups]
    full = [count for group, count in zip(groups, most, strict=True) if group.window is None]
    context = max(1, min([context, *(count * config.page_tokens for count in full)]))
    wanted = sizes.rows * -(-context // config.page_tokens)
    pages = sum(min(wanted, count) for count in most)
    tables = table_bytes(len(groups), slots, context, sizes.drafts, config.page_tokens)
    assert config.chunk_tokens is not None
    tokens = config.chunk_tokens + sizes.rows * (1 + sizes.drafts)
    sent = upload_bytes(len(groups), sizes.rows, slots, tokens, pages, graphs=graphs, drafts=sizes.drafts > 0)
    return BudgetLine("tables", tables + sent, f"page lists of {slots} slots, and the numbers that are sent with a step")


def _cache_bytes(
    spec: ModelSpec, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, fixed_bytes: int, drafts: int, extras: Extras
) -> tuple[int, str]:
    if config.cache_bytes is not None:
        return config.cache_bytes, "as asked for"
    limit, why = memory_limit(hardware, config)
    if limit is None:
        return _cpu_default(spec, hardware, config, dtypes, drafts, extras)
    if limit <= fixed_bytes:
        raise ConfigError(f"the model needs {fixed_bytes:,} bytes before its cache, but it may use {limit:,} bytes ({why})")
    left = limit - fixed_bytes
    return (int(left / (1 + _gathered_share(spec, config, dtypes))) if hardware.kind == "cpu" else left), f"what {why} leaves"


def memory_limit(hardware: Hardware, config: EngineConfig) -> tuple[int | None, str]:
    """(bytes that an engine may take in all, why), of a CPU None where nothing is asked for."""
    if config.memory_bytes is not None:
        return config.memory_bytes, "memory_bytes"
    if config.memory_fraction is not None:
        return int(hardware.memory_bytes * config.memory_fraction), f"memory_fraction {config.memory_fraction:g}"
    if hardware.kind == "cpu":
        return None, ""
    free = hardware.free_bytes - (hardware.memory_bytes - int(hardware.memory_bytes * DEFAULT_GPU_FRACTION))
    return max(0, free), f"{DEFAULT_GPU_FRACTION:.0%} of the {hardware.name} less what others hold"


def _cpu_default(
    spec: ModelSpec, hardware: Hardware, config: EngineConfig, dtypes: Dtypes, drafts: int, extras: Extras
) -> tuple[int, str]:
    seqs = config.max_seqs or DEFAULT_MAX_SEQS
    context = config.context or spec.max_context
    wanted = full_cache_bytes(spec, config, dtypes, context, seqs, drafts, extras)
    if config.prefix_cache == "on" and config.gpu_checkpoint_bytes is None:
        wanted += max(seqs, LEAST_CHECKPOINTS) * state_bytes_per_sequence(spec, dtypes)
    most = hardware.memory_bytes // CPU_CACHE_SHARE
    if wanted <= most:
        return wanted, f"which holds {seqs} sequences of {context} tokens"
    return most, f"a quarter of the RAM ({seqs} sequences of {context} tokens would need {wanted:,})"


def full_cache_bytes(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, context: int, seqs: int, drafts: int, extras: Extras
) -> int:
    """Bytes of a cache that holds `seqs` sequences of `context` tokens at once, and the checkpoints that are asked for.
    config.chunk_tokens must be given.
    """
    pages = sum(
        _group_pages(group, config, context, seqs, drafts) * _page_bytes(group, config, dtypes)
        for group in extras.all_groups(spec)
    )
    states = seqs + _asked_checkpoints(spec, config, dtypes)
    return states * state_bytes_per_sequence(spec, dtypes) + pages


def _asked_checkpoints(spec: ModelSpec, config: EngineConfig, dtypes: Dtypes) -> int:
    state = state_bytes_per_sequence(spec, dtypes)
    return (config.gpu_checkpoint_bytes or 0) // state if state and config.prefix_cache == "on" else 0


def _group_pages(group: CacheGroup, config: EngineConfig, context: int, seqs: int, drafts: int) -> int:
    """Pages that `seqs` sequences of `context` tokens hold at most."""
    page = config.page_tokens
    assert config.chunk_tokens is not None
    if group.window is None:
        return seqs * -(-context // page)
    # A window rarely starts on a page's first token, and the drafts of uncommitted steps may all be accepted or none.
    kept = min(context, group.window + page + _MOST_DEPTH * drafts)
    return seqs * (-(-kept // page) + 1) + -(-min(context, config.chunk_tokens) // page)


def _page_bytes(group: CacheGroup, config: EngineConfig, dtypes: Dtypes) -> int:
    return config.page_tokens * token_bytes(group, dtypes.kv)


def _buy(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, cache_bytes: int, seqs: int, drafts: int, extras: Extras, *,
    padding: bool,
) -> CacheLayout:
    """State slots first, then the pages that windows can ever need, checkpoints of states (unless they are asked for, no more
    than leave the context that is asked for), and as many full-context pages as the rest has room for.
    """
    groups, context = extras.all_groups(spec), config.context or spec.max_context
    left = cache_bytes - seqs * state_bytes_per_sequence(spec, dtypes)
    windows = {g.index: _group_pages(g, config, context, seqs, drafts) for g in groups if g.window is not None}
    left -= sum(count * _page_bytes(groups[index], config, dtypes) for index, count in windows.items())
    full_bytes = sum(_page_bytes(group, config, dtypes) for group in groups if group.window is None)
    context_bytes = -(-(config.context or 1) // config.page_tokens) * full_bytes
    checkpoints = _checkpoints(spec, config, dtypes, cache_bytes, left - context_bytes, seqs)
    left -= checkpoints * state_bytes_per_sequence(spec, dtypes)
    # A context that all sequences can have needs no more pages; groups of full context hold the same tokens.
    full = min(seqs * -(-context // config.page_tokens), max(0, left) // full_bytes) if full_bytes else 0
    pages = [(group.index, windows.get(group.index, full)) for group in groups]
    if left < 0 or any(count == 0 for _, count in pages):
        raise ConfigError(_too_small(spec, config, dtypes, cache_bytes, seqs, extras))
    counts = tuple(count for _, count in sorted(pages))
    return CacheLayout(groups, config.page_tokens, counts, seqs, padding, drafts, checkpoints)


def _checkpoints(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, cache_bytes: int, spare_bytes: int, seqs: int
) -> int:
    """Of recurrent states: those asked for, or as many as sequences, in their share of the cache and what is spare of it."""
    state = state_bytes_per_sequence(spec, dtypes)
    if not state or config.prefix_cache == "off":
        return 0
    if config.gpu_checkpoint_bytes is not None:
        return _asked_checkpoints(spec, config, dtypes)
    most = min(cache_bytes // CHECKPOINT_SHARE, max(0, spare_bytes)) // state
    return min(max(seqs, LEAST_CHECKPOINTS), most)


def _too_small(
    spec: ModelSpec, config: EngineConfig, dtypes: Dtypes, cache_bytes: int, seqs: int, extras: Extras
) -> str:
    state = state_bytes_per_sequence(spec, dtypes)
    page = sum(_page_bytes(g, config, dtypes) for g in extras.all_groups(spec))
    return (
        f"the cache of {cache_bytes:,} bytes is too small: {seqs} states of {state:,} bytes and pages of {page:,} bytes; "
        "give it more (--cache-bytes, --memory-bytes) or lower --max-seqs"
    )


def _context(spec: ModelSpec, config: EngineConfig, layout: CacheLayout, cache_bytes: int) -> tuple[int, str]:
    full = [count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None]
    capacity = min((count * layout.page_tokens for count in full), default=spec.max_context)
    if config.context is not None:
        if capacity < config.context:
            raise ConfigError(
                f"the cache of {cache_bytes:,} bytes holds {capacity} tokens, fewer than the context of {config.context}; "
                f"give it more (--cache-bytes, --memory-bytes) or ask for --context {capacity}"
            )
        return config.context, f"context: {config.context} tokens, as asked for"
    if capacity < spec.max_context:
        return capacity, f"context: {capacity} tokens, what the cache holds (the model allows {spec.max_context})"
    return spec.max_context, f"context: {spec.max_context} tokens, the model's own limit"


def _page_lines(layout: CacheLayout, dtypes: Dtypes) -> list[BudgetLine]:
    lines = []
    for group, count in zip(layout.groups, layout.pages, strict=True):
        size = layout.page_tokens * token_bytes(group, dtypes.kv)
        kind = "full context" if group.window is None else f"window of {group.window}"
        why = f"{count} pages of {layout.page_tokens} tokens, {len(group.layers)} layers, {kind}, {dtypes.kv}"
        lines.append(BudgetLine(f"kv pages {group.index}", count * size, why))
    return lines


def _gathered_lines(
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
    why = f"one layer's keys and values of all sequences, gathered, and masks: {count:,} bytes{_AMONG}"
    return [BudgetLine("attention workspace", count - there, why)] if count > there else []


def _gathered_share(spec: ModelSpec, config: EngineConfig, dtypes: Dtypes) -> float:
    """Of the cache's bytes, at most, those of _gathered_lines."""
    exact = max(4, itemsize(dtypes.compute))
    groups, page = cache_groups(spec), config.page_tokens
    return max((gathered_bytes(spec, each, page, exact) / _page_bytes(each, config, dtypes) for each in groups), default=0.0)


def _cache_lines(layout: CacheLayout, dtypes: Dtypes, state_bytes: int) -> list[BudgetLine]:
    lines = _page_lines(layout, dtypes)
    if state_bytes:
        why = f"{layout.slots} sequences of {state_bytes:,} bytes, {dtypes.state}"
        lines.append(BudgetLine("state slots", layout.slots * state_bytes, why))
    if layout.checkpoints:
        why = f"{layout.checkpoints} states of {state_bytes:,} bytes, kept where conversations resume"
        lines.append(BudgetLine("gpu checkpoints", layout.checkpoints * state_bytes, why))
    return lines
