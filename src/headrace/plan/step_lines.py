"""Lines of what a step takes while it runs: one for each part, of what it has beyond those before it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.models.spec import ModelSpec, WeightMap
from headrace.plan.extras import AMONG, BudgetLine
from headrace.plan.workspace import (
    SMALL_BYTES,
    Sizes,
    decoded_bytes,
    kept_bytes,
    layers_bytes,
    logit_rows,
    logits_bytes,
    reference_layers_bytes,
    reference_mlp_bytes,
)
from headrace.quantities import counted, exact_size


def gpu_step_lines(spec: ModelSpec, sizes: Sizes) -> Iterator[BudgetLine]:
    layers, logits = layers_bytes(spec, sizes), logits_bytes(spec, sizes)
    why = f"activations of {counted(sizes.tokens, 'token')}, the most that lies there at once in a layer"
    yield BudgetLine("workspace", layers, why)
    if logits > layers:
        yield BudgetLine("logits workspace", logits - layers, _logits_why(sizes, logits))
    yield BudgetLine("small workspace", SMALL_BYTES, "a step's tensors of up to 1 MiB, which PyTorch's allocator keeps apart")
    why = "sums that kernels leave for each other, and cuBLAS's workspace, from the first step on"
    yield BudgetLine("kernel buffers", kept_bytes(sizes), why)


def cpu_step_lines(spec: ModelSpec, sizes: Sizes, weights: WeightMap) -> Iterator[BudgetLine]:
    """One of these lies there at once."""
    layers = reference_layers_bytes(spec, sizes)
    multiplied = reference_mlp_bytes(spec, sizes) + decoded_bytes(weights, sizes.exact)
    logits = 3 * logit_rows(sizes.rows, sizes.drafts) * spec.vocab_size * sizes.exact
    yield BudgetLine("workspace", layers, f"activations of {counted(sizes.tokens, 'token')}")
    if multiplied > layers:
        why = f"the largest packed weight, decoded: {exact_size(multiplied)}{AMONG}"
        yield BudgetLine("low-bit workspace", multiplied - layers, why)
    if logits > max(layers, multiplied):
        yield BudgetLine("logits workspace", logits - max(layers, multiplied), _logits_why(sizes, logits))


def _logits_why(sizes: Sizes, logits: int) -> str:
    rows = counted(logit_rows(sizes.rows, sizes.drafts), "row")
    return f"{rows} of logits at once, more of them in slices: {exact_size(logits)}{AMONG}"
