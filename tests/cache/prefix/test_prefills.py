"""Who waits for whose prompt, and where that one takes a checkpoint for it."""

from __future__ import annotations

import pytest

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.prefills import Prefills
from headrace.cache.prefix.tokens import encode

PAGE = 4
PROMPT = list(range(100))


def start(prompt: list[int], salt: str = "", places: list[int] | None = None) -> tuple[PrefixCache, Lease, Prefills]:
    cache = PrefixCache(CacheLayout((CacheGroup(0, None, (0,), 1),), PAGE, (60,), 4), FlopsPerByte(1, 1, 1, 1), 9)
    lease = cache.open(salt, encode(prompt), len(prompt) - 1).lease
    cache.extend(lease, len(prompt))
    prefills = Prefills(PAGE, split_tokens=8)
    prefills.begin(lease, encode(prompt), places)
    return cache, lease, prefills


def wait(prefills: Prefills, prompt: list[int], cached: int = 0, salt: str = "") -> int | None:
    ahead = prefills.wait_for(salt, encode(prompt), cached, len(prompt) - 1)
    return ahead.tokens if ahead else None


def test_without_checkpoints_whole_pages_are_waited_for() -> None:
    cache, lease, prefills = start(PROMPT)
    assert wait(prefills, PROMPT[:50] + [7]) == 48
    assert wait(prefills, PROMPT[:50] + [7], cached=40) == 48
    assert wait(prefills, PROMPT[:50] + [7], cached=41) is None, "seven tokens are not worth waiting for"
    cache.record(lease, PROMPT[:50])
    assert wait(prefills, PROMPT[:50] + [7]) is None, "what is computed is not waited for"
    assert prefills.places(lease) == ()


def test_a_split_gets_a_checkpoint_once() -> None:
    _, lease, prefills = start(PROMPT, places=[20, 100])
    assert wait(prefills, PROMPT[:50] + [7]) == 50
    assert list(prefills.places(lease)) == [20, 50, 100]
    assert wait(prefills, PROMPT[:50] + [8]) == 50
    assert wait(prefills, PROMPT[:55] + [8]) == 50, "the place before is near enough"
    assert list(prefills.places(lease)) == [20, 50, 100]
    assert wait(prefills, PROMPT) == 99, "the last token is computed again"
    assert list(prefills.places(lease)) == [20, 50, 99, 100]


def test_a_split_that_is_passed_gets_none() -> None:
    cache, lease, prefills = start(PROMPT, places=[20, 100])
    cache.record(lease, PROMPT[:30])
    assert wait(prefills, PROMPT[:30] + [500]) is None
    assert wait(prefills, PROMPT[:25] + [500]) is None
    assert wait(prefills, PROMPT[:39] + [500]) == 39
    assert list(prefills.places(lease)) == [20, 39, 100]


def test_salts_do_not_wait_for_each_other() -> None:
    _, lease, prefills = start(PROMPT, salt="a")
    assert wait(prefills, PROMPT, salt="b") is None
    assert wait(prefills, PROMPT, salt="a") == 96
    prefills.end(lease)
    prefills.end(lease)
    assert wait(prefills, PROMPT, salt="a") is None


def test_the_furthest_prompt_is_waited_for() -> None:
    cache, first, prefills = start(PROMPT[:40])
    second = cache.open("", encode(PROMPT), 99).lease
    prefills.begin(second, encode(PROMPT))
    ahead = prefills.wait_for("", encode(PROMPT), 0, 99)
    assert ahead is not None and ahead.lease is second and ahead.tokens == 96
    assert first is not second


@pytest.mark.parametrize("prompt", [[], [3], [0]])
def test_short_prompts_wait_for_nobody(prompt: list[int]) -> None:
    _, _, prefills = start(PROMPT)
    assert prefills.wait_for("", encode(prompt), 0, max(0, len(prompt) - 1)) is None
