"""Numbers that are sent with a step, in 8-byte words: for those that plan their memory, and those that allocate it."""

from __future__ import annotations

SPAN_WORDS, MOST_SPANS = 2, 32
"""Each kind of number begins at a multiple of 16 bytes, since kernels are compiled apart for pointers that do not. Of so many
kinds.
"""


def step_words(tokens: int, rows: int, pages: int, *, drafts: bool = False) -> int:
    """At most, of a step of so many tokens and rows, and of `pages` pages in all groups together.

    Each token has its id, its position and its slot, and perhaps its place and slot again where its id is on the device; a
    row, of which there are no more than tokens, its slot, length, offset, and three numbers for sampling. With drafts a token
    has its id, its row and place in it, the draft behind it, and itself and its run if something is drawn behind it; a row its
    slot, offset, certain tokens and length, and if it samples its place among the rows, its last certain token, its first
    place, its draft count, whether its first token is on the device, and how many drafts it is asked for.
    """
    return (6 if drafts else 5) * tokens + (10 if drafts else 6) * min(tokens, rows) + 2 * pages + 8


def graph_words(rows: int, groups: int) -> int:
    """Of a captured step of so many rows: each has its slot, two positions, its length, and may begin pages of every group."""
    return (4 + 2 * groups) * rows


def buffer_words(words: int) -> int:
    """Of a buffer that holds so many, wherever each kind begins."""
    return words + MOST_SPANS * (SPAN_WORDS - 1)
