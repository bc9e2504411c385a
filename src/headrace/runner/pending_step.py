"""A step that is launched: what came of it, once the device has done it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.runner.followed import Failure
from headrace.runner.sampler import Drawn
from headrace.runner.scores import PromptScores
from headrace.runner.verify import DrawnRuns
from headrace.types import MOST_DRAFTS, Row, RowResult, StepPlan, StepResult, TokenLogprob


class PendingStep:
    """A step that the device may still be working on. Its outcome is on the way to the host when this is made. failures: by
    sequence, of those that cannot go on if they come so far.
    """

    def __init__(
        self, plan: StepPlan, rows: tuple[Row, ...], drawn: Drawn | DrawnRuns | None, prompt_scores: dict[int, PromptScores],
        device: torch.device, proposes: Tensor | None = None,
    ) -> None:
        self._plan = plan
        self._rows = rows  # the plan's, in the batch's order
        self._drawn = drawn.to_host() if drawn else None
        self._proposes = None if proposes is None else proposes.to("cpu", non_blocking=True)
        self._prompt_scores = {sequence: scores.to_host() for sequence, scores in prompt_scores.items()}
        self.failures: Mapping[int, Failure] = {}
        self._waited_s = 0.0
        self._arrived = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._arrived is not None:
            self._arrived.record()

    def result(self) -> StepResult:
        """Wait for this step, and for no later one, and read what it sampled."""
        found = {}
        drawn = self._results()
        proposes = [MOST_DRAFTS] * len(self._rows) if self._proposes is None else self._proposes.tolist()
        for (row, tokens, logprobs), more in zip(drawn, proposes, strict=True):
            scores = self._prompt_scores.get(row.sequence)
            error = self._error(row.sequence, len(tokens)) if self.failures else None
            found[row.sequence] = RowResult(row.sequence, tokens, logprobs, scores.read() if scores else (), more, error)
        return StepResult(self._plan.step, tuple([found[row.sequence] for row in self._plan.rows]), self._waited_s)

    def _error(self, sequence: int, tokens: int) -> str | None:
        place, reason = self.failures.get(sequence, (MOST_DRAFTS, None))
        return reason if tokens > place else None

    def sampled(self) -> dict[int, tuple[int, ...]]:
        """Wait for this step, and read the tokens by sequence."""
        return {row.sequence: tokens for row, tokens, _ in self._results()}

    def _results(self) -> list[tuple[Row, tuple[int, ...], tuple[TokenLogprob, ...]]]:
        """Each row, what it sampled, and log-probabilities if it asked for them."""
        if self._arrived is not None:
            began_s = time.perf_counter()
            self._arrived.synchronize()
            self._waited_s += time.perf_counter() - began_s
        drawn = self._drawn.results() if self._drawn else iter(())
        return [(row, *(next(drawn) if row.samples else ((), ()))) for row in self._rows]
