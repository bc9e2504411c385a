"""What tools/sanitize.sh must find: `python -m tests.support.faulty_kernels memcheck|racecheck`, which itself succeeds.

It launches a kernel that writes beyond its tensor, or one whose warps do not wait for each other, in a process of its own, as
workers of tests have theirs.
"""

from __future__ import annotations

import subprocess
import sys

FAULTS = {
    "memcheck": "x[threadIdx.x + 1024] = 1;",
    "racecheck": "__shared__ float y[64]; y[63 - threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = y[threadIdx.x];",
}


def launch(tool: str) -> None:
    import torch

    from headrace.kernels.cuda_function import compiled

    text = f'extern "C" __global__ void faulty(float* x) {{ {FAULTS[tool]} }}'
    compiled(text, "faulty", {}, 64, 0, torch.device("cuda"))((1, 1, 1), torch.zeros(64, device="cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[2:]:
        launch(sys.argv[1])
    else:
        subprocess.run([sys.executable, "-m", "tests.support.faulty_kernels", sys.argv[1], "here"], check=False)
