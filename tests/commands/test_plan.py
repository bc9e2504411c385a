"""`headrace plan`: the published model's known sizes, what fits, what would instead; that it is quick and needs no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny import make_tiny_checkpoint
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import EngineConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.plan.cards import CARDS
from headrace.plan.demo import demo_model_path

GIB = 2**30
QUICK_S = 1.8


def plan(arguments: str) -> dict[str, Any]:
    """The JSON, after checking what holds of every plan."""
    result = CliRunner().invoke(app, ["plan", *arguments.split(), "--json"])
    if isinstance(result.exception, HeadraceError):
        raise result.exception
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if answer["fits"] else 1)
    assert answer["total_bytes"] == sum(line["bytes"] for line in answer["lines"])
    left = sum(line["bytes"] for line in answer["lines"] if line["name"].split()[0] in ("driver", "desktop", "reserve"))
    assert answer["engine_bytes"] == answer["total_bytes"] - left
    assert all(line["why"] and line["bytes"] > 0 for line in answer["lines"])
    assert not answer["fits"] or not answer["suggestions"]
    if answer["vram_bytes"] is not None and len(answer["cards"]) == 1:
        assert answer["fits"] == (answer["total_bytes"] <= answer["vram_bytes"])
    return answer


def weights(answer: dict[str, Any]) -> int:
    return sum(line["bytes"] for line in answer["lines"] if line["name"].startswith("weights"))


def line(answer: dict[str, Any], name: str) -> int:
    (found,) = (line["bytes"] for line in answer["lines"] if line["name"] == name)
    assert isinstance(found, int)
    return found


def test_the_published_model_has_its_published_size() -> None:
    answer = plan("qwen3.8-27b --gpu h200 --speculate mtp")
    assert answer["parameters"] == 27_781_427_952
    assert weights(answer) == answer["stored_bytes"] == 55_562_855_904
    assert line(answer, "weights mtp") // 2 == 424_699_392
    assert line(answer, "weights vision") // 2 == 460_730_096
    alone = plan("qwen3.8-27b --gpu h200 --vision off --speculate off")
    assert weights(alone) == line(alone, "weights") == 55_562_855_904 - 2 * (424_699_392 + 460_730_096)


def test_nvfp4_is_as_large_as_the_checkpoint() -> None:
    without = weights(plan("qwen3.8-27b:nvfp4 --gpu rtx5090 --speculate off"))
    assert round(without / GIB, 3) == 18.388
    assert round(weights(plan("qwen3.8-27b:nvfp4 --gpu rtx5090 --speculate mtp")) / GIB, 3) == 19.179


def test_formats_are_smaller_than_bf16() -> None:
    sizes = [weights(plan(f"qwen3.8-27b:{format} --gpu h200")) for format in ("bf16", "fp8", "nvfp4", "w4a16")]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert plan("qwen3.8-27b:fp8 --gpu h200")["parameters"] == 27_781_427_952


@pytest.mark.parametrize(
    ("settings", "kv"),
    [("", 65_536), ("--kv-dtype fp8", 33_024), ("--kv-dtype int8", 33_024), ("--kv-dtype fp8 --kv-scales one", 32_768)],
)
def test_a_token_of_the_target_costs_its_keys_and_values(settings: str, kv: int) -> None:
    assert plan(f"qwen3.8-27b --gpu h200 {settings}")["kv_bytes_per_token"] == kv
    assert plan(f"qwen3.8-27b --gpu h200 --speculate dflash {settings}")["kv_bytes_per_token"] == kv


@pytest.mark.parametrize(("state", "count_bytes"), [("fp32", 153_944_064), ("fp16", 78_446_592)])
def test_a_sequence_costs_its_state(state: str, count_bytes: int) -> None:
    answer = plan(f"qwen3.8-27b --gpu h200 --state-dtype {state} --speculate off")
    assert answer["state_bytes_per_sequence"] == answer["checkpoint_bytes"] == count_bytes


PINNED = (
    "--cache-bytes 9150000000 --speculate off --prefix-cache off --kv-dtype fp8 --kv-scales one --state-dtype fp16 --users 3"
)


@pytest.mark.parametrize("context", ["", "--context 262144"])
def test_a_cache_of_given_bytes_holds_the_known_tokens(context: str) -> None:
    answer = plan(f"qwen3.8-27b:nvfp4 --gpu rtx5090 {PINNED} {context}")
    assert answer["fits"]
    assert answer["capacity_tokens"] == 272_048 == 17_003 * 16
    assert line(answer, "kv pages 0") == 17_003 * 16 * 32_768
    assert line(answer, "state slots") == 3 * 78_446_592
    assert answer["max_context"] == 262_144


def test_drafters_have_their_lines() -> None:
    off, mtp, dflash = (plan(f"qwen3.8-27b:w4a16 --gpu h200 --context 8192 --users 4 --speculate {method}")
                        for method in ("off", "mtp", "dflash"))
    drafts = [(a["draft_bytes_per_token"], a["draft_bytes_per_sequence"]) for a in (off, mtp, dflash)]
    assert drafts == [(0, 0), (4096, 0), (0, 41_943_040)]
    assert line(mtp, "kv pages 0") - line(off, "kv pages 0") == 4 * 8192 * 4096
    assert line(mtp, "state slots") - line(off, "state slots") == 4 * 5120 * 2
    assert line(mtp, "wide weights mtp") == 2 * (5 * 5120 + 2 * 256)
    assert line(dflash, "weights dflash") == 2 * 1_924_404_480
    tokens = 4 * 8 + 2048 - 4 * 8  # a chunk, less what decodes beside it
    assert line(dflash, "drafter workspace") == (tokens * 5 + 512 * 7) * 5120 * 2
    window = 41_943_040 + 2048 * 8  # and which token is at each place
    assert line(dflash, "wide weights dflash") == 2 * (2 * 5120 + 5 * (2 * 5120 + 2 * 128))
    assert line(dflash, "state slots") - line(off, "state slots") == 4 * window
    assert dflash["checkpoint_bytes"] == 78_446_592 + window
    # two halves of seven drafts: in every layer keys and deltas in 16 bits, convolution inputs, decays in 32
    ring = 2 * 7 * 48 * ((2048 + 6144) * 2 + 10_240 * 2 + 48 * 4)
    odds = 64 * (4 + 4) + 4  # what a draft was drawn from: tokens, probabilities, how many
    assert line(dflash, "drafts") == 5 * (ring + 7 * (8 + odds) + 26)
    assert line(dflash, "draft inputs") == 5 * 64 * (5 * 5120 * 2 + 8)
    assert all(name not in [one["name"] for one in off["lines"]] for name in ("drafts", "draft inputs", "kv pages 1"))


def test_fewer_drafts_take_less() -> None:
    settings = "qwen3.8-27b:w4a16 --gpu h200 --speculate mtp --users 8"
    rings = [line(plan(f"{settings} --draft-tokens {drafts}"), "drafts") for drafts in (1, 2, 4)]
    assert rings[0] < rings[1] < rings[2]


def test_logits_are_bounded() -> None:
    """64 rows of 8 tokens would be 509 MB in fp32; slices of 256 rows are what is there at once."""
    assert 64 * 8 * 248_320 * 4 == 508_559_360
    settings = "--gpu h200 --speculate dflash --users 64 --context 1024 --chunk-tokens 64"
    answer = plan(f"qwen3.8-27b:w4a16 {settings}")
    tokens = 64 * 8 + 32
    slices = 256 * 248_320 * 4 + 2**21 * 76
    assert line(answer, "workspace") + line(answer, "logits workspace") == (tokens + 64) * 5120 * 2 + slices


def test_checkpoints_are_out_of_the_caches_bytes() -> None:
    settings = "qwen3.8-27b:w4a16 --gpu rtx3090 --cache-bytes 4000000000 --users 2 --speculate off"
    without = plan(f"{settings} --prefix-cache off")
    assert "gpu checkpoints" not in {line["name"] for line in without["lines"]}
    kept = plan(f"{settings} --gpu-checkpoint-bytes 500000000 --ssd-cache /tmp/x")
    assert line(kept, "gpu checkpoints") == 6 * 78_446_592
    assert any("68,719,476,736 bytes (64.0 GiB) in /tmp/x" in note for note in kept["notes"])
    pages = -(-6 * 78_446_592 // (16 * 65_536))
    assert pages - 1 <= (without["capacity_tokens"] - kept["capacity_tokens"]) // 16 <= pages


def test_checkpoints_that_are_not_asked_for() -> None:
    """An eighth of the cache, but not of the context that is asked for; as many as sequences at most, but some for one."""
    settings = "qwen3.8-27b:w4a16 --gpu h200 --speculate off --cache-bytes 4000000000 --users 1"
    assert line(plan(settings), "gpu checkpoints") == 500_000_000 // 78_446_592 * 78_446_592
    most = (4_000_000_000 - 2 * 78_446_592) // 65_536 - 16
    assert line(plan(f"{settings} --context {most}"), "gpu checkpoints") == 78_446_592
    assert line(plan("qwen3.8-27b:w4a16 --gpu h200 --speculate off --users 1"), "gpu checkpoints") == 8 * 78_446_592
    assert line(plan("qwen3.8-27b:w4a16 --gpu h200 --speculate off"), "gpu checkpoints") == 64 * 78_446_592


def test_the_most_that_fits_is_the_most() -> None:
    settings = "qwen3.8-27b:w4a16 --gpu rtx3090"
    answer = plan(f"{settings} --context 32768 --users 8")
    assert not answer["fits"] and answer["why"]
    assert plan(f"{settings} --users 8 --context {answer['max_context']}")["fits"]
    assert not plan(f"{settings} --users 8 --context {answer['max_context'] + 16}")["fits"]
    assert plan(f"{settings} --context 32768 --users {answer['max_users']}")["fits"]
    assert not plan(f"{settings} --context 32768 --users {answer['max_users'] + 1}")["fits"]


@pytest.mark.parametrize(
    "settings",
    [
        "qwen3.8-27b --gpu rtx3090 --context 32768 --users 8",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --context 32768 --users 8",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --context 4096 --users 9 --speculate dflash --draft-tokens 7",
        "qwen3.8-27b:w4a16 --gpu rtx4090 --context 262144",
        "qwen3.8-27b --gpu rtx3090,rtx3090 --context 8192 --users 2",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --cache-bytes 30000000000 --prefix-cache off",
        "qwen3.8-27b:w4a16 --gpu rtx3090,rtx3090 --cache-bytes 30000000000 --users 4",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --memory-bytes 1000000000 --context 8192",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --context 40000 --users 2 --speculate mtp --verify-tokens 9 --draft-vocabulary 1024",
        "qwen3.8-27b:w4a16 --gpu rtx3090 --context 90000 --draft-tokens 2",
        "qwen3.8-27b:nvfp4 --gpu rtx3090 --context 200000 --kv-dtype int8",
    ],
)
def test_every_suggestion_fits(settings: str) -> None:
    answer = plan(settings)
    assert not answer["fits"] and answer["suggestions"]
    for suggestion in answer["suggestions"]:
        model, *flags = settings.split()
        asked = dict(zip(flags[::2], flags[1::2], strict=True))
        for name, value in suggestion["settings"].items():
            if name == "format":
                model = f"{model.partition(':')[0]}:{value}"
            elif value is None:
                del asked[f"--{name}"]
            else:
                asked[f"--{name}"] = str(value)
        again = plan(" ".join([model, *(word for pair in asked.items() for word in pair)]))
        assert again["fits"], suggestion
        assert (again["context"], again["users"]) == (suggestion["context"], suggestion["users"])
        assert again["capacity_tokens"] == suggestion["capacity_tokens"]


@pytest.mark.parametrize(
    ("settings", "flag"),
    [("--gpu rtx4090 --cache-bytes 1000000", "cache-bytes"), ("--gpu rtx3090 --memory-bytes 99000000000", "memory-bytes"),
     ("--gpu l4 --users 16 --memory-bytes 26000000000", "memory-bytes")],
)
def test_what_fits_instead_of_absurd_sizes_is_suggested(settings: str, flag: str) -> None:
    shown = CliRunner().invoke(app, ["plan", "qwen3.8-27b:w4a16", *settings.split(), "--json"])
    assert shown.exit_code == 1
    value = json.loads(shown.stdout)["suggestions"][0]["settings"][flag]
    words = settings.split()
    at = words.index(f"--{flag}")
    instead = [f"--{flag}", str(value)] if value else []
    assert plan(" ".join(["qwen3.8-27b:w4a16", *words[:at], *instead, *words[at + 2 :]]))["fits"]


def test_suggestions_are_of_all_kinds() -> None:
    """Length, users, the type of keys and values, drafts, a vision tower."""
    found = set()
    cases = ("--context 36864 --speculate dflash --vision off", "--context 32768 --users 8", "--context 75000 --vision on")
    for settings in cases:
        for suggestion in plan(f"qwen3.8-27b:w4a16 --gpu rtx3090 {settings}")["suggestions"]:
            found |= suggestion["settings"].keys()
    assert {"context", "users", "kv-dtype", "speculate", "vision"} <= found


def test_a_plan_is_tried_with_its_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random weights, in an engine that would not choose it by itself."""
    tried: list[EngineConfig] = []

    def verify_fit(model: str, config: EngineConfig, users: int | None) -> tuple[str, ...]:
        tried.append(config)
        return ()

    monkeypatch.setattr("headrace.commands.verify_fit.verify_fit", verify_fit)
    cases = (("--context 8192", "mtp", 4), ("--draft-tokens 2", "mtp", 2), ("--graphs off", "off", None))
    for settings, speculate, drafts in cases:
        assert plan(f"qwen3.8-27b:w4a16 --gpu h200 --verify-fit {settings}")["fits"]
        assert (tried[-1].speculate, tried[-1].draft_tokens) == (speculate, drafts)


