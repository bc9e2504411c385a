"""What the prefix cache costs in Python: `python benchmarks/prefix_index.py`.

100,000 pages of 16 tokens and 2,000 checkpoints of a hybrid are cached: conversations under shared system prompts, and long
documents. Then prompts are looked up, resumed, computed and ended; the pool stays full, so that for every new page one is
evicted: mostly ahead, entry by entry, while a device would compute, and otherwise when it is wanted. Each operation has to
stay under 100 microseconds plus 30 ns a token, of the thread's own time. Exits with 1 when a median does not; the 99th of a
hundred and the share that does not are printed too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.cache.layout import CacheGroup, CacheLayout
from headrace.cache.policy.flops_per_byte import FlopsPerByte
from headrace.cache.prefix.cache import PrefixCache
from headrace.cache.prefix.lease import Lease
from headrace.cache.prefix.tokens import encode

PAGE = 16
PAGES = 100_000
CHECKPOINTS = 2_000
CHUNK = 2048
AHEAD_PAGES, AHEAD_SLOTS, AHEAD_ENTRIES = 256, 8, 32
"""Kept free by evicting while the device computes, so many entries at most in a step, as the scheduler does."""
ALLOWED_US, ALLOWED_NS_A_TOKEN = 100.0, 30.0
POLICY = FlopsPerByte(49.5e9, 393_216.0, 65_536, 78_447_168)
T = TypeVar("T")


@dataclass
class Timing:
    """One operation's times, each beside what it is allowed."""

    seconds: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def measure(self, tokens: int, operation: Callable[[], T]) -> T:
        began = time.thread_time()
        result = operation()
        self.seconds.append(time.thread_time() - began)
        self.allowed.append(ALLOWED_US * 1e-6 + ALLOWED_NS_A_TOKEN * 1e-9 * tokens)
        self.tokens.append(tokens)
        return result

    def line(self, name: str) -> str:
        shares = [s / a for s, a in zip(self.seconds, self.allowed, strict=True)]
        over = sum(share > 1 for share in shares) / len(shares)
        late = statistics.quantiles(self.seconds, n=100)[98]
        return (
            f"{name:34} {len(shares):6} times, {statistics.mean(self.tokens):9,.0f} tokens: median "
            f"{statistics.median(self.seconds) * 1e6:7.1f} us, 99th {late * 1e6:7.1f} us, "
            f"of what is allowed {statistics.median(shares):5.2f}, over it {over:6.2%}"
        )

    @property
    def kept(self) -> bool:
        return statistics.median(s / a for s, a in zip(self.seconds, self.allowed, strict=True)) <= 1


class Traffic:
    """Prompts: a system prompt of one of 20 and turns behind it, or a document of some ten thousand tokens."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._systems = [self._text(1500) for _ in range(20)]
        self._conversations: list[list[int]] = []

    def _text(self, tokens: int) -> list[int]:
        return [self._random.randrange(248_320) for _ in range(tokens)]

    def prompt(self) -> list[int]:
        draw = self._random.random()
        if draw < 0.01:
            return self._text(self._random.randrange(4_000, 20_000))
        if draw < 0.35 or not self._conversations:
            self._conversations.append(self._random.choice(self._systems) + self._text(self._random.randrange(50, 850)))
            return list(self._conversations[-1])
        conversation = self._conversations[-1 - int(self._random.random() ** 2 * len(self._conversations))]
        conversation.extend(self._text(self._random.randrange(50, 850)))
        return list(conversation)


class Bench:
    """The cache, and the times of what is done with it."""

    def __init__(self) -> None:
        layout = CacheLayout((CacheGroup(0, None, (0,), 1),), PAGE, (PAGES,), 64)
        self.cache = PrefixCache(layout, POLICY, CHECKPOINTS)
        self.timings: defaultdict[str, Timing] = defaultdict(Timing)

    def serve(self, prompt: list[int]) -> None:
        """One request, with checkpoints in the middle and at the end of what is new, and an answer of a page."""
        timings, cache, tokens = self.timings, self.cache, len(prompt)
        key = timings["encode a prompt"].measure(tokens, partial(encode, prompt))
        timings["look up"].measure(tokens, partial(cache.match, "", key, tokens))
        opened = timings["begin, looking up again"].measure(tokens, partial(cache.open, "", key, tokens))
        middle = (opened.tokens + tokens) // 2
        for start, end in ((opened.tokens, middle), (middle, tokens)):
            self._prefill(opened.lease, prompt[:end], start)
            cache.end_plan()
            timings["checkpoint"].measure(0, partial(cache.checkpoint, opened.lease))
        timings["one page"].measure(0, partial(cache.extend, opened.lease, tokens + PAGE))
        timings["insert one page"].measure(0, partial(cache.record, opened.lease, prompt[:PAGE]))
        timings["end"].measure(0, partial(cache.close, opened.lease))
        self._make_room()

    def _prefill(self, lease: Lease, prompt: list[int], start: int) -> None:
        for first in range(start, len(prompt), CHUNK):
            chunk = prompt[first : first + CHUNK]
            extend = partial(self.cache.extend, lease, first + len(chunk))
            if self.timings["pages of a chunk"].measure(len(chunk), extend) is None:
                raise RuntimeError(f"no room for {len(chunk)} tokens in {PAGES} pages")
            self.timings["insert a chunk"].measure(len(chunk), partial(self.cache.record, lease, chunk))
            self._make_room()

    def _make_room(self) -> None:
        """What the scheduler does while the device computes."""
        make_room = partial(self.cache.make_room, (AHEAD_PAGES,), AHEAD_SLOTS, 1)
        for _ in range(AHEAD_ENTRIES):
            if not self.timings["evict ahead, one entry"].measure(0, make_room):
                break


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=int, default=6_000, help="requests that fill the cache")
    parser.add_argument("--requests", type=int, default=2_000, help="measured after them")
    arguments = parser.parse_args()
    bench, traffic = Bench(), Traffic(1)
    for _ in range(arguments.before):
        bench.serve(traffic.prompt())
    pages, slots = PAGES - bench.cache.pools[0].free, CHECKPOINTS - bench.cache.checkpoint_slots.free
    print(f"{pages:,} pages, {slots:,} checkpoints cached")
    bench.timings.clear()
    for _ in range(arguments.requests):
        bench.serve(traffic.prompt())
    for name, timing in bench.timings.items():
        print(timing.line(name))
    return 0 if all(timing.kept for timing in bench.timings.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
