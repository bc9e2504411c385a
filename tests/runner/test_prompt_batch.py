"""Steps with prompts packed as captured ones are: padded, in another order, and the same tokens."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runner.test_graphs import CONTEXT, SLOTS, engine, requests, scripted, tokens_of

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.layers.batch import Batch
from headrace.plan.graph_rows import PromptShape, prompt_shapes, shape_of
from headrace.plan.uploads import step_words
from headrace.plan.workspace import upload_bytes
from headrace.runner.batch import Packer
from headrace.runner.forward_graphs import Places
from headrace.runner.page_tables import PageTables
from headrace.runner.prompt_batch import batch_of, prompts_of, singles_first, write
from headrace.runner.sampler import Drawn
from headrace.types import Row

CPU = torch.device("cpu")


class Padded:
    """Runs what a graph would, on a CPU."""

    def __init__(self, runner: Any, shape: PromptShape) -> None:
        self.runner, self.shape = runner, shape

    def replay(self, rows: tuple[Row, ...]) -> Drawn | None:
        runner, upload = self.runner, self.runner._packer.upload
        inputs = write(upload, self.shape, rows, runner._tables)
        upload.send()
        at = upload.tensor
        runner._tables.apply(at(inputs.updated), at(inputs.pages))
        batch = batch_of(upload, self.shape, inputs, runner._tables, runner._sampler.next_tokens)
        assert len(batch.tokens) == self.shape.tokens == int(batch.row_offsets[-1])
        assert batch.longer is not None and (batch.row_offsets.diff()[: -batch.longer] <= 1).all()
        hidden = runner._decoder(batch, runner._pools, at(inputs.ends))
        slots = [row.slot for row in rows if row.samples]
        logits, count = runner._decoder.logits(hidden), len(slots)
        where, positions = at(inputs.drawn_slots), at(inputs.drawn_at)
        assert (where[count:] == runner._tables.padding_slot).all()
        if not slots:
            return None
        drawn: Drawn = runner._sampler.draw_at(logits[:count], slots, where[:count], positions[:count])
        return drawn


class PaddedSteps:
    def __init__(self, runner: Any) -> None:
        self.runner, self.shapes, self.seen = runner, prompt_shapes(SLOTS, 32, CONTEXT), []

    def graph_for(self, rows: tuple[Row, ...]) -> Padded | None:
        tokens = sum(len(row.tokens) or 1 for row in rows)
        shape = shape_of(tokens, len(rows), prompts_of(rows), self.shapes)
        if shape is not None:
            self.seen.append((shape, len(rows), tokens))
        return None if shape is None else Padded(self.runner, shape)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("together", [1, 4])
def test_padded_steps_give_the_tokens_of_plain_ones(depth: int, together: int) -> None:
    expected = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(40), together)
    core = engine("cpu", padding=True, depth=depth, pages=120)
    runner: Any = core._runner
    runner._prompts = steps = PaddedSteps(runner)
    assert tokens_of(core, requests(40), together) == expected
    assert len(steps.seen) > 40 and len({shape for shape, _, _ in steps.seen}) >= 3
    assert any(rows < tokens < shape.tokens for shape, rows, tokens in steps.seen)


class PaddedForward:
    """Runs what a graph of the decoder's part would, on a CPU."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.shapes, self.seen = runner, prompt_shapes(SLOTS, 32, CONTEXT), []
        self.places = Places(32, SLOTS + 5, runner._tables)

    def graph_for(self, rows: tuple[Row, ...]) -> Any:
        if any(row.draft_count for row in rows):
            return None
        shape = shape_of(sum(len(row.tokens) or 1 for row in rows), len(rows), prompts_of(rows), self.shapes)
        return SimpleNamespace(run=partial(self.run, shape)) if shape else None

    def run(self, shape: PromptShape, batch: Batch) -> Any:
        runner = self.runner
        offsets = self.places.clear(shape)
        self.places.take(batch, shape)
        hidden, taps = runner._decoder.tapped(self.places.batch(shape, offsets), runner._pools, ())
        self.seen.append((shape, batch.host_row_tokens))
        assert len(hidden) == shape.tokens == int(offsets[-1])
        return hidden[: len(batch.tokens)], taps


@pytest.mark.parametrize("depth", [1, 2])
def test_padded_passes_give_the_tokens_of_plain_ones_where_rows_have_drafts(depth: int) -> None:
    expected = tokens_of(engine("cpu", padding=False, depth=1, pages=120), requests(40), 4)
    core = engine("cpu", padding=True, depth=depth, pages=120, drafter=scripted(expected, 3))
    runner: Any = core._runner
    runner._drafting.forwards = steps = PaddedForward(runner)
    assert tokens_of(core, requests(40), 4) == expected
    assert len(steps.seen) > 10 and any(len(counts) > 1 for _, counts in steps.seen)


