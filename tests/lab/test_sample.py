"""A sample is small, of held-out texts, and from all over them."""

from __future__ import annotations

from lab.document import Document
from lab.sample import LONGEST, LONGEST_CONVERSATION, beginning, sample


def test_texts_are_cut_behind_a_line() -> None:
    lines = "".join(f"line {number}\n" for number in range(2000))
    found = beginning(lines)
    assert lines.startswith(found) and found.endswith("\n") and LONGEST - 20 < len(found) <= LONGEST
    assert beginning("short") == "short" and beginning("x" * 9000) == "x" * LONGEST


def test_conversations_are_whole() -> None:
    chats = [Document("chat", str(number), "x" * (LONGEST_CONVERSATION + 4 - number)) for number in range(12)]
    assert [each.name for each in sample(chats, 4)] == ["4", "6", "8", "10"] and sample(chats, 4)[0] == chats[4]
    assert sample(chats, 40) == chats[4:]


def test_other_texts_are_from_everywhere() -> None:
    prose = [Document("prose", str(number), "y" * 5000) for number in range(10)]
    assert [(each.name, len(each.text)) for each in sample(prose, 3)] == [("0", LONGEST), ("3", LONGEST), ("6", LONGEST)]
