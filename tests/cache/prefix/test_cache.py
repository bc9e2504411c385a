"""What the cache is for, case by case: who finds what, why not, and what goes first."""

from __future__ import annotations

import pytest

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.pages import GONE
from headrace.cache.policy.flops_per_byte import FlopsPerByte, flops_per_byte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease, Opened
from headrace.cache.prefix.miss import Miss
from headrace.cache.prefix.tokens import encode
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from headrace.types import PageCopy

PAGE = 4
POLICY = FlopsPerByte(token_flops=1000.0, pair_flops=1.0, token_bytes=10, checkpoint_bytes=200)


def make(pages: int = 30, slots: int | None = None, window: int | None = None, window_pages: int = 30) -> PrefixCache:
    groups = (CacheGroup(0, None, (0,), 1), *(() if window is None else (CacheGroup(1, window, (1,), 1),)))
    return PrefixCache(CacheLayout(groups, PAGE, (pages, window_pages)[: len(groups)], 8), POLICY, slots)


def begin(
    cache: PrefixCache, prompt: list[int], *ends: int, salt: str = "", unread: Miss | None = None, writes: bool = True
) -> Opened:
    """Compute a prompt, with checkpoints at `ends`."""
    opened = cache.open(salt, encode(prompt), len(prompt) - 1, unread=unread, writes=writes)
    assert cache.extend(opened.lease, len(prompt)) is not None
    cache.end_plan()
    advance(cache, opened.lease, prompt[opened.tokens :], *ends)
    return opened


def advance(cache: PrefixCache, lease: Lease, tokens: list[int], *ends: int) -> None:
    start = lease.recorded(PAGE)
    for end in ends:
        cache.record(lease, tokens[lease.recorded(PAGE) - start : end - start])
        assert cache.checkpoint(lease) is not None
    cache.record(lease, tokens[lease.recorded(PAGE) - start :])


def find(cache: PrefixCache, prompt: list[int], salt: str = "") -> tuple[int, int, Miss | None]:
    match = cache.match(salt, encode(prompt), len(prompt) - 1)
    return match.tokens, match.known, match.miss


def test_attention_resumes_at_any_token() -> None:
    cache = make()
    cache.close(begin(cache, list(range(10))).lease)
    for common in range(1, 11):
        tokens = min(common, 10)
        assert find(cache, [*range(common), 99, 98]) == (tokens, tokens, Miss.DIVERGED)
    assert find(cache, list(range(10))) == (9, 10, None)
    assert find(cache, [99]) == (0, 0, None), "the last token is computed in any case"
    assert find(cache, [99, 1]) == (0, 0, Miss.COLD)


def test_a_partial_page_is_copied_and_whole_ones_are_shared() -> None:
    cache = make()
    first = begin(cache, list(range(10))).lease
    cache.close(first)
    second = begin(cache, [*range(9), 50, 51, 52])
    assert second.tokens == 9 and second.lease.pages[0][:2] == first.pages[0][:2]
    assert second.copies == (PageCopy(0, first.pages[0][2], second.lease.pages[0][2]),)
    third = begin(cache, [*range(8), 60])
    assert third.tokens == 8 and third.copies == ()


def test_the_longer_of_two_equal_beginnings_stays() -> None:
    cache = make()
    cache.close(begin(cache, list(range(10))).lease)
    cache.close(begin(cache, list(range(11))).lease)
    assert cache.pools[0].free == 30 - 3, "two pages and one partial one, which took the place of the shorter"
    cache.close(begin(cache, list(range(9)), unread=Miss.PROMPT_LOGPROBS).lease)
    assert cache.pools[0].free == 30 - 3


def test_hybrids_resume_at_checkpoints_alone() -> None:
    cache = make(slots=4)
    cache.close(begin(cache, list(range(20)), 6, 12, 20).lease)
    assert find(cache, [*range(16), 99, 98]) == (12, 16, Miss.NO_CHECKPOINT)
    assert find(cache, [*range(6), 99, 98]) == (6, 6, Miss.DIVERGED)
    assert find(cache, [*range(5), 99, 98]) == (0, 5, Miss.NO_CHECKPOINT)
    assert find(cache, list(range(21))) == (20, 20, None)
    assert find(cache, list(range(20))) == (12, 20, Miss.NO_CHECKPOINT)


