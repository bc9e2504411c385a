"""Packing: uploads keep their places, page tables follow the updates, and a batch is what its rows say."""

from __future__ import annotations

import random

import pytest
import torch

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.runner.batch import Packer
from headrace.runner.page_tables import PageTables
from headrace.runner.upload import Upload
from headrace.types import PageUpdate, Row

CPU = torch.device("cpu")
GROUPS = (CacheGroup(0, None, (0,), 1), CacheGroup(1, 8, (1,), 1))


def test_an_upload_gives_back_what_was_added_at_the_same_places_each_step() -> None:
    upload = Upload(16, CPU)
    first = None
    for step in range(4):
        upload.begin()
        spans = [upload.add([step, -1]), upload.add([7, 8, step], torch.int32), upload.add([]), upload.add([2**40 + step])]
        upload.send()
        assert [upload.tensor(span).tolist() for span in spans] == [[step, -1], [7, 8, step], [], [2**40 + step]]
        assert upload.tensor(spans[1]).dtype == torch.int32
        pointers = [upload.tensor(span).data_ptr() for span in spans]
        assert all(pointer % 16 == 0 for pointer in pointers)
        first = first or pointers
        assert pointers == first


def test_more_than_fits_is_an_error() -> None:
    upload = Upload(2, CPU)
    upload.begin()
    with pytest.raises(ValueError):
        upload.add(range(50))


def test_padding_has_its_own_slot_and_pages() -> None:
    layout = CacheLayout(GROUPS, 4, (10, 20), 3, True)
    tables = PageTables(layout, 20, CPU)
    assert tables.entries.shape == (2, 4, 5)
    assert tables.entries[:, 3].tolist() == [[10] * 5, [20] * 5]
    entry, page = torch.tensor([tables.padding_entry]), torch.tensor([tables.padding_page])
    before = tables.entries.clone()
    tables.apply(entry, page)
    assert torch.equal(tables.entries, before)


def test_batches_of_random_rows() -> None:
    rng = random.Random(1)
    layout = CacheLayout(GROUPS, 4, (60, 60), 6)
    tables = PageTables(layout, 40, CPU)
    packer = Packer(tables, 40, 6, 120, CPU)
    next_tokens = torch.arange(100, 106)
    held: dict[int, list[list[int]]] = {slot: [[], []] for slot in range(6)}
    lengths = dict.fromkeys(range(6), 0)
    free = [rng.sample(range(60), 60) for _ in GROUPS]
    for _ in range(30):
        rows, expected = [], []
        for slot in rng.sample(range(6), rng.randint(1, 6)):
            tokens = tuple(rng.randrange(90) for _ in range(rng.choice((0, 0, 1, 3))))
            start, end = lengths[slot], lengths[slot] + (len(tokens) or 1)
            if end > 40:
                continue
            updates = []
            for group, pages in enumerate(held[slot]):
                new = [free[group].pop() for _ in range(-(-end // 4) - len(pages))]
                if new:
                    updates.append(PageUpdate(group, len(pages), tuple(new)))
                pages.extend(new)
            rows.append(Row(slot, slot, start, tokens, (), tuple(updates), samples=rng.random() < 0.7))
            expected.append((slot, start, tokens or (100 + slot,)))
            lengths[slot] = end
        if rows:
            check(packer, tuple(rows), expected, held, next_tokens)


def check(packer: Packer, rows: tuple[Row, ...], expected: list, held: dict, next_tokens: torch.Tensor) -> None:
    batch, sampled = packer.pack(rows, next_tokens)
    counts = [len(tokens) for _, _, tokens in expected]
    assert batch.tokens.tolist() == [token for _, _, tokens in expected for token in tokens]
    positions = [start + i for _, start, tokens in expected for i in range(len(tokens))]
    assert batch.positions.tolist() == positions
    assert batch.row_offsets.tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)]
    assert batch.slots.tolist() == [slot for slot, _, _ in expected]
    ends = [start + len(tokens) for _, start, tokens in expected]
    assert batch.lengths.tolist() == ends and batch.host_row_tokens == tuple(counts)
    owners = [slot for slot, _, tokens in expected for _ in tokens]
    for group, (table, write_at) in enumerate(zip(batch.page_tables, batch.write_at, strict=True)):
        for row, (slot, _, _) in enumerate(expected):
            pages = -(-ends[row] // 4)
            assert table[row, :pages].tolist() == held[slot][group][:pages]
        assert write_at.tolist() == [held[s][group][p // 4] * 4 + p % 4 for s, p in zip(owners, positions, strict=True)]
    drawn = [row for row, given in enumerate(rows) if given.samples]
    assert (sampled is None) == (not drawn)
    if sampled is not None:
        assert sampled.slots == tuple(rows[row].slot for row in drawn) == tuple(sampled.where.tolist())
        assert sampled.positions.tolist() == [ends[row] for row in drawn]
        last = [sum(counts[: row + 1]) - 1 for row in drawn]
        assert (list(range(sum(counts))) if sampled.last is None else sampled.last.tolist()) == last
