"""Several engines that write at once, a process each: one alone waits for Python more than for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace import LLM, SamplingParams

SHARE = 64  # prompts that an engine takes at a time: as many as run at once
_engine: list[LLM] = []  # of this process


@dataclass(frozen=True, slots=True)
class Written:
    """What was written behind a prompt. ended: by itself, not by its limit."""

    text: str
    tokens: list[int]
    ended: bool


class Engines:
    """`count` engines of a model (None: the demo model) in processes of their own, with an LLM's settings each."""

    def __init__(self, model: Path | None, count: int, **settings: Any) -> None:
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (model, settings))

    def __call__(
        self, prompts: Sequence[str | list[int]], params: Sequence[SamplingParams], seconds: float | None = None
    ) -> list[Written | None]:
        """In the prompts' order; None for those whose share was not begun after so long. Raises what an engine raises."""
        starts = range(0, len(prompts), SHARE)
        shares = [self._pool.submit(_write, *(each[start : start + SHARE] for each in (prompts, params))) for start in starts]
        if seconds is not None:
            wait(shares, seconds)
        late = [seconds is not None and share.cancel() for share in shares]  # all, before the first is waited for
        found: list[Written | None] = []
        for start, share, left in zip(starts, shares, late, strict=True):
            found += [None] * len(prompts[start : start + SHARE]) if left else share.result()
        return found

    def __enter__(self) -> Self:
        """When the first of them has started, so that no time for answers goes by before."""
        self._pool.submit(len, _engine).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)


def _start(model: Path | None, settings: dict[str, Any]) -> None:
    _engine.append(LLM(model, **settings))


def _write(prompts: Sequence[str | list[int]], params: Sequence[SamplingParams]) -> list[Written]:
    done = _engine[0].generate(list(prompts), list(params))
    return [Written(each.text, list(each.tokens), each.finish_reason == "stop") for each in done]