def test_a_checkpoint_in_a_page_is_found_by_every_branch() -> None:
    cache = make(slots=4)
    cache.close(begin(cache, list(range(12)), 6).lease)
    for last in (50, 51):
        opened = begin(cache, [*range(7), last, *range(100, 108)])
        assert opened.tokens == 6 and opened.checkpoint is not None and len(opened.copies) == 1
        cache.close(opened.lease)
    assert find(cache, [*range(7), 50, *range(100, 110)])[:2] == (6, 16)


def test_a_checkpoint_in_the_page_of_a_running_sequence_can_be_resumed() -> None:
    cache = make(slots=4)
    writer = begin(cache, list(range(6)), 6).lease
    opened = begin(cache, [*range(6), 70])
    assert opened.tokens == 6 and opened.copies[0].source == writer.pages[0][1]
    advance(cache, writer, [6])
    assert find(cache, [*range(6), 71]) == (6, 6, None)
    assert cache.extend(writer, 9) is not None
    advance(cache, writer, [7, 8])
    assert find(cache, [*range(6), 71]) == (6, 6, None)
    cache.close(writer)
    assert find(cache, [*range(6), 71]) == (6, 6, None)


def test_salts_and_opting_out() -> None:
    cache = make()
    cache.close(begin(cache, list(range(10)), salt="a").lease)
    assert find(cache, list(range(10)), salt="a") == (9, 10, None)
    assert find(cache, list(range(10)), salt="b") == (0, 0, Miss.SALT)
    assert find(cache, [9, 9], salt="b") == (0, 0, Miss.COLD)
    opened = begin(cache, list(range(10)), salt="a", unread=Miss.PROMPT_LOGPROBS)
    assert opened.tokens == 0 and opened.miss is Miss.PROMPT_LOGPROBS
    assert begin(cache, list(range(10)), salt="a").miss is None
    cache.close(begin(cache, list(range(50, 60)), writes=False).lease)
    assert find(cache, list(range(50, 60))) == (0, 0, Miss.COLD)


def test_an_evicted_prefix_is_told_from_a_new_one() -> None:
    cache = make(pages=6)
    cache.close(begin(cache, list(range(16))).lease)
    cache.close(begin(cache, list(range(50, 66))).lease)
    tokens, _, miss = find(cache, list(range(16)))
    assert tokens == 8 and miss is Miss.EVICTED
    assert find(cache, [0, 1, 2, 3, 9, 9, 9, 9, 9]) == (4, 4, Miss.DIVERGED)
    begin(cache, list(range(100, 124)), unread=Miss.PROMPT_LOGPROBS)
    assert find(cache, list(range(16))) == (0, 0, Miss.EVICTED)


def test_pages_that_no_checkpoint_reaches_go_first() -> None:
    cache = make(pages=12, slots=4)
    cache.close(begin(cache, list(range(100, 112)), 12).lease)  # the oldest, and all of it can be resumed
    cache.close(begin(cache, list(range(20)), 4).lease)  # 4 pages behind the checkpoint
    lease = begin(cache, list(range(50, 82))).lease
    assert find(cache, list(range(100, 113)))[0] == 12
    assert find(cache, list(range(20)))[:2] == (4, 4)
    assert cache.extend(lease, 36) is not None
    assert find(cache, list(range(20)))[0] == 0 and find(cache, list(range(100, 113)))[0] == 12, "the cheaper one went"


def test_a_page_that_a_checkpoint_needs_is_not_stranded() -> None:
    cache = make(pages=12, slots=4)
    cache.close(begin(cache, list(range(20)), 6).lease)  # three pages behind the one that the checkpoint ends in
    cache.close(begin(cache, list(range(100, 104)), 4).lease)  # cheaper
    lease = begin(cache, list(range(200, 236))).lease
    assert find(cache, list(range(20)))[:2] == (6, 8) and find(cache, list(range(100, 105)))[0] == 4
    cache.extend(lease, 40)
    assert find(cache, list(range(20)))[:2] == (6, 8) and find(cache, list(range(100, 105)))[0] == 0


