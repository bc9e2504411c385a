"""What is known of the entries: against a plain dictionary."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.ssd.catalogue import Catalogue
from headrace.cache.ssd.key import EntryKey, Kind, base_of, shard_of

NAMES = [EntryKey(list(Kind)[i // 3 % 2], i, 20, bytes([i % 3] * 8), bytes([i % 2] * 31 + [i])).name for i in range(8)]
number = st.integers(0, 7)
time_ns = st.integers(0, 50)
steps = st.one_of(
    st.tuples(st.just("add"), number, time_ns),
    st.tuples(st.just("touch"), number, time_ns),
    st.tuples(st.just("drop"), number, time_ns),
    st.tuples(st.just("replace"), st.sets(number), time_ns),
)


@given(st.lists(steps, max_size=40))
def test_it_agrees_with_a_dictionary(taken: list[tuple[str, object, int]]) -> None:
    catalogue, model = Catalogue(), dict[str, tuple[int, int]]()
    for step, what, at in taken:
        if step == "replace":
            assert isinstance(what, set)
            found = {NAMES[i]: (100, at) for i in what if shard_of(NAMES[i]) == 1}
            catalogue.replace(1, found)
            kept = {name: entry for name, entry in model.items() if shard_of(name) != 1 or name in found}
            model = kept | {name: (kept.get(name, (100, 0))[0], max(kept.get(name, (0, 0))[1], at)) for name in found}
            continue
        name = NAMES[what]  # type: ignore[call-overload]
        if step == "add":
            catalogue.add(name, at + 1, at)
            model[name] = (at + 1, at)
        elif step == "drop":
            catalogue.drop(name)
            model.pop(name, None)
        else:
            catalogue.touch(name, at)
            if name in model:
                model[name] = (model[name][0], max(model[name][1], at))
    assert len(catalogue) == len(model) and catalogue.total_bytes == sum(nbytes for nbytes, _ in model.values())
    for name in NAMES:
        assert (name in catalogue) == (name in model)
        same = [other for other in model if base_of(other) == base_of(name) and other[0] == name[0]]
        assert catalogue.with_base(base_of(name), Kind(name[0])) == sorted(same)
    order = []
    while (oldest := catalogue.oldest()) is not None:
        order.append(oldest)
        catalogue.drop(oldest[0])
    assert order == sorted(((name, used) for name, (_, used) in model.items()), key=lambda item: (item[1], item[0]))


def test_uses_do_not_pile_up() -> None:
    catalogue = Catalogue()
    catalogue.add(NAMES[0], 1, 0)
    catalogue.add(NAMES[1], 1, 0)
    tracemalloc.start()
    for at in range(50_000):
        catalogue.touch(NAMES[at % 2], at)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 500_000 and catalogue.oldest() == (NAMES[0], 49_998)
