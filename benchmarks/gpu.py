"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/gpu.py`. Needs torch, transformers and tokenizers only.

1. Tiny random checkpoints of every model type in float32: the GPU's tokens against the CPU's, greedy and seeded.
2. A Qwen3.8-27B-shaped model with random weights made on the device: memory, prefill, and tokens a second of the whole engine.
`benchmarks/step.py` has its decode steps, beside their floors.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path

import torch

from headrace.config import EngineConfig
from headrace.engine.build import build_engine, load_engine
from headrace.engine.core import EngineCore
from headrace.plan.shapes import declared_model
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


def measure(core: EngineCore, vocab_size: int, users: int, prompt_tokens: int, steps: int) -> dict[str, float]:
    """Prefill of all prompts, then decoding, from the last one's first token until a row has all of its `steps` + 1: NaN where
    one has before. The first prompt's time is that of a lone one's first token if there is one.
    """
    generator = torch.Generator().manual_seed(users)
    for i in range(users):
        prompt = torch.randint(0, vocab_size, (prompt_tokens,), generator=generator).tolist()
        params = SamplingParams(top_k=20, top_p=0.95)
        core.add(Request(f"{users}-{prompt_tokens}-{i}", tuple(prompt), params, seed=i, max_tokens=steps + 1))
    began, first, tokens, ended = time.perf_counter(), set[str](), 0, False
    while len(first) < users:
        events = core.step()
        first |= {event.request for event in events if event.tokens}
        ended = ended or any(event.finish_reason for event in events)
    prefill_s, began = time.perf_counter() - began, time.perf_counter()
    while not ended:
        events = core.step()
        tokens += sum(len(event.tokens) for event in events)
        ended = any(event.finish_reason for event in events)
    decode_s = time.perf_counter() - began
    while core.has_work:
        core.step()
    return {
        "users": users,
        "prompt_tokens": prompt_tokens,
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": users * prompt_tokens / prefill_s,
        "decode_tokens_per_s": tokens / decode_s if tokens else math.nan,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.8-27b:bf16")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--chunk-tokens", type=int, default=2048)
    parser.add_argument("--skip-tiny", action="store_true")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    figures: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    figures["tiny"] = [] if options.skip_tiny else run_tiny()
    sizes = {"context": 34_000, "max_seqs": 32, "chunk_tokens": options.chunk_tokens, "cache_bytes": 12 * 10**9}
    config = EngineConfig(device="cuda", random_weights=options.shape, **sizes)
    built = build_engine(declared_model(options.shape), config, None)
    loads = ((1, 128), (1, 1024), (1, 8192), (1, 32_768), (8, 1024), (32, 1024))
    rows = [measure(built.core, built.info.vocab_size, users, tokens, options.steps) for users, tokens in (*loads, *loads)]
    for row in rows[len(loads) :]:  # the first round warms up
        print({name: round(value, 3) for name, value in row.items()})
    peak, budget = torch.cuda.max_memory_allocated(), sum(bytes for _, bytes in built.info.budget)
    print(f"memory: budget {budget:,} bytes, peak allocated {peak:,} ({peak / budget:.1%})")
    figures |= {"shape": options.shape, "steps": rows[len(loads) :], "budget_bytes": budget, "peak_bytes": peak}
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
