"""Counts how requests begin: each is a hit, however short, or a miss; and says why a long prompt had to be computed."""

from __future__ import annotations

import logging
from collections import Counter

from headrace.cache.prefix.miss import Miss
from headrace.scheduler.sequence import Sequence

LOG = logging.getLogger(__name__)
LONG_TOKENS = 4096
"""Of a prompt, so many that had to be computed are worth a line in the log."""


class Hits:
    """total: of hits. ssd: hits of which something was read from SSD before. misses: of requests that began with nothing, by
    the reason; short: of hits that might have been longer.
    """

    def __init__(self) -> None:
        self.total = self.ssd = 0
        self.misses: Counter[Miss] = Counter()
        self.short: Counter[Miss] = Counter()

    def count(self, sequence: Sequence, resumed: int, miss: Miss | None) -> None:
        """A request begins with `resumed` of its tokens. miss: why not with more, None where there was no more to be had."""
        read = sequence.read
        self.total += resumed > 0
        self.ssd += read is not None and not read.failed
        if miss is None and not resumed:
            miss = Miss.COLD  # a prompt of one token, which has to be computed
        if miss is None:
            return
        if miss is Miss.COLD and sequence.stateless:
            miss = Miss.NO_CHECKPOINT
        why = Miss.SSD if read is not None and read.failed else miss
        (self.short if resumed else self.misses)[why] += 1
        tokens = len(sequence.request.prompt)
        if tokens - resumed >= LONG_TOKENS:
            LOG.info("request %s: %d of %d prompt tokens are computed: %s", sequence.request.id, tokens - resumed, tokens,
                     why.value)
