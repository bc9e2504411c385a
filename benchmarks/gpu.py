"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/gpu.py`. Needs torch, transformers and tokenizers only.

1. Tiny random checkpoints of every model type in float32: the GPU's tokens against the CPU's, greedy and seeded.
2. A Qwen3.8-27B-shaped model with random bf16 weights made on the device: memory, prefill and decode, beside their floors.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from headrace.cache.layout import cache_groups
from headrace.config import EngineConfig
from headrace.engine.build import load_engine
from headrace.engine.core import EngineCore
from headrace.hardware import detect
from headrace.models import declaration_for
from headrace.models.decoder import build_decoder
from headrace.models.spec import ModelSpec, WeightMap
from headrace.plan.budget import make_budget, state_bytes_per_sequence
from headrace.plan.dtypes import Dtypes, itemsize, resolve_dtypes
from headrace.plan.shapes import shape
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import Request, SamplingParams


def generate(core: EngineCore, requests: list[Request]) -> dict[str, list[int]]:
    """Tokens of each request."""
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    for request in requests:
        core.add(request)
    while core.has_work:
        for event in core.step():
            assert event.finish_reason != "error", event.error
            tokens[event.request].extend(event.tokens)
    return tokens


# Tiny models: the CPU's tokens


def tiny_requests(count: int, vocab_size: int) -> list[Request]:
    """Greedy and seeded requests with prompts of 1 to 200 tokens."""
    generator = torch.Generator().manual_seed(1)
    requests = []
    for i in range(count):
        length = int(torch.randint(1, 200, (1,), generator=generator))
        prompt = torch.randint(3, vocab_size, (length,), generator=generator).tolist()
        params = SamplingParams(temperature=0.0 if i % 2 else 0.9, top_k=0 if i % 4 < 2 else 20, top_p=0.95)
        requests.append(Request(f"r{i}", tuple(prompt), params, seed=i, max_tokens=40))
    return requests


def compare_tiny(model_type: str, directory: Path, seed: int) -> tuple[int, int, int]:
    """(sequences, sequences that differ, tokens) between the two devices."""
    from tests.support.tiny import make_tiny_checkpoint

    path = make_tiny_checkpoint(directory / f"{model_type}-{seed}", model_type, seed)
    outputs = {}
    for device in ("cpu", "cuda"):
        config = EngineConfig(device=device, dtype="float32", max_seqs=8, chunk_tokens=64, context=512, cache_bytes=200_000_000)
        built = load_engine(path, config, None)
        outputs[device] = generate(built.core, tiny_requests(24, built.info.vocab_size))
        built.core.close()
    differ = [name for name, tokens in outputs["cpu"].items() if tokens != outputs["cuda"][name]]
    return len(outputs["cpu"]), len(differ), sum(map(len, outputs["cpu"].values()))


def run_tiny() -> list[dict[str, object]]:
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for model_type in ("qwen3_5_text", "qwen3", "llama"):
            for seed in range(3):
                total, differ, tokens = compare_tiny(model_type, Path(directory), seed)
                print(f"{model_type} seed {seed}: {total} sequences, {tokens} tokens, {differ} differ from the CPU's")
                rows.append({"model": model_type, "seed": seed, "sequences": total, "tokens": tokens, "differ": differ})
    return rows


# The 27B shape


def randomise(module: nn.Module) -> None:
    """Weights whose activations keep their scale: normal over the square root of the inputs; decays and norms as trained."""
    for name, parameter in module.named_parameters():
        if name.endswith("a_log"):
            parameter.data.uniform_(0.0, 2.0)
        elif name.endswith(("dt_bias", "norm.weight", "norm_weight")) or parameter.ndim == 1:
            parameter.data.normal_(0.0, 0.1)
        else:
            parameter.data.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]))


@dataclass
class Shape:
    """The model on the device, and what its budget said."""

    core: EngineCore
    spec: ModelSpec
    dtypes: Dtypes
    predicted_bytes: int
    weight_bytes: int


def build_shape(name: str, config: EngineConfig) -> Shape:
    fields = shape(name)
    spec = declaration_for(fields["model_type"]).spec(fields)
    device = torch.device("cuda")
    hardware = detect("cuda")
    dtypes = resolve_dtypes(config, hardware, fields["dtype"])
    decoder = build_decoder(spec, dtype=getattr(torch, dtypes.compute), device=device)
    randomise(decoder)
    weight_bytes = sum(p.numel() * p.element_size() for p in decoder.parameters())
    budget = make_budget(spec, WeightMap(()), hardware, config, dtypes)
    runner = Runner(spec, decoder, budget.layout, dtypes, device, context=budget.context)
    core = EngineCore(Scheduler(budget.layout, chunk_tokens=config.chunk_tokens), runner)
    return Shape(core, spec, dtypes, budget.total_bytes + weight_bytes, weight_bytes)


def measure(made: Shape, users: int, prompt_tokens: int, steps: int) -> dict[str, float]:
    """Prefill of all prompts, then the median decode step."""
    generator = torch.Generator().manual_seed(users)
    for i in range(users):
        prompt = torch.randint(0, made.spec.vocab_size, (prompt_tokens,), generator=generator).tolist()
        params = SamplingParams(top_k=20, top_p=0.95)
        made.core.add(Request(f"{users}-{prompt_tokens}-{i}", tuple(prompt), params, seed=i, max_tokens=steps + 1))
    began, seen, times = time.perf_counter(), 0, []
    while seen < users:
        seen += sum(1 for event in made.core.step() if event.tokens)
    prefill_s = time.perf_counter() - began
    while made.core.has_work:
        began = time.perf_counter()
        made.core.step()
        times.append(time.perf_counter() - began)
    step_s = sorted(times)[len(times) // 2]
    return {
        "users": users,
        "prompt_tokens": prompt_tokens,
        "prefill_tokens_per_s": users * prompt_tokens / prefill_s,
        "decode_step_ms": step_s * 1e3,
        "decode_tokens_per_s": users / step_s,
        "floor_ms": floor_bytes(made, users, prompt_tokens) / 3.9e12 * 1e3,
    }


def floor_bytes(made: Shape, users: int, context: int) -> float:
    """Bytes of one decode step: weights once (the embedding is only looked up), KV read, states read and written."""
    spec = made.spec
    embedding = spec.vocab_size * spec.hidden * itemsize(made.dtypes.compute)
    kv = sum(group.token_elements for group in cache_groups(spec)) * itemsize(made.dtypes.kv)
    return made.weight_bytes - embedding + users * (context * kv + 2 * state_bytes_per_sequence(spec, made.dtypes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.8-27b")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    figures: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    figures["tiny"] = run_tiny()
    sizes = {"context": 32_768, "max_seqs": 32, "chunk_tokens": 2048, "cache_bytes": 30 * 10**9}
    config = EngineConfig(device="cuda", dtype="bfloat16", **sizes)
    made = build_shape(options.shape, config)
    loads = ((1, 128), (1, 1024), (1, 8192), (8, 1024), (32, 1024))
    rows = [measure(made, users, tokens, options.steps) for users, tokens in loads]
    for row in rows[1:]:  # the first one warms up
        print({name: round(value, 2) for name, value in row.items()})
    peak = torch.cuda.max_memory_allocated()
    print(f"memory: budget {made.predicted_bytes:,} bytes, peak allocated {peak:,} ({peak / made.predicted_bytes:.1%})")
    figures |= {"shape": options.shape, "steps": rows[1:], "budget_bytes": made.predicted_bytes, "peak_bytes": peak}
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
