"""`headrace bench generate`: figures from made-up news, and a run on a CPU."""

from __future__ import annotations

import pytest
from rich.console import Console

from headrace.bench.generation import Arrival, Load, News, beside, gaps_s, generated
from headrace.bench.scenarios import generate
from headrace.errors import ConfigError

NEWS = [News(1.0, "a", 1), News(2.0, "a", 1), News(2.0, "b", 1), News(3.0, "a", 1), News(3.0, "b", 1), News(4.0, "b", 1)]


def test_decoding_is_what_lies_between_the_last_first_token_and_the_first_end() -> None:
    found = generated(Load(2, 10, 3), 0.0, 5.0, NEWS)
    assert found["ttft_ms"]["p50"] == 1500 and found["ttft_ms"]["max"] == 2000
    assert found["prompt_tokens_per_s"] == 2 * 10 / 2.0
    assert found["decode_tokens_per_s"] == 2 / 1.0 and found["itl_ms"]["count"] == 2
    assert found["output_tokens_per_s"] == 6 / 5.0


def test_one_token_is_no_decoding() -> None:
    found = generated(Load(1, 10, 1), 0.0, 2.0, NEWS[:1])
    assert found["decode_tokens_per_s"] is None and found["itl_ms"] is None


def test_tokens_that_come_together_share_their_time() -> None:
    news = [News(0.0, "a", 1), News(3.0, "a", 3), News(4.0, "a", 1), News(9.0, "a", 1)]
    assert list(gaps_s(news, 0.0, 4.0)) == [1.0, 1.0, 1.0, 1.0]


def test_an_arrival_costs_rows_and_prompt() -> None:
    news = [News(t, row, 1) for t in (0.5, 1.5, 2.5, 4.5) for row in "ab"] + [News(4.5, "late", 1), News(4.6, "a", 1)]
    found = beside(Arrival(2, 8, 70), {"prompt_tokens_per_s": 25.0}, 1.0, [1.0, 1.0, 2.0], news, "late")
    assert found["mixed_step_ms"] == 1000 and found["itl_ms"]["count"] == 6 and found["p95_over_step"] == pytest.approx(2)
    assert found["prompt_tokens_per_s"] == 70 / 3.5 and found["of_alone"] == 0.8


def test_a_run_on_a_cpu() -> None:
    settings = generate.Settings(
        random_weights="smollm2-135m", load=("3x9+4", "1x20+1"), arrival=("2x5+30",), device="cpu", chunk_tokens=8, context=100
    )
    found = generate.run(settings, Console(quiet=True))
    assert [(load["users"], load["prompt_tokens"], load["output_tokens"]) for load in found["loads"]] == [(3, 9, 4), (1, 20, 1)]
    assert found["loads"][0]["decode_tokens_per_s"] > 0 and found["loads"][0]["ttft_ms"]["count"] == 3
    (arrival,) = found["arrivals"]
    assert (arrival["rows"], arrival["prompt_tokens"]) == (2, 30) and 0 < arrival["of_alone"] < 2
    assert found["chunk_tokens"] == 8 and found["memory"] == {}


@pytest.mark.parametrize("text", ["8", "8x1024", "0x5+1", "8x1024+", "ax1+1"])
def test_loads_have_three_numbers(text: str) -> None:
    for fields in ({"load": (text,)}, {"arrival": (text,)}):
        with pytest.raises(ConfigError, match="three numbers"):
            generate.run(generate.Settings(device="cpu", **fields), Console(quiet=True))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"load": ("1x9+4", "2x90+11")}, r"--load 2x90\+11 needs sequences of 101 tokens, but the context holds 100"),
        ({"arrival": ("2x5+100",)}, r"--arrival 2x5\+100 needs sequences of 101 tokens"),
        ({"arrival": ("2x70+9",)}, r"--arrival 2x70\+9 needs sequences of 103 tokens"),
    ],
)
def test_what_is_too_long_is_named(fields: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate.run(generate.Settings(random_weights="smollm2-135m", device="cpu", context=100, **fields), Console(quiet=True))
