"""Frames: every message survives, however the stream is cut; what is malformed is said so."""

from __future__ import annotations

import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_engine_parts import make_request

from headrace.config import EngineConfig
from headrace.engine import frames
from headrace.types import EngineInfo, EngineStats, Request, SamplingParams, TokenEvent, TokenLogprob

PARAMS = SamplingParams(
    n=2, seed=-(2**63), top_k=-1, logit_bias={7: -1.5, 300_000: 2.0}, logprobs=3, stop=("\n\n", "é"), stop_token_ids=(5,),
    max_tokens=None, cache_salt="s",
)
COMMANDS = [
    frames.Build("/models/m", EngineConfig(device="cpu", memory_fraction=0.5, context=77)),
    frames.Submit(Request("r-0", (1, 248_319), PARAMS, 2**63 - 1, 12, (2, 3), 0.25)),
    frames.Cancel("r-0"),
    frames.Close(),
]
LOGPROB = TokenLogprob(4, -0.5, ((4, -0.5), (9, -1.25)))
REPORTS = [
    frames.Progress(1, 2**40),
    frames.Ready(EngineInfo("m", "cpu", "float32", 8, 1, 4, 16, 3, 99, ("why",), (("weights", 5),))),
    frames.Turned(),
    frames.Turned((TokenEvent("a", (1, 2), (LOGPROB, LOGPROB), (LOGPROB,), 3, "stop", 2),), EngineStats(steps=1)),
    frames.Turned((TokenEvent("b", finish_reason="error", error="why"),)),
    frames.Failed("ConfigError", "no"),
]


@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_messages_survive_however_the_stream_is_cut(cuts: list[int]):
    for messages, reader in ((COMMANDS, frames.command_reader()), (REPORTS, frames.report_reader())):
        stream = b"".join(frames.encode(m) for m in messages)
        edges = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
        pieces = [stream[a:b] for a, b in zip(edges, edges[1:], strict=False)]
        assert [m for piece in pieces for m in reader.feed(piece)] == messages


def test_a_prompt_of_10_mb_arrives_in_pieces():
    request = make_request("big", tuple(range(100_000, 2_200_000)))
    stream = frames.encode(frames.Submit(request))
    assert len(stream) > 10_000_000
    reader = frames.command_reader()
    pieces = [stream[i : i + 65_536] for i in range(0, len(stream), 65_536)]
    assert [m for piece in pieces for m in reader.feed(piece)] == [frames.Submit(request)]


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff\xff\xff", "4294967299 bytes long"),
        (frame(b"\xc1\xc1"), "a frame of 2 bytes cannot be read"),
        (frame(b"\x81\xa4kind\xa5Close"), "cannot be read"),
        (frames.encode(REPORTS[0]), "cannot be read: Invalid value 'Progress'"),
        (frames.encode(COMMANDS[1]).replace(b"top_p\xcb\x3f", b"top_p\xcb\x7f"), "top_p must be"),
    ],
    ids=["length", "not msgpack", "no tag", "other direction", "value out of range"],
)
def test_a_malformed_frame_is_named(data: bytes, says: str):
    reader = frames.command_reader()
    assert list(reader.feed(frames.encode(COMMANDS[2]))) == [COMMANDS[2]]
    with pytest.raises(frames.FrameError, match=says):
        list(reader.feed(data))


def test_a_step_of_64_events_costs_well_under_a_third_of_a_millisecond():
    events = tuple(TokenEvent(f"chatcmpl-{i:032x}-0", (100_000 + i,)) for i in range(64))
    report, reader = frames.Turned(events, EngineStats()), frames.report_reader()

    def there_and_back() -> None:
        assert len(list(reader.feed(frames.encode(report)))) == 1

    assert min(timeit.repeat(there_and_back, number=20, repeat=10)) / 20 < 0.3e-3
