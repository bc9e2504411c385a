"""A drafter that has seen the answers: it proposes what really follows, or something else, as chance has it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from headrace.types import Request


class ScriptedDrafter:
    """Proposals of 0 to `most` drafts, each of which is the token of `answers` (by request id) with a chance that is one of
    `chances`, drawn for the proposal. pause: after so many proposals the next so many are empty.

    Since it knows the answers, it also knows what of its proposals is accepted before the engine does, and where to go on.
    """

    def __init__(
        self, answers: dict[str, list[int]], most: int, vocab_size: int, *, chances: Sequence[float] = (0.5,),
        seed: int = 0, pause: int = 0,
    ) -> None:
        self.most, self.answers, self._pause, self._asked = most, answers, pause, 0
        self._vocab_size, self._chances, self._rng = vocab_size, chances, random.Random(seed)
        self._yields: dict[str, list[int]] = {}  # of each request's rows, as far as they asked

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        answer, yields = self.answers[request.id], self._yields.setdefault(request.id, [])
        known = len(output) + (sum(yields[-unseen:]) or unseen if unseen else 0)
        chance = self._rng.choice(self._chances)
        self._asked += 1
        silent = self._pause > 0 and self._asked // self._pause % 2 == 1
        following = [] if silent else answer[known : known + self._rng.randint(0, most)]
        drafts = tuple(t if self._rng.random() < chance else self._rng.randrange(self._vocab_size) for t in following)
        accepted = next((i for i, (t, d) in enumerate(zip(following, drafts, strict=True)) if t != d), len(drafts))
        yields.append(1 + accepted)
        return drafts


class BalancedDrafter:
    """Proposals of any length up to `most`, of which the first so many tokens are right: of all such pairs, those that came
    seldomest by `came`, which whoever commits them is to count. answers: by the request's id up to a dot.
    """

    def __init__(self, answers: dict[str, list[int]], most: int, vocab_size: int, seed: int = 0) -> None:
        self.most, self._answers, self._vocab_size, self._rng = most, answers, vocab_size, random.Random(seed)
        self._pairs = [(drafts, right) for drafts in range(most + 1) for right in range(drafts + 1)]
        self.came: Counter[tuple[int, int]] = Counter()
        self._yields: dict[str, list[int]] = {}

    def propose(self, request: Request, output: Sequence[int], unseen: int, most: int) -> tuple[int, ...]:
        yields = self._yields.setdefault(request.id, [])
        known = len(output) + (sum(yields[-unseen:]) if unseen and yields else unseen)
        following = self._answers[request.id.partition(".")[0]][known : known + most]
        possible = [pair for pair in self._pairs if pair[0] <= len(following)]
        drafts, right = min(possible, key=lambda pair: (self.came[pair], self._rng.random()))
        yields.append(1 + right)
        wrong = (token + 1 + self._rng.randrange(self._vocab_size - 1) for token in following[right:drafts])
        return (*following[:right], *(token % self._vocab_size for token in wrong))
