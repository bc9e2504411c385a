"""What operations take for a while, on a CPU: temporaries, views, results that stay."""

from __future__ import annotations

import torch

from headrace.runner.high_water import HighWater

CPU = torch.device("cpu")
MB = 2**20


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def test_the_most_that_lies_there_at_once_counts() -> None:
    before = zeros(8 * MB)
    with HighWater(CPU) as water:
        first = before[: 4 * MB] + 1  # 4
        second = first.clone()  # 8
        del first  # 4
        third = torch.cat([second, second])  # 12
        del second
        fourth = third.view(-1)[: 2 * MB].contiguous() + zeros(2 * MB)  # 8, a view; 10; 12
    assert 12 * MB <= water.bytes < 12.1 * MB and len(fourth) == 2 * MB and len(third) == 8 * MB


def test_what_is_written_in_place_takes_nothing() -> None:
    before, rows = zeros(8 * MB), torch.arange(4)
    with HighWater(CPU) as water, torch.inference_mode():
        before.add_(1).view(4, -1)[0].fill_(2)
        before.view(4, -1).index_fill_(0, rows, 3)
        torch.add(before, 1, out=before)
    assert water.bytes < 0.1 * MB


def test_an_end_is_an_end() -> None:
    with HighWater(CPU) as water:
        zeros(MB)
    zeros(4 * MB)
    assert MB <= water.bytes < 1.1 * MB
