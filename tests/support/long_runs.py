"""Sequences that follow a text through single tokens and through drafts, and the states that this leaves behind."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bench.teacher import Teacher
from headrace.config import EngineConfig
from headrace.engine.build import build_engine
from headrace.engine.model_source import find_model
from headrace.types import Admission, PageUpdate, Request, Row, SamplingParams, StepPlan

States = tuple[Tensor, ...]


@dataclass(frozen=True)
class LongRun:
    """Of texts that were followed one token a step, and with drafts: log-probabilities [n - 1] of each, and how far the states
    of one of them, behind some of its tokens, are from a whole pass in float64, relatively. pairs: of drafts and accepted ones.
    """

    plain: list[np.ndarray]
    drafted: list[np.ndarray]
    plain_errors: dict[int, float]
    drafted_errors: dict[int, float]
    pairs: Mapping[tuple[int, int], int]

    def share(self, texts: Sequence[int]) -> float:
        """By how much the mean log-probability of these texts is another with drafts."""
        plain, drafted = (np.concatenate([found[n] for n in texts]).mean() for found in (self.plain, self.drafted))
        return float(abs(drafted / plain - 1))

    def table(self) -> str:
        """The errors for people."""
        lines = [
            f"{way}: " + ", ".join(f"{tokens} {error:.2e}" for tokens, error in sorted(errors.items()))
            for way, errors in (("plain", self.plain_errors), ("drafts", self.drafted_errors))
        ]
        return "\n".join(lines)


class StateWatch:
    """Keeps the states of a text's sequence, by how many tokens they are behind, at the first step behind each of `marks`
    tokens that leaves no draft pending. Committed steps are all there are: the loop is the plain one.
    """

    def __init__(self, teacher: Teacher, text: int, marks: Sequence[int]) -> None:
        self._runner: Any = teacher.runner
        self._text, self._marks = text, sorted(marks, reverse=True)
        self.states: dict[int, States] = {}

    def __call__(self, lengths: Mapping[str, int], accepted: Mapping[str, int]) -> None:
        name = list(lengths)[self._text]
        behind = lengths[name] - 1  # the last one is not computed yet
        if not self._marks or behind < self._marks[-1] or accepted.get(name, 0):
            return
        slots = [slot for slot, request in enumerate(self._runner._requests) if request is not None and request.id == name]
        self.states[behind] = states_of(self._runner, slots[-1])
        while self._marks and self._marks[-1] <= behind:
            self._marks.pop()


def states_of(runner: Any, slot: int) -> States:
    """Of all recurrent layers, in float64."""
    return tuple(state[slot].to("cpu", torch.float64, copy=True) for state in runner._pools.states if state is not None)


def long_run(
    checkpoint: Path, lengths: Sequence[int], watched: int, marks: Sequence[int], *, vocab_size: int, **settings: Any
) -> LongRun:
    """Random texts of these lengths, all at once; of number `watched` the states are compared."""
    rng = random.Random(7)
    texts = [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
    config = EngineConfig(
        context=max(lengths), max_seqs=len(lengths), prefix_cache="off", loop="plain", **settings
    )
    teacher = Teacher(find_model(checkpoint, config), config)
    try:
        watches = [StateWatch(teacher, watched, marks) for _ in range(2)]
        plain = teacher.through_steps(texts, watches[0])
        drafted = teacher.through_drafts(texts, watches[1])
    finally:
        teacher.close()
    behind = sorted({tokens for watch in watches for tokens in watch.states})
    exact = dict(zip(behind, whole_pass(checkpoint, texts[watched], behind, settings["device"]), strict=True))
    errors = [{tokens: relative_error(found, exact[tokens]) for tokens, found in watch.states.items()} for watch in watches]
    return LongRun(list(plain.logprobs), list(drafted.logprobs), errors[0], errors[1], drafted.pairs)


def whole_pass(checkpoint: Path, text: Sequence[int], behind: Sequence[int], device: str) -> list[States]:
    """The states behind so many tokens of a text, computed in float64 as one prompt that is cut there."""
    chunk = 1024
    config = EngineConfig(
        device=device, dtype="float64", context=len(text), max_seqs=1, chunk_tokens=chunk, prefix_cache="off", graphs="off",
        cache_bytes=1 << 30 if device == "cuda" else None,
    )
    built = build_engine(find_model(checkpoint, config), config, None)
    pages = (PageUpdate(0, 0, tuple(range(-(-len(text) // built.info.page_tokens)))),)
    admissions = (Admission(0, 0, Request("whole", tuple(text), SamplingParams(), 0, 1)),)
    at, found = 0, []
    for cut in behind:
        while at < cut:
            end = min(cut, at + chunk)
            first = at == 0
            row = Row(0, 0, at, tuple(text[at:end]), (), pages if first else (), samples=False)
            built.runner.launch(StepPlan(at, admissions if first else (), (row,))).result()
            at = end
        found.append(states_of(built.runner, 0))
    built.core.close()
    return found


def relative_error(found: States, exact: States) -> float:
    """Of all layers' states: the norm of what differs over the norm of what should be, in the root mean square."""
    shares = [float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
    return float(np.sqrt(np.mean(np.square(shares))))


def pending_lost(teacher: Teacher) -> Any:
    """A watch that makes each step forget the drafts that the one before has accepted: what the tests must notice."""
    pools: Any = teacher.runner._pools

    def watch(lengths: object, accepted: object) -> None:
        with torch.inference_mode():
            pools.pending.zero_()

    return watch
