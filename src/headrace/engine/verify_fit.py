"""`--verify-fit`: the cache filled to the advertised length and users, the largest steps run, and what that took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from headrace.errors import ConfigError
from headrace.plan.budget import Budget
from headrace.quantities import counted
from headrace.types import Admission, PageUpdate, Request, Row, SamplingParams, StepPlan, StepResult

if TYPE_CHECKING:
    import torch

TOLERANCE = 0.01
"""Of the plan, by which it may be exceeded."""
_TOGETHER = ("weights", "workspace")
"""Ends of names of lines that are measured as one."""
_SHORT_TOKENS = 2
_EVERYTHING = SamplingParams(
    temperature=0.8, top_k=100, top_p=0.9, min_p=0.01, presence_penalty=0.1, frequency_penalty=0.1, repetition_penalty=1.1,
    logit_bias={0: 1.0}, logprobs=5, prompt_logprobs=5, min_tokens=1,
)
_USUAL = SamplingParams(temperature=0.8, top_k=20, top_p=0.95)
_END_TOKEN = 1


class Pending(Protocol):
    def result(self) -> StepResult: ...


class Measured(Protocol):
    """What is asked of `runner.runner.Runner` here."""

    @property
    def graph_bytes(self) -> dict[str, int]: ...

    def held_bytes(self) -> dict[str, int]: ...

    def allocated_bytes(self) -> int: ...

    def occupy(self) -> None: ...

    def assume(self, plan: StepPlan) -> None: ...

    def launch(self, plan: StepPlan) -> Pending: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A line of the budget, or several that were measured together, and what there was at most."""

    name: str
    planned_bytes: int
    taken_bytes: int

    @property
    def over_bytes(self) -> int:
        return self.taken_bytes - self.planned_bytes


def kernel_bytes(runner: Measured, others_bytes: int) -> int:
    """What kernels and cuBLAS keep on a GPU: all that PyTorch has allocated, but the runner's and what was there before it. An
    engine that is not a process's first finds there what the first one's steps made them keep.
    """
    import torch

    return torch.cuda.memory_allocated() - others_bytes - runner.allocated_bytes()


def verify_fit(
    runner: Measured, budget: Budget, device: torch.device, vocab_size: int, others_bytes: int
) -> tuple[Taken, ...]:
    """Fill the cache, run the largest steps, and compare. The runner's sequences are gone afterwards. others_bytes: what
    PyTorch had allocated before the engine.

    Raises ConfigError naming a line where more than the plan is taken.
    """
    from headrace.runner.high_water import HighWater

    runner.occupy()
    with HighWater(device) as water:
        run_largest_steps(runner, budget, vocab_size)
    taken = runner.held_bytes()
    if device.type == "cuda":
        taken |= {"kernel buffers": kernel_bytes(runner, others_bytes)}
        taken |= {"graphs": runner.graph_bytes["graphs_device"]} if runner.graph_bytes else {}
    found = compare(budget, taken | {"workspace": water.bytes})
    check(found)
    return found


def compare(budget: Budget, taken: dict[str, int]) -> tuple[Taken, ...]:
    """taken: by line; lines that nobody measured are left out. _TOGETHER are measured as one."""
    planned: dict[str, int] = {}
    for line in budget.lines:
        name = next((part for part in _TOGETHER if part in line.name), line.name)
        planned[name] = planned.get(name, 0) + line.bytes
    return tuple(Taken(name, planned.get(name, 0), count) for name, count in taken.items())


def check(found: Sequence[Taken]) -> None:
    """Raise ConfigError naming the line that takes most beyond its plan, if all of them take over 1 % more than planned."""
    planned, taken = (sum(getattr(each, name) for each in found) for name in ("planned_bytes", "taken_bytes"))
    if taken <= planned * (1 + TOLERANCE):
        return
    worst = max(found, key=lambda each: each.over_bytes)
    raise ConfigError(
        f"verify-fit: {taken:,} bytes were taken, {taken / planned - 1:.1%} more than the {planned:,} planned; "
        f"most of it is {worst.name}: {worst.taken_bytes:,} of {worst.planned_bytes:,} bytes"
    )


