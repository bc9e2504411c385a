"""What chooses between kernels and references, and that nothing needs Triton where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from headrace.kernels.card import STAND_IN, card
from headrace.kernels.dispatch import runs_triton
from headrace.kernels.variant import SHARED_BYTES, TARGETS, Tuning, Variant

ROOT = Path(__file__).parents[2]
WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # importing it fails
import torch
import headrace.llm
from headrace.kernels import KERNELS, card, dispatch, variant
for op in KERNELS:
    KERNELS[op]
from headrace.kernels.rms_norm import rms_norm
rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
"""


def test_a_cpu_needs_no_triton() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_cases_of_the_sanitizer_exist() -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, f"@{Path(__file__).parent / 'sanitized.txt'}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cpu_runs_references() -> None:
    assert not any(runs_triton(torch.zeros(1, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32, torch.float64))


def test_a_cpu_stands_for_a_small_ampere_card() -> None:
    assert card(torch.device("cpu")) == STAND_IN
    assert STAND_IN.capability == 86 and STAND_IN.shared_bytes == 99 * 1024


def test_every_target_has_its_shared_memory() -> None:
    assert set(SHARED_BYTES) == set(TARGETS)
    assert all(SHARED_BYTES[target] == (227 if target == 90 else 99) * 1024 for target in TARGETS)


def test_pointers_are_aligned_unless_said_otherwise() -> None:
    signature = {"x": "*bf16", "rows": "i32", "out": "*bf16"}
    assert Variant("v", None, signature).divisible == ("x", "out")
    assert Variant("v", None, signature, aligned=("x", "rows")).divisible == ("x", "rows")


def test_a_target_has_its_own_tuning() -> None:
    variant = Variant("v", None, {}, {"TILE": 64, "BITS": 4}, tuned={90: Tuning({"TILE": 128}, 8, 3)})
    assert variant.on(86) == variant
    hopper = variant.on(90)
    assert (dict(hopper.constants), hopper.num_warps, hopper.num_stages) == ({"TILE": 128, "BITS": 4}, 8, 3)
