"""A device in plain Python: it keeps every page's cells and every slot's state, and notices whatever a plan gets wrong."""

from __future__ import annotations

from headrace.cache.layout import CacheLayout
from headrace.types import Admission, HostCopies, PageCopy, PageUpdate, Request, Row, RowResult, StepPlan, StepResult

VOCAB = 50
Cells = list[dict[tuple[int, int], tuple[str, list[int]]]]


def next_token(seed: int, tokens: list[int]) -> int:
    """The fake model: what follows `tokens` depends on all of them and on the seed."""
    return (sum((i + 1) * t for i, t in enumerate(tokens)) * 31 + seed * 7 + len(tokens)) % VOCAB


def expected_output(request: Request) -> list[int]:
    """What the request yields on its own, without any batching."""
    tokens = list(request.prompt)
    while len(tokens) - len(request.prompt) < request.max_tokens:
        tokens.append(next_token(request.seed, tokens))
        if tokens[-1] in request.eos_ids or tokens[-1] in request.params.stop_token_ids:
            break
    return tokens[len(request.prompt) :]


class FakeDevice:
    """Runs plans. A cell holds all tokens up to its own, and their salt, which is what keys and values depend on; a slot holds
    its sequence, its tokens (the recurrent state) and its next input; a checkpoint salt and tokens. Every row asserts that its
    state ends where it starts, or behind that where drafts may have been accepted since, and that its window is in its pages.
    With drafts a message's end freezes its slot: rows behind it do nothing. recurrent: whether states are resumed from
    checkpoints, or follow from the pages. What goes to host memory and comes back does so as late as it may, or to `land`."""

    def __init__(self, layout: CacheLayout, *, recurrent: bool = True) -> None:
        self.layout, self.recurrent = layout, recurrent
        self.cells: Cells = [{} for _ in layout.groups]
        self.kept: dict[int, tuple[str, list[int]]] = {}
        self.host_cells: Cells = [{} for _ in layout.groups]
        self.host_kept: dict[int, tuple[str, list[int]]] = {}
        self.brought: dict[int, tuple[str, list[int]]] = {}  # by slot: states that came from host memory
        self.coming: dict[int, HostCopies] = {}  # by step
        self.going: list[HostCopies] = []
        self.steps_run = -1
        self.tables: list[list[dict[int, int]]] = [[{} for _ in range(layout.slots)] for _ in layout.groups]
        self.owner: list[int | None] = [None] * layout.slots
        self.state: list[list[int]] = [[] for _ in range(layout.slots)]
        self.next_input: list[int | None] = [None] * layout.slots
        self.request: list[Request | None] = [None] * layout.slots
        self.frozen = [False] * layout.slots

    def run(self, plan: StepPlan) -> StepResult:
        host = plan.host or HostCopies()
        if host.waits:
            self.land()
        assert len({copy.checkpoint for copy in plan.checkpoints}) == len(plan.checkpoints), "two states in one checkpoint"
        for taken in plan.checkpoints:
            request = self.request[taken.slot]
            assert request is not None and 0 <= taken.checkpoint < self.layout.checkpoints
            self.kept[taken.checkpoint] = (request.salt, list(self.state[taken.slot]))
        if host.to_host or host.states:
            self.land()
            self.going.append(host)
        if host.waits:
            self.save()
        self._copy(plan.page_copies, self.cells, self.cells)
        self.coming[plan.step] = host
        self.steps_run = plan.step
        for admission in plan.admissions:
            if admission.restored is not None:
                self.land(admission.restored)
        for admission in plan.admissions:
            self._admit(admission)
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "a slot has two rows in one step"
        assert {each.sequence for each in plan.admissions} <= {row.sequence for row in plan.rows}, "one has no row"
        return StepResult(plan.step, tuple(self._row(row) for row in plan.rows))

    def save(self) -> None:
        """What goes to host memory is there."""
        for host in self.going:
            self._copy(host.to_host, self.cells, self.host_cells)
            for taken in host.states:
                self.host_kept[taken.checkpoint] = self.kept[taken.slot]
        self.going.clear()

    def land(self, step: int | None = None) -> None:
        """What the plan of that step, or any, brings back from host memory is there, and all that goes there."""
        self.save()
        for each in list(self.coming) if step is None else [step]:
            host = self.coming.pop(each, HostCopies())
            self._copy(host.from_host, self.host_cells, self.cells)
            for resumed in host.resumed:
                self.brought[resumed.slot] = self.host_kept[resumed.checkpoint]

    def landed(self, step: int) -> bool:
        return step <= self.steps_run and step not in self.coming

    def take_times(self) -> list[float]:
        return []

    def _copy(self, copies: tuple[PageCopy, ...], sources: Cells, targets: Cells) -> None:
        for copy in copies:
            for offset in range(self.layout.page_tokens):
                cell = sources[copy.group].get((copy.source, offset))  # the target may be the same page, evicted and given anew
                targets[copy.group].pop((copy.target, offset), None)
                if cell is not None:
                    targets[copy.group][copy.target, offset] = cell

    def _admit(self, admission: Admission) -> None:
        slot, request = admission.slot, admission.request
        state = [*request.prompt, *admission.output][: admission.start]
        restored = admission.restored is not None
        assert (admission.checkpoint is not None or restored) == (admission.start > 0) or not self.recurrent
        assert admission.checkpoint is None or not restored
        if self.recurrent and admission.start > 0:
            found = self.brought.pop(slot) if restored else self.kept[admission.checkpoint]  # type: ignore[index]
            assert found == (request.salt, state), "it resumes from another state"
        self.owner[slot], self.state[slot] = admission.sequence, state
        self.next_input[slot] = [*request.prompt, *admission.output][-1]
        self.request[slot], self.frozen[slot] = request, False
        for table in self.tables:
            table[slot] = {}
        self._set_pages(slot, admission.pages)

    def _set_pages(self, slot: int, updates: tuple[PageUpdate, ...]) -> None:
        for update in updates:
            for offset, page in enumerate(update.pages):
                self.tables[update.group][slot][update.first + offset] = page

    def _row(self, row: Row) -> RowResult:
        assert self.owner[row.slot] == row.sequence, "the slot belongs to another sequence"
        if self.layout.drafts and self.frozen[row.slot]:
            return RowResult(row.sequence, (0,) * row.samples)
        state = self.state[row.slot]
        assert row.start == len(state) or row.start < len(state) and self.layout.drafts, "the state is not at the row's start"
        self._set_pages(row.slot, row.page_updates)
        request, tokens = self.request[row.slot], row.tokens
        assert request is not None and len(row.drafts) <= self.layout.drafts
        if not tokens:
            carried = self.next_input[row.slot]
            assert carried is not None
            tokens = (carried,)
        last = len(request.prompt) + max(request.max_tokens - 1, 0)  # the last sampled token is never computed
        assert row.start + len(tokens) <= last, "computed past the request's end"
        for token in tokens:
            state.append(token)
            self._write(row, state)
            self._check_window(row, len(state) - 1)
        if not row.samples:
            return RowResult(row.sequence)
        for count in range(1, 1 + len(row.drafts[: last - len(state)])):
            self._write(row, [*state, *row.drafts[:count]])
        sampled = [self._sample(row.slot, request)]
        for draft in row.drafts:
            if self.frozen[row.slot] or draft != sampled[-1]:
                break
            state.append(draft)
            self._check_window(row, len(state) - 1)
            sampled.append(self._sample(row.slot, request))
        return RowResult(row.sequence, tuple(sampled))

    def _sample(self, slot: int, request: Request) -> int:
        state = self.state[slot]
        token = next_token(request.seed, state)
        ended = token in request.eos_ids or token in request.params.stop_token_ids
        self.frozen[slot] = ended or len(state) + 1 >= len(request.prompt) + request.max_tokens
        self.next_input[slot] = token
        return token

    def _write(self, row: Row, tokens: list[int]) -> None:
        """Keys and values of the last of these tokens."""
        request = self.request[row.slot]
        assert request is not None
        index, offset = divmod(len(tokens) - 1, self.layout.page_tokens)
        for group in range(len(self.layout.groups)):
            page = self.tables[group][row.slot][index]
            assert 0 <= page < self.layout.pages[group]
            self.cells[group][page, offset] = (request.salt, list(tokens))

    def _check_window(self, row: Row, position: int) -> None:
        request, state = self.request[row.slot], self.state[row.slot]
        assert request is not None
        for group in self.layout.groups:
            first = 0 if group.window is None else max(0, position - group.window + 1)
            for seen in range(first, position + 1):
                index, offset = divmod(seen, self.layout.page_tokens)
                page = self.tables[group.index][row.slot][index]
                cell = self.cells[group.index].get((page, offset))
                assert cell == (request.salt, state[: seen + 1]), f"position {seen} was overwritten: {cell}"