def notes(budget: Budget, found: Sequence[Taken]) -> Iterator[str]:
    """A line for what was done, one for each of the budget's, and one for all."""
    lengths = full_lengths(budget)
    sequences, tokens = counted(len(lengths), "sequence"), counted(sum(lengths), "token")
    yield f"verify-fit: {sequences} of {tokens} in all, the longest {max(lengths):,}"
    planned, taken = (sum(getattr(each, name) for each in found) for name in ("planned_bytes", "taken_bytes"))
    for each in (*found, Taken("all", planned, taken)):
        share = f" ({each.taken_bytes / each.planned_bytes:.1%})" if each.planned_bytes else ""
        yield f"verify-fit: {each.name}: {each.taken_bytes:,} of {each.planned_bytes:,} bytes{share}"


def full_lengths(budget: Budget) -> list[int]:
    """Of as many sequences as run at once, tokens in a cache without a free page: one has all the context, the others share."""
    layout, seqs = budget.layout, budget.max_seqs
    full = [count for group, count in zip(layout.groups, layout.pages, strict=True) if group.window is None]
    if not full:
        return [budget.context] * seqs
    pages, most = min(full), -(-budget.context // layout.page_tokens)
    longest = min(most, max(1, pages - (seqs - 1)))
    given = [longest, *_shares(pages - longest, seqs - 1)]
    return [min(budget.context, min(most, each) * layout.page_tokens) for each in given if each]


def _shares(pages: int, count: int) -> Iterator[int]:
    yield from (pages // count + (index < pages % count) for index in range(count))


def run_largest_steps(runner: Measured, budget: Budget, vocab_size: int) -> None:
    """Steps on sequences of full_lengths, whose tokens nobody computed: every row decodes, with drafts too, the longest one's
    prompt ends beside them, and short prompts share a chunk. As is usual, and with all that may be asked of a draw.
    """
    bias = {token: value for token, value in _EVERYTHING.logit_bias.items() if token < vocab_size}
    rows = tuple(_rows(budget))
    drafted = tuple(structs.replace(row, drafts=(0,) * budget.layout.drafts) for row in rows) if budget.layout.drafts else ()
    for params in (_USUAL, replace(_EVERYTHING, logit_bias=bias)):
        for step in (rows, drafted, (_chunk(budget, rows), *rows[1:]), tuple(_short_prompts(budget, rows))):
            if step:
                _run(runner, step, params)


def _run(runner: Measured, rows: tuple[Row, ...], params: SamplingParams) -> None:
    """One step of rows of which each is where it starts, whatever was computed before."""
    admissions = tuple(Admission(row.sequence, row.slot, _request(row, params)) for row in rows)
    runner.assume(StepPlan(0, admissions, tuple(structs.replace(row, tokens=(), drafts=()) for row in rows)))
    runner.launch(StepPlan(1, (), tuple(structs.replace(row, page_updates=()) for row in rows))).result()


def _request(row: Row, params: SamplingParams) -> Request:
    prompt = (0,) * (row.start + len(row.tokens) + 2)
    return Request(f"fit-{row.sequence}", prompt, params, row.sequence, 8, eos_ids=(_END_TOKEN,))


def _rows(budget: Budget) -> Iterator[Row]:
    """A row for each sequence that computes its last token, with all pages that the sequence has."""
    layout = budget.layout
    taken = [0] * len(layout.groups)
    for number, length in enumerate(full_lengths(budget)):
        count = -(-length // layout.page_tokens)
        updates = tuple(
            PageUpdate(group.index, 0, tuple((taken[group.index] + page) % held for page in range(count)))
            for group, held in zip(layout.groups, layout.pages, strict=True)
        )
        taken = [each + count for each in taken]
        yield Row(number, number, length - 1, page_updates=updates)


def _chunk(budget: Budget, rows: Sequence[Row]) -> Row:
    """The first sequence with the last chunk of a prompt, as large as the scheduler makes it beside the others."""
    row, chunk, others = rows[0], budget.chunk_tokens, len(rows) - 1
    tokens = max(1, min(row.start + 1, chunk - min(others, chunk // 2)))
    return structs.replace(row, start=row.start + 1 - tokens, tokens=(0,) * tokens)


def _short_prompts(budget: Budget, rows: Sequence[Row]) -> Iterator[Row]:
    """Prompts that share a chunk evenly, of _SHORT_TOKENS at least."""
    left = budget.chunk_tokens
    for row in rows:
        tokens = min(row.start + 1, left, max(_SHORT_TOKENS, budget.chunk_tokens // len(rows)))
        left -= tokens
        if tokens:
            yield structs.replace(row, start=0, tokens=(0,) * tokens)