def test_what_auto_decides_is_told_with_and_without_a_vision_tower() -> None:
    """A tower that is asked for may cost the drafter, another does not; limits are those that auto can reach."""
    answer = plan("qwen3.8-27b:w4a16 --vram-bytes 24600000000 --vision on")
    (note,) = (note for note in answer["notes"] if note.startswith("speculate: off: with mtp"))
    assert "instead of" in note and "--speculate mtp has it nevertheless" in note
    served = plan("qwen3.8-27b:w4a16 --vram-bytes 24600000000")
    assert any(note.startswith("speculate: mtp, up to 4") for note in served["notes"])
    assert any(note.startswith("vision: the tower's 921,460,192 bytes (879 MiB) are not planned") for note in served["notes"])
    alone = plan("qwen3.8-27b:w4a16 --vram-bytes 24600000000 --vision off --users 2")
    (reach,) = (note for note in alone["notes"] if "has room up to 2 x" in note)
    most = int(reach.split()[-4].replace(",", ""))
    assert 1024 < most < alone["max_context"]
    for context, method in ((most, "speculate: mtp"), (alone["max_context"], "speculate: off")):
        again = plan(f"qwen3.8-27b:w4a16 --vram-bytes 24600000000 --vision off --users 2 --context {context}")
        assert again["fits"] and any(note.startswith(method) for note in again["notes"])


