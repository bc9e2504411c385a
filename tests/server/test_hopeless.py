from __future__ import annotations

import psutil
import pytest
from tests.support.live_front import LiveFront

from headrace.engine.tokenizer import Tokenizer
from headrace.errors import RequestError
from headrace.server import hopeless
from headrace.server.hopeless import SLICE_CHARACTERS, refuse_hopeless


@pytest.mark.parametrize("unit", ["hello ", "x", "🙂", " \n", "the inn"])
def test_only_texts_that_are_too_long_are_refused(
    tokenizer: Tokenizer, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that just fits is never refused, however it is sliced."""
    text = unit * (5 * SLICE_CHARACTERS // len(unit) + 3)
    tokens = len(tokenizer.encode(text))
    monkeypatch.setattr(hopeless, "SURE_CHARACTERS", 0)
    refuse_hopeless(text, tokenizer, tokens, param="prompt")
    with pytest.raises(RequestError, match="holds 1,000, ") as caught:
        refuse_hopeless(text, tokenizer, 1000, param="prompt")
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")


async def test_a_body_of_megabytes_takes_little_memory(front: LiveFront) -> None:
    text = "hello in the inn " * 1_200_000  # 20 MB, a gigabyte and more when tokenised
    for path, body, param in (("/v1/completions", {"prompt": text}, "prompt"), ("/tokenize", {"prompt": text}, "prompt"),
                              ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages")):
        before = psutil.Process().memory_info().rss
        error = await front.refused(path, body)
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert psutil.Process().memory_info().rss - before < 300 << 20
