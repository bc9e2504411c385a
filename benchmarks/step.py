"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/step.py`, the 27B shape in several ways.

Each way of running (--ways GRAPHS-LOOP) is `headrace bench step` for every --rows; what fails is told, and the rest goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import traceback
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headrace.bench.record import record
from headrace.bench.scenarios import step


def measure(options: argparse.Namespace, weights: str, way: str, console: Console) -> dict[str, Any] | None:
    graphs, loop = way.split("-")
    settings = step.Settings(
        random_weights=weights, rows=tuple(options.rows), query_tokens=tuple(options.query_tokens),
        drafts=tuple(options.drafts), context=(options.context,), steps=options.steps, device="cuda", graphs=graphs, loop=loop,
        profile=way == options.profile, read_tb_per_s=3.9, matmul_tflops=790.0,
    )
    try:
        return step.run(settings, console)
    except Exception:
        traceback.print_exc(limit=-6)
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", nargs="+", default=["qwen3.8-27b:bf16"])
    parser.add_argument("--ways", nargs="+", default=["on-overlapped", "on-plain", "off-overlapped", "off-plain"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--query-tokens", nargs="+", type=int, default=[1])
    parser.add_argument("--drafts", nargs="+", type=int, default=[0])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--profile", default="", help="the way to profile")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    console = Console(width=140, highlight=False)
    results = {f"{w} {way}": measure(options, w, way, console) for w in options.weights for way in options.ways}
    if options.out:
        settings = {name: str(value) for name, value in vars(options).items()}
        options.out.write_text(json.dumps(record("step", settings, results), indent=1))


if __name__ == "__main__":
    main()