def test_a_page_is_stranded_when_its_checkpoint_is_dropped() -> None:
    cache = make(pages=8, slots=1)
    cache.close(begin(cache, list(range(18)), 18).lease)
    cache.close(begin(cache, list(range(100, 108)), 8).lease)  # takes the only slot
    begin(cache, list(range(200, 208)))
    assert find(cache, list(range(18))) == (0, 16, Miss.NO_CHECKPOINT)
    assert find(cache, list(range(100, 109)))[0] == 8


def test_checkpoints_go_with_their_pages_and_the_cheapest_first() -> None:
    cache = make(pages=40, slots=2)
    cache.close(begin(cache, list(range(40)), 40).lease)
    cache.close(begin(cache, list(range(100, 104)), 4).lease)
    cache.close(begin(cache, list(range(200, 220)), 20).lease)
    assert find(cache, list(range(41)))[0] == 40
    assert find(cache, list(range(100, 105))) == (0, 4, Miss.NO_CHECKPOINT)
    assert find(cache, list(range(200, 221)))[0] == 20
    begin(cache, list(range(1000, 1160)), writes=False)
    assert cache.checkpoint_slots.free == 2, "all pages are taken, so no checkpoint can be left"


def test_what_is_not_used_any_more_goes_in_the_end() -> None:
    cache = make(pages=16, slots=8)
    cache.close(begin(cache, list(range(32)), 32).lease)  # dear
    for number in range(200):
        cache.close(begin(cache, list(range(1000 + 100 * number, 1008 + 100 * number)), 8).lease)  # cheap, each new
        if find(cache, list(range(33)))[0] == 0:
            return
    pytest.fail("an entry that nobody uses stayed for ever")


@pytest.mark.parametrize("slots", [None, 3, 99])
def test_what_is_used_stays(slots: int | None) -> None:
    cache = make(pages=99 if slots == 3 else 12, slots=slots)
    ends = () if slots is None else (8,)
    cache.close(begin(cache, list(range(8)), *ends).lease)
    for number in range(1, 30):
        again = begin(cache, list(range(9)), writes=False)
        assert again.tokens == 8, number
        cache.close(again.lease)
        cache.close(begin(cache, list(range(100 * number, 100 * number + 8)), *ends).lease)


def test_a_state_that_is_still_to_be_read_is_not_overwritten() -> None:
    cache = make(slots=1)
    cache.close(begin(cache, list(range(8)), 8).lease)
    running = begin(cache, list(range(50, 55))).lease
    opened = cache.open("", encode(list(range(9))), 8)
    assert opened.checkpoint is not None and cache.checkpoint(running) is None
    assert find(cache, list(range(9)))[0] == 8
    cache.end_plan()
    assert cache.checkpoint(running) == opened.checkpoint.slot


def test_a_checkpoint_that_there_is_no_room_to_resume_from_is_not_held() -> None:
    cache = make(pages=2, slots=1)
    prompt = list(range(PAGE + 2))
    writer = begin(cache, prompt[:-1], PAGE + 1)
    refused = cache.open("", encode(prompt), PAGE + 1)
    assert (refused.tokens, refused.miss) == (0, Miss.NO_ROOM)
    cache.close(refused.lease)
    cache.record(writer.lease, prompt[-1:])
    assert cache.checkpoint(writer.lease) == 0, "the only slot, of the earlier state"


def test_a_partial_page_without_its_window_makes_way_for_one_with() -> None:
    """Else its pages would be nobody's."""
    cache = make(pages=8, slots=2, window=3, window_pages=6)
    cache.close(begin(cache, [1, 2]).lease)
    assert cache.make_room([0, 6], 0, 9) == 1 and [pool.free for pool in cache.pools] == [7, 6]
    opened = begin(cache, [1, 2], 2)
    assert opened.tokens == 0 and find(cache, [1, 2, 3]) == (2, 2, None)
    cache.close(opened.lease)
    assert [pool.free for pool in cache.pools] == [7, 5]
    assert cache.make_room([8, 6], 2, 9) and [pool.free for pool in cache.pools] == [8, 6]


