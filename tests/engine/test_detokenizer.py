"""Text of a message as it comes: never half a character, never past a stop string, and in the end exactly what decode gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.toy_tokenizers import byte_fallback, byte_level, metaspace, toy_tokenizer, words
from tokenizers import decoders, models

from headrace.engine.detokenizer import Detokenizer, TextDelta
from headrace.engine.tokenizer import Tokenizer
from headrace.types import SamplingParams, TokenEvent, TokenLogprob

TEXT = "삼겹살🙂👩‍👩‍👧 ď"
LENGTH = TokenEvent("r", finish_reason="length")


def _word_tokenizer(*pieces: str) -> Tokenizer:
    """Token i is pieces[i], as it is."""
    library = tokenizers.Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, pieces[0]))
    library.decoder = decoders.Fuse()
    return toy_tokenizer(library)


def _run(tokenizer: Tokenizer, steps: Iterable[Sequence[int]], *, end: TokenEvent = LENGTH, **params: Any) -> list[TextDelta]:
    """Deltas of one event for each step, then of `end`; stops after a delta that ends the message."""
    detokenizer = Detokenizer(tokenizer, SamplingParams(**params))
    deltas: list[TextDelta] = []
    for event in [*(TokenEvent("r", tuple(step)) for step in steps), end]:
        deltas.append(detokenizer.push(event))
        if detokenizer.finished:
            break
    return deltas


def _text(deltas: Iterable[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def _in_steps(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _spelt(pieces: Sequence[str], *, step: int = 1, **params: Any) -> list[TextDelta]:
    tokenizer = _word_tokenizer(*dict.fromkeys(pieces))
    return _run(tokenizer, _in_steps([list(dict.fromkeys(pieces)).index(piece) for piece in pieces], step), **params)


# Characters


@pytest.mark.parametrize("step", [1, 2, 3, 7])
@pytest.mark.parametrize("build", [byte_level, byte_fallback, metaspace])
def test_a_character_is_never_cut(build: Any, step: int) -> None:
    """Case A11: bytes of characters in several tokens; nothing that completes later may show as U+FFFD."""
    tokenizer = toy_tokenizer(build())
    ids = tokenizer.encode(TEXT)
    deltas = _run(tokenizer, _in_steps(ids, step))
    assert _text(deltas) == tokenizer.decode(ids)
    if build is byte_level:
        assert _text(deltas) == TEXT
        assert not any("\ufffd" in delta.text for delta in deltas)


def test_a_character_is_shown_with_its_last_byte() -> None:
    tokenizer = toy_tokenizer()
    ids = [_byte(tokenizer, byte) for byte in "aé🙂".encode()]
    assert [delta.text for delta in _run(tokenizer, _in_steps(ids, 1))] == ["a", "", "é", "", "", "", "🙂", ""]


def _byte(tokenizer: Tokenizer, byte: int) -> int:
    return next(token for token in range(256) if tokenizer.token_bytes(token) == bytes([byte]))


def test_a_character_that_never_ends_is_flushed_as_decode_gives_it() -> None:
    tokenizer = toy_tokenizer()
    ids = [_byte(tokenizer, byte) for byte in b"ok\xf0\x9f\x99"]
    deltas = _run(tokenizer, _in_steps(ids, 1))
    assert [delta.text for delta in deltas] == ["o", "k", "", "", "", "\ufffd"]
    assert _text(deltas) == tokenizer.decode(ids)


BYTES = st.one_of(st.sampled_from([*"é삼🙂a".encode(), 0x20, 0xFF, 0xC0]), st.integers(0, 255))


@given(raw=st.lists(BYTES, max_size=24), step=st.integers(1, 4))
@example(raw=list("🙂".encode()[:3]) + list("é".encode()), step=1)
@example(raw=list(b"\xed\xa0\x80\xf5"), step=1)
@settings(max_examples=400, deadline=None)
def test_random_bytes_give_what_decode_gives(raw: list[int], step: int) -> None:
    tokenizer = _LEVEL
    ids = [_BYTE_IDS[byte] for byte in raw]
    assert _text(_run(tokenizer, _in_steps(ids, step))) == tokenizer.decode(ids)


_LEVEL = toy_tokenizer()
_BYTE_IDS = [_byte(_LEVEL, byte) for byte in range(256)]
_KINDS = {
    build.__name__: toy_tokenizer(build()) for build in (byte_level, byte_fallback, metaspace, words)
} | {"no strip": toy_tokenizer(byte_fallback(strip=False))}  # fmt: skip


@pytest.mark.parametrize("kind", _KINDS)
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_random_tokens_give_what_decode_gives(kind: str, data: st.DataObject) -> None:
    """Any ids at all: control tokens shown or hidden, ids that no token has, spaces at the start."""
    tokenizer = _KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=20))
    skip, step = data.draw(st.booleans()), data.draw(st.integers(1, 4))
    detokenizer = Detokenizer(tokenizer, SamplingParams(), skip_special=skip)
    deltas = [detokenizer.push(TokenEvent("r", tuple(part))) for part in _in_steps(ids, step)]
    assert _text([*deltas, detokenizer.push(LENGTH)]) == tokenizer.decode(ids, skip_special=skip)


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    """Whatever is kept between tokens is bounded: it holds no more than one unfinished character."""
    detokenizer = Detokenizer(_LEVEL, SamplingParams(stop=("never",)))
    event = TokenEvent("r", tuple(_LEVEL.encode(TEXT + " the n never mind"[:12])))
    for _ in range(500):
        detokenizer.push(event)
        assert len(detokenizer._held) < len("never")
        assert len(detokenizer._stream._bytes) < 4


# Stop strings


def test_a07_a_stop_string_over_many_tokens() -> None:
    deltas = _spelt(["A", "BC", "DEF", "G", "HI", "J"], stop=["DEFGHIJ"])
    assert [delta.text for delta in deltas] == ["A", "BC", "", "", "", ""]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "DEFGHIJ")


def test_text_held_for_a_stop_string_that_does_not_come() -> None:
    assert [d.text for d in _spelt(["A", "BC", "DEF", "x", "DE"], stop=["DEFG"])] == ["A", "BC", "", "DEFx", "", "DE"]
    assert _spelt(["DE"], stop=["DEF"])[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "reason"),
    [
        (["abcdef"], ["cd"], "ab", "cd"),
        (["ab", "cd", "ef"], ["ef", "d"], "abc", "d"),
        (["ab", "cd"], ["bcd", "c"], "ab", "c"),
        (["abcd"], ["bcd", "c"], "ab", "c"),
        (["ab", "cd"], ["d", "bcd"], "a", "bcd"),
        (["aa", "ab", "x"], ["aab"], "a", "aab"),
        (["x", "a", "a", "a", "b"], ["aab"], "xa", "aab"),
        (["aba", "bab", "ac"], ["babac"], "aba", "babac"),
        (["stop", "here"], ["stop"], "", "stop"),
        (["🙂", "é"], ["é"], "🙂", "é"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_the_stop_string_that_is_complete_first_ends_the_message(
    pieces: list[str], stop: list[str], text: str, reason: str, step: int
) -> None:
    deltas = _spelt(pieces, step=step, stop=stop)
    assert _text(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", reason)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(data: st.DataObject) -> None:
    letters = st.text("ab", min_size=1, max_size=5)
    pieces, stops = data.draw(st.lists(letters, min_size=1, max_size=8)), data.draw(st.lists(letters, min_size=1, max_size=3))
    step = data.draw(st.integers(1, 3))
    whole = "".join(pieces)
    ends = {(whole.find(stop) + len(stop), -len(stop)): stop for stop in stops if stop in whole}
    deltas = _spelt(pieces, step=step, stop=stops)
    if not ends:
        assert _text(deltas) == whole and deltas[-1].finish_reason == "length"
        return
    (end, negative), stop = min(ends.items())
    assert _text(deltas) == whole[: end + negative]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    used = sum(len(delta.tokens) for delta in deltas)
    assert len("".join(pieces[: used - 1])) < end <= len("".join(pieces[:used]))


def test_tokens_and_logprobs_after_the_stop_string_are_dropped() -> None:
    tokenizer = _word_tokenizer("a", "b", "STOP", "c")
    logprobs = tuple(TokenLogprob(token, -float(token)) for token in range(4))
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("STOP",), logprobs=0))
    delta = detokenizer.push(TokenEvent("r", (0, 1, 2, 3), logprobs, finish_reason="length"))
    assert (delta.text, delta.tokens, delta.logprobs) == ("ab", (0, 1, 2), logprobs[:3])
    assert (delta.finish_reason, delta.stop_reason, delta.offsets) == ("stop", "STOP", (0, 1, 2))
    assert detokenizer.finished
    assert detokenizer.push(TokenEvent("r", (3,))) == TextDelta()


def test_min_tokens_lets_early_stop_strings_pass() -> None:
    pieces = ["x", "#", "y", "#", "z"]
    assert _text(_spelt(pieces, stop=["#"], min_tokens=2)) == "x"
    assert _text(_spelt(pieces, stop=["#"], min_tokens=3)) == "x#y"
    assert _text(_spelt(pieces, step=5, stop=["#"], min_tokens=3)) == "x#y"
    assert _text(_spelt(pieces, stop=["#"], min_tokens=5)) == "x#y#z"


def test_a_stop_string_that_was_passed_over_does_not_count_later() -> None:
    deltas = _spelt(["ab", "c", "d"], stop=["ab", "abcx"], min_tokens=2)
    assert _text(deltas) == "abcd" and deltas[-1].finish_reason == "length"


def test_a_stop_string_in_the_flushed_text() -> None:
    detokenizer = Detokenizer(_LEVEL, SamplingParams(stop=("\ufffd",)))
    deltas = [detokenizer.push(TokenEvent("r", (_BYTE_IDS[0xF0],))), detokenizer.push(LENGTH)]
    assert _text(deltas) == "" and deltas[-1].stop_reason == "\ufffd"


# Ends


def test_an_end_token_is_no_text() -> None:
    tokenizer = toy_tokenizer()
    (end,) = tokenizer.eos_ids
    ids = tokenizer.encode("hello")
    for skip in (True, False):
        detokenizer = Detokenizer(tokenizer, SamplingParams(), skip_special=skip)
        delta = detokenizer.push(TokenEvent("r", (*ids, end), finish_reason="stop"))
        assert (delta.text, delta.tokens, delta.finish_reason, delta.stop_reason) == ("hello", (*ids, end), "stop", None)


def test_a_stop_token_is_no_text_even_if_it_is_a_word() -> None:
    tokenizer = _word_tokenizer("a", "b")
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop_token_ids=(1,), ignore_eos=True))
    delta = detokenizer.push(TokenEvent("r", (0, 1), finish_reason="stop", stop_reason=1))
    assert (delta.text, delta.tokens, delta.stop_reason) == ("a", (0, 1), 1)


def test_held_text_and_half_characters_come_out_at_an_end_token() -> None:
    tokenizer = toy_tokenizer()
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("abc",)))
    assert detokenizer.push(TokenEvent("r", tuple(tokenizer.encode("xab")))).text == "x"
    last = TokenEvent("r", (_BYTE_IDS[0xF0], *tokenizer.eos_ids), finish_reason="stop")
    assert detokenizer.push(last).text == "ab\ufffd"


def test_control_tokens_within_a_message() -> None:
    tokenizer = toy_tokenizer()
    ids = tuple(tokenizer.encode("a<|im_start|>b<think>"))
    hidden, shown = (Detokenizer(tokenizer, SamplingParams(), skip_special=skip) for skip in (True, False))
    assert hidden.push(TokenEvent("r", ids)).text == "ab<think>"
    assert shown.push(TokenEvent("r", ids)).text == "a<|im_start|>b<think>"


# Offsets


def test_offsets_of_tokens() -> None:
    tokenizer = toy_tokenizer()
    ids = [*tokenizer.encode("hello"), *(_BYTE_IDS[byte] for byte in "é".encode()), *tokenizer.encode(" the")]
    deltas = _run(tokenizer, _in_steps([*ids, *tokenizer.eos_ids], 2), logprobs=0, stop=["heaven"])
    assert sum((delta.offsets for delta in deltas), ()) == (0, 5, 5, 6, 10)
    assert _text(deltas) == "helloé the"


def test_no_offsets_unless_logprobs_are_asked_for() -> None:
    assert all(delta.offsets == () for delta in _spelt(["a", "b"], stop=["c"]))
