"""Loads a model and prints, as JSON, what memory that took: run as a process of its own, so that its peak is its own.

The kernel's VmHWM is the largest resident set this process ever had, file mappings included, so no moment is missed (as by
sampling) and no parent's memory is counted (as in ru_maxrss, which a fork hands down).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from headrace.loader import load_weights
from headrace.models.decoder import build_decoder
from headrace.plan.checkpoint import identify, open_checkpoint


def resident_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main(path: str, dtype: str) -> None:
    model = identify(open_checkpoint(Path(path)))
    decoder = build_decoder(model.spec, dtype=getattr(torch, dtype), device=torch.device("cpu"))
    before_bytes = resident_bytes("VmRSS")
    start_s = time.perf_counter()
    load_weights(model, decoder)
    seconds = time.perf_counter() - start_s
    parameter_bytes = sum(parameter.nbytes for parameter in decoder.parameters())
    stored_bytes = sum(model.checkpoint.tensors[weight.source].nbytes for weight in model.weight_map.weights)
    beyond_bytes = resident_bytes("VmHWM") - before_bytes - parameter_bytes
    speed = stored_bytes / seconds / 1e9
    print(json.dumps({"beyond_bytes": beyond_bytes, "parameter_bytes": parameter_bytes, "gb_per_s": speed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
