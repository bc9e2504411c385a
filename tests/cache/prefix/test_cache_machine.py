"""The whole cache beside a naive model of it: what every page holds, and who has it, after every operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.pages import GONE
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.node import Node
from headrace.cache.prefix.tokens import TOKEN_BYTES, encode

CONTEXT = 40
WINDOW = 7
LONG_WINDOW = 12
SLOW: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@dataclass(eq=False)
class Running:
    """A sequence: its tokens, how many of them are in its pages."""

    lease: Lease
    tokens: list[int]
    salt: str


class CacheMachine(RuleBasedStateMachine):
    """Sequences begin, grow, take checkpoints and end, in any order, in a pool that is too small for all of them.

    device[g][page][offset] is the prefix whose last token was written there: what keys and values depend on. states[slot] is
    the prefix of a checkpoint. A sequence that starts from the cache must find exactly its own prefixes in its pages.
    """

    windows_of: tuple[tuple[int, ...], ...] = ((),)
    slots_of: tuple[int | None, ...] = (None,)

    @initialize(data=st.data(), page=st.integers(1, 5), spare=st.integers(0, 14), letters=st.integers(1, 3))
    def start(self, data: st.DataObject, page: int, spare: int, letters: int) -> None:
        windows = data.draw(st.sampled_from(self.windows_of))
        slots = data.draw(st.sampled_from(self.slots_of))
        window_spare = data.draw(st.integers(0, 8))
        groups = (CacheGroup(0, None, (0,), 1), *(CacheGroup(i + 1, w, (i + 1,), 1) for i, w in enumerate(windows)))
        pages = [-(-CONTEXT // page) + spare, *(-(-(w + 13) // page) + window_spare for w in windows)]
        layout = CacheLayout(groups, page, tuple(pages), 9)
        self.windows: tuple[int | None, ...] = (None, *windows)
        self.page, self.letters, self.by_checkpoint = page, letters, slots is not None
        self.cache = PrefixCache(layout, FlopsPerByte(10.0, 1.0, 4, 30 if slots is not None else 0), slots)
        self.device: list[list[list[object]]] = [[[None] * page for _ in range(count)] for count in pages]
        self.states: dict[int, object] = {}
        self.held: set[int] = set()  # checkpoint slots that the plan in the making reads
        self.running: list[Running] = []
        self.known: set[tuple[str, tuple[int, ...]]] = set()  # every prefix that was ever recorded

    def _write(self, running: Running, start: int) -> None:
        """Compute tokens from `start` on."""
        prefix = (running.salt, tuple(running.tokens))
        for position in range(start, len(running.tokens)):
            value = (prefix[0], prefix[1][: position + 1])
            for group, pages in enumerate(running.lease.pages):
                self.device[group][pages[position // self.page]][position % self.page] = value

    def _draw(self, data: st.DataObject, least: int, most: int) -> list[int]:
        return data.draw(st.lists(st.integers(0, self.letters - 1), min_size=least, max_size=most))

    @rule(data=st.data(), salt=st.sampled_from(("", "", "other")), reads=st.sampled_from((True, True, True, False)),
          writes=st.sampled_from((True, True, True, False)), whole=st.booleans())
    def begin(self, data: st.DataObject, salt: str, reads: bool, writes: bool, whole: bool) -> None:
        prompt = self._prompt(data, salt)
        most = len(prompt) - (not whole)
        key = encode(prompt)
        match = self.cache.match(salt, key, most)
        self._check_match(salt, prompt, most, match)
        fits = self.cache.has_room(match, len(prompt), len(prompt), 0)
        opened = self.cache.open(salt, key, most, unread=None if reads else Miss.OPTED_OUT, writes=writes)
        if opened.tokens:
            assert reads and opened.tokens == match.tokens and opened.miss == match.miss
        elif not reads or match.tokens:
            assert opened.miss is (Miss.NO_ROOM if reads else Miss.OPTED_OUT)
        running = Running(opened.lease, prompt[: opened.tokens], salt)
        for copy in opened.copies:
            self.device[copy.group][copy.target] = list(self.device[copy.group][copy.source])
        if opened.checkpoint is not None:
            assert self.states[opened.checkpoint.slot] == (salt, tuple(prompt[: opened.tokens]))
            self.held.add(opened.checkpoint.slot)
        self._check_pages(running, opened.tokens)
        room = self.cache.extend(opened.lease, len(prompt))
        if opened.tokens == match.tokens:
            assert (room is not None) == fits
        if room is None:
            self.cache.close(opened.lease)
        else:
            self.running.append(running)
            running.tokens = prompt
            self._write(running, opened.tokens)
            self._record(running, prompt[opened.tokens :])

    def _prompt(self, data: st.DataObject, salt: str) -> list[int]:
        """Random, or a beginning of something known with more behind it."""
        mine = sorted(tokens for s, tokens in self.known if s == salt)
        base: list[int] = []
        if mine and data.draw(st.booleans()):
            base = list(data.draw(st.sampled_from(mine)))
            base = base[: data.draw(st.integers(0, len(base)))]
        return (base + self._draw(data, 0 if base else 1, 12))[: CONTEXT - 1]

    def _record(self, running: Running, tokens: list[int]) -> None:
        self.cache.record(running.lease, tokens)
        if running.lease.writes:
            self.known.add((running.salt, tuple(running.tokens)))

    def _check_match(self, salt: str, prompt: list[int], most: int, match) -> None:  # type: ignore[no-untyped-def]
        assert 0 <= match.tokens <= min(match.known, most) <= len(prompt)
        assert (match.miss is None) == (match.tokens == most)
        longest = max((_common(prompt, tokens) for s, tokens in self.known if s == salt), default=0)
        assert match.known <= longest
        assert match.known == self._longest_in_index(salt, prompt)
        if not self.by_checkpoint:
            assert match.checkpoint is None
            if len(self.windows) == 1:
                assert match.tokens == min(match.known, most)
        else:
            states = [c.tokens for c in self._checkpoints(salt, prompt) if c.tokens <= most]
            assert match.tokens == max(states, default=0)
            assert (match.checkpoint is not None) == bool(states)

    def _longest_in_index(self, salt: str, prompt: list[int]) -> int:
        return max((_common(prompt, path) for path, _ in self._paths(salt)), default=0)

    def _checkpoints(self, salt: str, prompt: list[int]):  # type: ignore[no-untyped-def]
        for path, node in self._paths(salt):
            for rest, checkpoint in node.checkpoints.items():
                tokens = [*path, *_decode(rest)]
                assert len(tokens) == checkpoint.tokens
                if prompt[: len(tokens)] == tokens:
                    yield checkpoint

    def _paths(self, salt: str) -> list[tuple[list[int], Node]]:
        """Every node with all of the tokens up to its end."""
        root = self.cache._nodes.roots.get(salt)
        found, left = [], [([], root)] if root else []
        while left:
            path, node = left.pop()
            path = path + _decode(node.tokens)
            found.append((path, node))
            left.extend((path, child) for child in node.children)
        return found

    def _check_pages(self, running: Running, tokens: int) -> None:
        """What a query at `tokens` reads is there."""
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, tokens - window + 1)
            for position in range(first, tokens):
                page = running.lease.pages[group][position // self.page]
                assert page != GONE
                expected = (running.salt, tuple(running.tokens[: position + 1]))
                assert self.device[group][page][position % self.page] == expected

    @precondition(lambda self: self.running)
    @rule(data=st.data(), drop=st.booleans(), late=st.booleans())
    def grow(self, data: st.DataObject, drop: bool, late: bool) -> None:
        """late: tokens are recorded after what follows them was planned, as in an overlapped loop."""
        running = data.draw(st.sampled_from(self.running))
        more = self._draw(data, 1, 9)[: CONTEXT - len(running.tokens)]
        start = len(running.tokens)
        if drop:
            self.cache.drop_behind_windows(running.lease, start)
        self._check_pages(running, start)
        if more and self.cache.extend(running.lease, start + len(more)) is not None:
            running.tokens = running.tokens + more
            self._write(running, start)
            if late:
                self.cache.drop_behind_windows(running.lease, len(running.tokens))
            self._record(running, more)

    @rule(pages=st.integers(0, 12), slots=st.integers(0, 3), entries=st.integers(0, 4))
    def make_room(self, pages: int, slots: int, entries: int) -> None:
        """Ahead of need: no more than is asked for, and less only where there is nothing left to evict."""
        kept = [len(self._paths(salt)) for salt in self.cache._nodes.roots]
        checkpoints, owned = self.cache.checkpoint_slots, list(self.cache._nodes.owned)
        free = checkpoints.free
        evicted = self.cache.make_room([pages] * len(self.windows), slots, entries)
        assert evicted <= entries
        if not evicted:
            assert owned == self.cache._nodes.owned and free == checkpoints.free
            assert kept == [len(self._paths(salt)) for salt in self.cache._nodes.roots]
        if evicted < entries:
            for group, pool in enumerate(self.cache.pools):
                assert pool.free >= pages or self.cache._nodes.owned[group] == self.cache._nodes.locked[group]
            assert checkpoints.free >= min(slots, checkpoints.total - len(self.held))

    @rule()
    def end_plan(self) -> None:
        self.cache.end_plan()
        self.held.clear()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        running = data.draw(st.sampled_from(self.running))
        slot = self.cache.checkpoint(running.lease)
        if slot is not None:
            assert running.lease.writes and self.by_checkpoint
            assert slot not in self.held, "a state that is still to be read would be overwritten"
            self.states[slot] = (running.salt, tuple(running.tokens))
            match = self.cache.match(running.salt, encode(running.tokens), len(running.tokens))
            assert match.tokens == len(running.tokens) and match.checkpoint is not None and match.checkpoint.slot == slot

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        running = data.draw(st.sampled_from(self.running))
        self.running.remove(running)
        self.cache.close(running.lease)

    # After every step

    @invariant()
    def every_page_has_one_owner(self) -> None:
        if not hasattr(self, "cache"):
            return
        nodes = [node for salt in self.cache._nodes.roots for _, node in self._paths(salt)]
        for group, pool in enumerate(self.cache.pools):
            index = [page for node in nodes for page in node.pages[group] if page != GONE]
            private = [page for running in self.running for page in running.lease.private[group]]
            everyone = index + private + pool._free
            assert sorted(everyone) == list(range(pool.total)), "a page without an owner, or with two"
            assert self.cache._nodes.owned[group] == len(index)
            for running in self.running:
                kept = [page for page in running.lease.pages[group] if page != GONE]
                assert set(kept) <= set(index) | running.lease.private[group]
                assert running.lease.private[group] <= set(kept)

    @invariant()
    def readers_are_counted(self) -> None:
        if not hasattr(self, "cache"):
            return
        nodes = [node for salt in self.cache._nodes.roots for _, node in self._paths(salt)]
        for node in nodes:
            below = [node, *self._below(node)]
            standing = [r for r in self.running if r.lease.node in below]
            assert node.refs == len(standing) + sum(r.lease.tail is node for r in self.running)
        for group, window in enumerate(self.windows):
            if window is None:
                locked = sum(len(node.pages[group]) for node in nodes if node.refs)
            else:
                locked = self._count_window_readers(nodes, group)
            assert self.cache._nodes.locked[group] == locked

    def _count_window_readers(self, nodes: list[Node], group: int) -> int:
        locked = 0
        for node in nodes:
            for page, readers in zip(node.pages[group], node.readers[group], strict=True):
                reading = sum(page in r.lease.pages[group] for r in self.running) if page != GONE else 0
                assert readers == reading
                locked += reading > 0
        return locked

    def _below(self, node: Node) -> list[Node]:
        return [n for child in node.children for n in (child, *self._below(child))]

    @invariant()
    def checkpoints_can_be_resumed(self) -> None:
        if not hasattr(self, "cache"):
            return
        kept = []
        for salt in self.cache._nodes.roots:
            for path, node in self._paths(salt):
                for rest, checkpoint in node.checkpoints.items():
                    tokens = [*path, *_decode(rest)]
                    assert self.states[checkpoint.slot] == (salt, tuple(tokens))
                    match = self.cache.match(salt, encode(tokens), len(tokens))
                    assert match.checkpoint is checkpoint
                    self._check_windows(node, rest, checkpoint.tokens)
                    kept.append(checkpoint.slot)
        slots = self.cache.checkpoint_slots
        assert len(set(kept)) == len(kept)
        assert sorted({*kept, *slots._free, *self.held}) == list(range(slots.total))
        assert not set(slots._free) & {*kept, *self.held}

    def _check_windows(self, node: Node, rest: bytes, tokens: int) -> None:
        """What a sequence resumed at a checkpoint reads of windows is there."""
        chain = dict(self._pages_of(node))
        backing = [child for child in node.children if child.tokens.startswith(rest)] if rest else []
        for group, window in enumerate(self.windows):
            for page in range(0 if window is None else max(0, tokens - window + 1) // self.page, tokens // self.page):
                assert chain[page][group] != GONE
        assert not rest or any(all(run[0] != GONE for run in child.pages) for child in backing)

    def _pages_of(self, node: Node | None):  # type: ignore[no-untyped-def]
        while node is not None:
            for offset in range(len(node.pages[0])):
                yield node.first + offset, [run[offset] for run in node.pages]
            node = node.parent

    @invariant()
    def the_tree_is_one(self) -> None:
        if not hasattr(self, "cache"):
            return
        size = self.page * TOKEN_BYTES
        for salt in self.cache._nodes.roots:
            for _, node in self._paths(salt):
                keys = [child.tokens[:size] for child in node.children]
                assert len(set(keys)) == len(keys) and sorted(keys) == node.children._keys
                for child in node.children:
                    assert child.parent is node and child.first == self.cache._nodes.end(node)
                    assert child.tokens and (len(child.tokens) % size == 0 or (len(child.tokens) < size and not child.children))
                    assert all(len(run) == child.count(size) for run in child.pages)

    def teardown(self) -> None:
        """When all have ended nothing is locked, and everything can be had again."""
        if not hasattr(self, "cache"):
            return
        for running in self.running:
            self.cache.close(running.lease)
        self.running = []
        self.every_page_has_one_owner()
        self.cache.end_plan()
        assert self.cache._nodes.locked == [0] * len(self.windows)
        for group in reversed(range(len(self.windows))):
            pool = self.cache.pools[group]
            self.cache._eviction.free_pages(group, pool.total)
            assert pool.free == pool.total
        assert not self.cache._nodes.roots and self.cache.checkpoint_slots.free == self.cache.checkpoint_slots.total


def _decode(tokens: bytes) -> list[int]:
    return [int.from_bytes(tokens[i : i + TOKEN_BYTES], "little") for i in range(0, len(tokens), TOKEN_BYTES)]


def _common(a: list[int], b: tuple[int, ...] | list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


WINDOWS = ((WINDOW,), (1,), (WINDOW, LONG_WINDOW))
SLOTS = (0, 1, 2, 3, 5, 9)


class HybridMachine(CacheMachine):
    slots_of = SLOTS


class WindowedMachine(CacheMachine):
    windows_of = WINDOWS


class WindowedHybridMachine(CacheMachine):
    windows_of = WINDOWS
    slots_of = SLOTS


MACHINES = (CacheMachine, HybridMachine, WindowedMachine, WindowedHybridMachine)


@pytest.mark.parametrize("machine", MACHINES)
def test_cache(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(derandomize=True, max_examples=100, stateful_step_count=50, **SLOW))


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_many_caches(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=1000, stateful_step_count=80, **SLOW))