def test_a_window_is_resumed_where_its_pages_are() -> None:
    cache = make(window=6, window_pages=7)
    lease = begin(cache, list(range(20))).lease
    cache.drop_behind_windows(lease, 20)
    assert lease.pages[1][:3] == [GONE] * 3
    assert find(cache, [*range(10), 99, 98]) == (10, 10, Miss.DIVERGED), "the index keeps what the sequence let go"
    begin(cache, list(range(50, 66)))
    assert find(cache, [*range(10), 99, 98]) == (0, 10, Miss.WINDOW)
    assert find(cache, list(range(21))) == (20, 20, None)


def test_without_a_page_for_the_copy_nothing_is_reused() -> None:
    cache = make(pages=3)
    first = begin(cache, list(range(9))).lease
    cache.record(first, [9, 10, 11])
    opened = cache.open("", encode([*range(10), 50, 51]), 11)
    assert opened.tokens == 0 and opened.miss is Miss.NO_ROOM and opened.copies == ()


def test_no_room_changes_nothing() -> None:
    cache = make(pages=4)
    lease = begin(cache, list(range(9))).lease
    assert cache.extend(lease, 17) is None and cache.pools[0].free == 1
    match = cache.match("", encode(list(range(9))), 8)
    assert cache.has_room(match, 9, 9, 0) and cache.has_room(match, 12, 12, 0)
    assert not cache.has_room(match, 13, 13, 0) and not cache.has_room(match, 9, 9, 1)


@pytest.mark.parametrize("window", [None, 2 * PAGE])
def test_room_is_what_needs_no_page_to_be_taken_or_let_go_of(window: int | None) -> None:
    """Where there are windows pages are always looked at."""
    cache = make(window=window)
    lease = cache.open("", b"", 0).lease
    assert lease.room == 0
    for tokens in (1, PAGE, PAGE + 1, 3 * PAGE + 1, 2):
        before = [list(pages) for pages in lease.pages]
        needed = tokens > lease.room
        assert cache.extend(lease, tokens) is not None
        assert needed or lease.pages == before
        assert lease.room == (0 if window else min(map(len, lease.pages)) * PAGE)
    lease = cache.open("", b"", 0).lease
    assert cache.extend(lease, 2, 2 * PAGE) is not None and lease.room == (0 if window else 2 * PAGE)


def test_the_policy_counts_a_models_flops() -> None:
    rope, mlp = RopeSpec(1e7, 64), MlpSpec(17408)
    full = AttentionSpec(24, 4, 256, rope, gated=True, qk_norm=True)
    delta = GatedDeltaSpec(16, 48, 128, 128, 4)
    layers = tuple(LayerSpec(full if i % 4 == 3 else delta, mlp) for i in range(64))
    spec = ModelSpec("qwen3_5", 248320, 5120, layers, 1e-6, 262144)
    policy = flops_per_byte(spec, 65_536, 78_447_168)
    # All of the text model's parameters but the embedding and the head, twice; a state's update is a little more.
    assert 2 * 24.3e9 < policy.token_flops < 2 * 24.9e9
    assert policy.pair_flops == 16 * 4 * 24 * 256
    assert policy.flops(0, 10) + policy.flops(10, 30) == pytest.approx(policy.flops(0, 30))
    assert policy.pages(90_000, 90_016) > policy.pages(0, 16)
    assert policy.segment(0, 1000) < policy.checkpoint(0, 1000)
    layer = LayerSpec(AttentionSpec(2, 1, 8, rope, window=32), MlpSpec(96))
    windowed = flops_per_byte(ModelSpec("w", 9, 64, (layer,), 1e-6, 99), 1, 0)
    assert windowed.pair_flops == 0 and windowed.token_flops == 2 * 64 * (8 * (2 * 2 + 2) + 3 * 96) + 4 * 2 * 8 * 32