def test_a_batch_takes_its_places_in_that_of_a_shape() -> None:
    layout = CacheLayout((CacheGroup(0, None, (0,), 1), CacheGroup(1, 8, (1,), 1)), 4, (60, 50), 12, True)
    tables, rng = PageTables(layout, 60, CPU), random.Random(3)
    tables.entries[0, :12], tables.entries[1, :12] = (torch.randint(0, 50, (12, tables.width)) for _ in range(2))
    packer, places = Packer(tables, 64, 13, 0, CPU), Places(64, 17, tables)
    for shape in (*prompt_shapes(12, 64, 60), *prompt_shapes(12, 64, 60)[::-1]):
        prompts = rng.randint(0, shape.prompts)
        counts = [*(1,) * rng.randint(not prompts, min(4, shape.rows - prompts)), *(rng.randint(2, 9) for _ in range(prompts))]
        while sum(counts) > shape.tokens:
            counts.pop()
        slots = rng.sample(range(12), len(counts))
        rows = tuple(
            Row(n, slot, rng.randint(0, 40), (rng.randint(1, 99),) * k)
            for n, (slot, k) in enumerate(zip(slots, counts, strict=True))
        )
        given, offsets = packer.pack(rows, torch.zeros(13, dtype=torch.int64))[0], places.clear(shape)
        places.take(given, shape)
        found = places.batch(shape, offsets)
        assert found.longer == shape.prompts + 1 and len(found.tokens) == shape.tokens == int(offsets[-1])
        widths, begin = found.row_offsets.diff().tolist(), found.row_offsets.tolist()
        singles = counts.count(1)
        at = [*range(singles), *range(shape.rows, shape.rows + len(counts) - singles)]
        for row, place in enumerate(at):
            assert widths[place] == counts[row] and found.slots[place] == given.slots[row]
            assert found.lengths[place] == given.lengths[row]
            here, there = slice(begin[place], begin[place + 1]), slice(*given.row_offsets[row : row + 2].tolist())
            for of in (lambda b: b.tokens, lambda b: b.positions, lambda b: b.write_at[0], lambda b: b.write_at[1]):
                assert torch.equal(of(found)[here], of(given)[there])
            for group in (0, 1):
                pages = given.page_tables[group].shape[1]
                assert torch.equal(found.page_tables[group][place, :pages], given.page_tables[group][row])
        for place in set(range(len(widths))) - set(at):
            assert found.slots[place] == tables.padding_slot and found.lengths[place] == widths[place]
        rest = sum(counts)
        assert (found.write_at[0][rest:] == 60 * 4).all() and (found.write_at[1][rest:] == 50 * 4).all()


@given(st.integers(1, 300), st.integers(1, 5000), st.integers(1, 5000))
def test_shapes_rise_and_are_no_larger_than_what_there_is(max_rows: int, chunk_tokens: int, context: int) -> None:
    shapes, most = prompt_shapes(max_rows, chunk_tokens, context), min(chunk_tokens, context)
    assert list(shapes) == sorted(set(shapes)) and bool(shapes) == (most >= 8)
    assert all(1 <= s.prompts <= s.rows <= min(max_rows, s.tokens) and s.tokens <= most for s in shapes)
    assert (512 in [s.tokens for s in shapes]) == (chunk_tokens >= 2048 and context >= 512)


@given(st.integers(1, 80), st.integers(8, 3000), st.integers(1, 300), st.integers(1, 70), st.integers(0, 5))
def test_a_step_runs_as_the_smallest_shape_that_holds_it(
    max_rows: int, max_tokens: int, tokens: int, rows: int, prompts: int
) -> None:
    shapes = prompt_shapes(max_rows, max_tokens, 10**6)
    found = shape_of(tokens, rows, prompts, shapes)
    fitting = [s for s in shapes if s.tokens >= tokens and s.rows >= rows and s.prompts >= prompts]
    assert found == (min(fitting) if fitting else None)


@given(st.integers(1, 200), st.integers(1, 4000))
def test_the_eager_steps_upload_has_room_for_each_shape(slots: int, chunk_tokens: int) -> None:
    """`Runner` has one for both."""
    room = step_words(chunk_tokens + slots, slots + 1, 0)
    for shape in prompt_shapes(slots, chunk_tokens, 10**6):
        rows = shape.rows + shape.prompts + 1
        assert 3 * shape.tokens + 2 * rows + rows // 2 + 1 + 3 * shape.rows <= room
    assert upload_bytes(1, slots, slots + 1, chunk_tokens + slots, 0, graphs=False) >= 8 * room


def test_singles_come_first_in_their_order() -> None:
    rows = tuple(Row(n, n, 0, tokens) for n, tokens in enumerate(((1, 2), (), (3,), (4, 5, 6))))
    assert [row.sequence for row in singles_first(rows)] == [1, 2, 0, 3] and prompts_of(rows) == 2
