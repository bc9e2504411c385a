"""Entries come up in order, and dead ones do not stay."""

from __future__ import annotations

from headrace.cache.prefix.lazy_heap import LazyHeap


def test_the_dead_are_passed_over() -> None:
    alive = {"a": (3.0, 0), "b": (1.0, 7)}
    heap: LazyHeap[str] = LazyHeap(lambda priority, item: alive.get(item) == priority)
    for priority, item in (((2.0, 0), "a"), ((3.0, 0), "a"), ((1.0, 7), "b"), ((0.0, 0), "c")):
        heap.push(priority, item)
    assert [heap.pop(), heap.pop(), heap.pop()] == [((1.0, 7), "b"), ((3.0, 0), "a"), None]


def test_a_heap_of_the_dead_stays_small() -> None:
    heap: LazyHeap[int] = LazyHeap(lambda priority, item: item % 1000 == 0)
    for item in range(1, 50_001):
        heap.push((-item, 0), item)
        assert len(heap._entries) < 2500
    assert [entry[1] for entry in iter(heap.pop, None)] == list(range(50_000, 0, -1000))