@pytest.mark.parametrize("settings", ["--context 55000 --users 1", "--context 70000 --users 1", "--context 80000", ""])
def test_a_tower_that_nobody_asked_for_costs_nothing_that_is_served(settings: str) -> None:
    """Whether it fits, the most that does and the drafter are those of an engine, which leaves the tower out."""
    for card in ("rtx3090", "rtx5090"):
        auto, served = (plan(f"qwen3.8-27b:w4a16 --gpu {card} {settings} {vision}") for vision in ("", "--vision off"))
        for name in ("fits", "max_context", "why", "draft_bytes_per_token"):
            assert auto[name] == served[name], name
        planned = any(line["name"] == "weights vision" for line in auto["lines"])
        assert any(f"the tower's 921,460,192 bytes (879 MiB){'' if planned else ' are not'}" in note for note in auto["notes"])
        if planned and not settings:
            assert any(f"share {served['capacity_tokens']:,} tokens" in note for note in auto["notes"] if "without it" in note)


def test_a_desktop_takes_what_it_is_said_to() -> None:
    settings = "qwen3.8-27b:w4a16 --gpu rtx3090 --users 1 --prefix-cache off --speculate off"
    without, beside = plan(settings), plan(f"{settings} --desktop-bytes 1000000000")
    assert line(beside, "desktop") == 1_000_000_000
    pages = (without["capacity_tokens"] - beside["capacity_tokens"]) // 16
    assert pages in (1_000_000_000 // (16 * 65_536), 1_000_000_000 // (16 * 65_536) + 1)


def test_host_memory_is_said_to_hold_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of it states, the rest pages. How much the machine of a named card has is not known."""
    asked = 4_000_000_000
    states = asked // 4 // 78_446_592
    tokens = (asked - states * 78_446_592) // (16 * 65_536) * 16
    monkeypatch.setattr("headrace.plan.report.ram_bytes", lambda: asked)
    for cards in ("rtx3090", "rtx3090,rtx3090"):
        settings = f"qwen3.8-27b:w4a16 --gpu {cards} --speculate off --ram-cache-bytes"
        (note,) = (note for note in plan(f"{settings} {asked}")["notes"] if note.startswith("ram-cache-bytes"))
        assert note.startswith(f"ram-cache-bytes: {asked:,} bytes (3.7 GiB), none of the card's; ")
        assert note.endswith(f"; in host memory {tokens:,} tokens and {states} states")
    for more, words in (("1", "nothing has room in 1 byte of host memory"),
                        (f"{asked} --prefix-cache off", "not used, since nothing is kept"),
                        (f"{asked + 1}", f"more than this machine has, {asked:,} bytes")):
        assert any(words in note for note in plan(f"{settings} {more}")["notes"])
    monkeypatch.setattr("headrace.plan.planner.ram_bytes", lambda: asked)
    with pytest.raises(ConfigError, match="4,000,000,001 bytes .* are more than this machine has, 4,000,000,000 bytes"):
        plan(f"qwen3.8-27b:w4a16 --ram-cache-bytes {asked + 1}")
    assert "total_bytes" in plan(f"qwen3.8-27b:w4a16 --ram-cache-bytes {asked}")


def test_memory_may_be_given_without_a_card() -> None:
    answer = plan("qwen3.8-27b:w4a16 --vram-bytes 24000000000 --context 8192 --users 1")
    assert answer["fits"] and answer["vram_bytes"] == 24_000_000_000 and answer["predicted"] is None
    assert not plan("qwen3.8-27b:w4a16 --vram-bytes 16000000000 --context 8192 --users 1")["fits"]


def test_several_cards_have_the_model_between_them() -> None:
    settings = "--users 2 --vision off --speculate off"
    one, two = (plan(f"qwen3.8-27b:w4a16 --gpu {cards} {settings}") for cards in ("h200", "rtx3090,rtx3090"))
    assert weights(two) == weights(one)
    pages = [one for one in two["lines"] if one["name"].startswith("kv pages 0")]
    assert two["capacity_tokens"] * 65_536 == sum(each["bytes"] for each in pages)
    assert two["vram_bytes"] == 2 * CARDS["rtx3090"].memory_bytes
    states = [one["bytes"] for one in two["lines"] if one["name"].startswith("state slots")]
    assert len(states) == 2 and sum(states) == 2 * 78_446_592
    assert any("`serve` uses one card" in note for note in two["notes"])


def test_the_smallest_card_rules() -> None:
    both = plan("qwen3.8-27b:w4a16 --gpu rtx3090,rtx3090 --users 2")["capacity_tokens"]
    mixed = plan("qwen3.8-27b:w4a16 --gpu rtx3090,h200 --users 2")["capacity_tokens"]
    larger = plan("qwen3.8-27b:w4a16 --gpu h200,h200 --users 2")["capacity_tokens"]
    assert both < mixed <= larger


@pytest.mark.parametrize(
    "settings", ["", "--gpu-checkpoint-bytes 2500000000", "--gpu-checkpoint-bytes 1000000000 --users 2 --context 4096"],
)
def test_cards_keep_as_many_checkpoints_as_the_smallest(settings: str) -> None:
    lines = plan(f"qwen3.8-27b:w4a16 --gpu rtx3090,rtx4090 {settings}")["lines"]
    counts = [one["why"].split()[0] for one in lines if one["name"].startswith("gpu checkpoints")]
    assert len(counts) == 2 and len(set(counts)) == 1


def test_more_users_are_faster_together_and_slower_each() -> None:
    decode = plan("qwen3.8-27b:w4a16 --gpu rtx3090 --context 4096 --users 4 --speculate off")["predicted"]["decode"]
    at_4096 = [row for row in decode if row["context"] == 4096]
    assert [row["users"] for row in at_4096] == [1, 2, 4, 8]
    assert all(a["tokens_per_s"] < b["tokens_per_s"] for a, b in zip(at_4096, at_4096[1:], strict=False))
    assert all(a["tokens_per_s_each"] > b["tokens_per_s_each"] for a, b in zip(at_4096, at_4096[1:], strict=False))
    assert 30 < at_4096[0]["tokens_per_s"] < 936e9 / 16.5e9, "no card reads the weights faster than its memory does"


def test_a_directory_is_planned_as_it_is(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "tiny", "qwen3_5", mtp=True)
    answer = plan(f"{folder} --gpu rtx3090 --dtype float32 --kv-dtype bf16 --speculate mtp --users 2 --context 64")
    assert weights(answer) == answer["stored_bytes"]
    assert answer["kv_bytes_per_token"] == 2 * 2 * 16 * 2
    assert answer["state_bytes_per_sequence"] == 3 * (4 * 8 * 8 + 3 * 64) * 4


def test_a_file_is_planned() -> None:
    answer = plan(f"{demo_model_path()} --gpu rtx3090")
    assert answer["parameters"] == 134_515_008 and answer["max_context"] == 8192
    assert answer["kv_bytes_per_token"] == plan("smollm2-135m --gpu rtx3090")["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("qwen4 --gpu rtx3090", "qwen4 is no file or directory"),
        ("qwen3.8-27b:q5 --gpu rtx3090", "no weight format 'q5'"),
        ("qwen3.8-27b: --gpu rtx3090", "no weight format ''"),
        ("qwen3.8-27b --gpu rtx2080", "no card 'rtx2080' is in the table"),
        ("qwen3.8-27b --gpu rtx3090,", "--gpu 'rtx3090,': a name is missing"),
        ("qwen3.8-27b --gpu rtx3090 --page-tokens 999999", "page_tokens 999,999 is more than the model's own limit of 262,144"),
        ("qwen3.8-27b --gpu rtx3090 --draft-tokens 16 --speculate mtp", "draft_tokens must be 15 or less"),
        ("qwen3.8-27b --gpu rtx3090 --users 0", "users must be 1 or more"),
        ("qwen3.8-27b --gpu rtx3090 --users 100000000", "users must be 65,536 or fewer, not 100,000,000"),
        ("qwen3.8-27b --gpu rtx3090 --context 999999999", "model's own limit of 262,144 tokens"),
        ("qwen3.8-27b --gpu rtx3090 --draft-tokens 0 --speculate mtp", "draft_tokens must be 1 or more"),
        ("qwen3.8-27b --gpu rtx3090 --desktop-bytes 99999999999",
         "desktop_bytes: 99,999,999,999 bytes (93.1 GiB) are more than the rtx3090's"),
        ("qwen3.8-27b --gpu rtx3090 --kv-scales one", "--kv-scales one is for --kv-dtype fp8 and int8"),
        ("smollm2-135m --gpu rtx3090 --speculate mtp", "has no multi-token head"),
        ("smollm2-135m --gpu rtx3090 --speculate dflash", "needs --drafter DIR"),
        ("smollm2-135m --gpu rtx3090 --vision on", "has no vision tower"),
        ("smollm2-135m --gpu rtx3090 --speculate lookup --drafter x", "--drafter x is for --speculate dflash, not lookup"),
        ("smollm2-135m --gpu rtx3090 --speculate dflash --drafter no/such", "no/such/config.json"),
    ],
)
def test_what_cannot_be_planned_is_told(arguments: str, words: str) -> None:
    with pytest.raises(HeadraceError, match=re.escape(words)):
        plan(arguments)


def test_a_person_is_told_the_same() -> None:
    shown = CliRunner().invoke(app, "plan qwen3.8-27b --gpu rtx3090 --context 32768 --users 8".split())
    assert shown.exit_code == 1
    for words in ("vision: the tower's", "8 sequences of 78,446,592 bytes", "does not fit: ", "would fit: the model in w4a16",
                  "the model in nvfp4 (planned, not served yet)", "users: the lines are of 8 x 32,768 tokens at once",
                  "would fit: --gpu "):
        assert words in shown.stdout
    fitting = CliRunner().invoke(app, "plan qwen3.8-27b:w4a16 --gpu rtx3090".split())
    assert fitting.exit_code == 0 and "predicted, from bytes and bandwidth, not measured" in fitting.stdout


def test_it_is_quick_and_imports_no_torch() -> None:
    """The longest search: nothing fits, with every kind of change to try."""
    arguments = "plan qwen3.8-27b --gpu rtx3090 --context 262144 --users 4 --speculate dflash".split()
    script = (
        f"import sys, time; sys.argv = ['headrace', *{arguments!r}]\n"
        "from headrace.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    sys.stderr.write(f'[{\"torch\" in sys.modules}, {\"triton\" in sys.modules}] {time.process_time()}')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    modules, _, seconds = ended.stderr.rpartition(" ")
    assert modules == "[False, False]"
    assert float(seconds) < QUICK_S


def test_suggestions_say_whether_users_share() -> None:
    """Without a number of users they share what is there, as with `serve`; with one, each has the whole context."""
    shared = plan("qwen3.8-27b:w4a16 --gpu rtx3090 --context 90000")["suggestions"][0]
    assert not shared["at_once"] and shared["users"] > 1
    assert 90000 == shared["context"] <= shared["capacity_tokens"] < shared["users"] * shared["context"]
    for each in plan("qwen3.8-27b:w4a16 --gpu rtx3090 --context 65536 --users 2")["suggestions"]:
        assert each["at_once"] and each["capacity_tokens"] >= each["users"] * each["context"]


def test_a_plan_may_be_verified_here() -> None:
    """The demo model, in an engine's process on this machine; what does not fit is not tried."""
    answer = plan(f"{demo_model_path()} --gpu rtx3090 --dtype float32 --context 256 --users 2 --chunk-tokens 32 --verify-fit")
    told = dict(line.split(": ", 1) for line in answer["verify_fit"][1:])
    assert answer["verify_fit"][0] == "2 sequences of 512 tokens in all, the longest 256"
    assert told["weights"].endswith("(100.0%)") and told["kv pages 0"].endswith("(100.0%)")
    refused = plan("qwen3.8-27b --gpu rtx3090 --verify-fit")
    assert not refused["fits"] and "verify_fit" not in refused


def test_a_plan_that_this_machine_cannot_try_says_that_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: str, config: object, users: int | None) -> tuple[str, ...]:
        raise ConfigError("the engine would need more")

    monkeypatch.setattr("headrace.commands.verify_fit.verify_fit", refuse)
    shown = CliRunner().invoke(app, "plan qwen3.8-27b:w4a16 --gpu rtx3090 --verify-fit".split())
    assert str(shown.exception) == "--verify-fit, on this machine: the engine would need more"


@pytest.mark.parametrize(
    "settings",
    ["--context 262144", "--cache-bytes 1000 --users 2", "--cache-bytes 4000000000 --context 262144", "--memory-bytes 1000"],
)
def test_what_is_in_the_way_is_said_once(settings: str) -> None:
    shown = CliRunner().invoke(app, f"plan qwen3.8-27b:w4a16 --gpu rtx3090 {settings}".split())
    assert shown.exit_code == 1 and shown.stdout.count("does not fit") == 1
