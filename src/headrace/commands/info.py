"""`headrace info`: what a checkpoint really holds, read from its headers."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cache.layout import cache_groups
from headrace.commands.tensor_classes import TensorClass, tensor_classes
from headrace.models.spec import AttentionSpec, ModelSpec
from headrace.plan.checkpoint import Model, identify, open_checkpoint
from headrace.plan.dtypes import Dtypes, itemsize
from headrace.plan.named import model_path
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.quantities import size

SIXTEEN_BITS = Dtypes(compute="bfloat16", kv="bfloat16", state="float16")
"""What sizes of the cache are given in; float32 takes twice as much."""


def report(name: str, *, as_json: bool) -> None:
    """Print what the checkpoint of a name or at a path holds. Raises CheckpointError."""
    model = identify(open_checkpoint(model_path(name)))
    classes = tensor_classes(model)
    if as_json:
        json.dump({**facts(model), "classes": [dataclasses.asdict(c) for c in classes]}, sys.stdout, indent=2)
        print()
        return
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in _lines(facts(model)):
        console.print(line)
    console.print(_table(classes))


def facts(model: Model) -> dict[str, Any]:
    """The model's numbers. kv_bytes_per_token and state_bytes_per_sequence are in 16-bit types."""
    spec, tensors = model.spec, model.checkpoint.tensors.values()
    attention = sum(isinstance(layer.mixer, AttentionSpec) for layer in spec.layers)
    return {
        "path": str(model.checkpoint.path),
        "kind": model.checkpoint.kind,
        "files": len({tensor.file for tensor in tensors}),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "model_type": spec.model_type,
        "context": spec.max_context,
        "vocab_size": spec.vocab_size,
        "hidden": spec.hidden,
        "attention_layers": attention,
        "gated_delta_layers": len(spec.layers) - attention,
        "mtp_layers": spec.mtp_layers,
        "tied": spec.tied,
        "kv_bytes_per_token": kv_bytes_per_token(spec),
        "state_bytes_per_sequence": state_bytes_per_sequence(spec, SIXTEEN_BITS),
    }


def kv_bytes_per_token(spec: ModelSpec) -> int:
    return sum(group.token_elements for group in cache_groups(spec)) * itemsize(SIXTEEN_BITS.kv)


def _lines(fact: dict[str, Any]) -> Iterator[str]:
    kind = "GGUF" if fact["kind"] == "gguf" else "Hugging Face"
    yield f"{fact['path']}: {kind}, {fact['files']} file{'s' * (fact['files'] > 1)}, {size(fact['bytes'])} of tensors"
    layers = [f"{fact['attention_layers']} attention"]
    if fact["gated_delta_layers"]:
        layers.insert(0, f"{fact['gated_delta_layers']} Gated DeltaNet")
    head = "tied to the embedding" if fact["tied"] else "its own"
    yield f"{fact['model_type']}: {' + '.join(layers)} layers, {fact['hidden']} wide"
    yield f"vocabulary: {fact['vocab_size']:,} tokens, head {head}"
    yield f"context: {fact['context']:,} tokens"
    yield f"cache, in 16 bits: {size(fact['kv_bytes_per_token'])} a token, {size(fact['state_bytes_per_sequence'])} a sequence"


def _table(classes: list[TensorClass]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("tensors", "count", "parameters", "size", "types", "use"):
        table.add_column(name, justify="right" if name in ("count", "parameters", "size") else "left")
    for c in classes:
        table.add_row(c.name, str(c.tensors), f"{c.parameters:,}", size(c.bytes), ", ".join(c.dtypes), c.use)
    parameters, stored = sum(c.parameters for c in classes), sum(c.bytes for c in classes)
    table.add_row("all", str(sum(c.tensors for c in classes)), f"{parameters:,}", size(stored))
    return table
