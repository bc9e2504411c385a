"""What `--speculate auto` makes of a checkpoint, a card and what is asked for; plans say the same as engines do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plan.test_dflash import VOCABULARY
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.config import EngineConfig, PlanConfig
from headrace.engine.build import build_engine
from headrace.engine.model_source import find_model
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import Hardware
from headrace.plan.auto_drafter import OFF, Drafting, resolve_drafter
from headrace.plan.checkpoint import Model, TensorHeader, identify, open_checkpoint
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.planner import Plan, Request, cards_for, make_plan
from headrace.plan.published import published_model

CUDA = EngineConfig(device="cuda")
PUBLISHED = published_model("qwen3.8-27b:w4a16")


def card(memory_bytes: int = 24 << 30) -> Hardware:
    return Hardware("cuda", "card", memory_bytes, memory_bytes, capability=86, elsewhere=True, processors=82)


def resolved(model: Model, config: EngineConfig = CUDA, hardware: Hardware | None = None) -> Drafting:
    hardware = hardware or card()
    return resolve_drafter(model, config, hardware, resolve_dtypes(config, hardware, model.checkpoint.dtype))


def plan(memory_bytes: int, engine: EngineConfig = CUDA, users: int | None = None) -> Plan:
    settings = PlanConfig(gpu="rtx5090", vram_bytes=memory_bytes, users=users, vision="off")
    return make_plan(Request("w4a16", engine, settings), cards_for(settings), lambda format: PUBLISHED)


@pytest.fixture(scope="module")
def with_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head") / "model"
    return make_tiny_checkpoint(folder, "qwen3_5_text", seed=1, mtp=True, config={"vocab_size": VOCABULARY, "hidden_size": 32})


def changed(model: Model, tensors: Mapping[str, TensorHeader]) -> Model:
    """The same model in a checkpoint of these tensors."""
    kept = tuple(name for name in model.weight_map.kept if name in tensors)
    checkpoint = replace(model.checkpoint, tensors=tensors)
    return replace(model, checkpoint=checkpoint, weight_map=replace(model.weight_map, kept=kept))


def test_a_checkpoints_own_head_is_taken(with_head: Path) -> None:
    found = resolved(identify(open_checkpoint(with_head)))
    assert (found.memory.method, found.memory.drafts, found.why) == ("mtp", 4, "")
    assert found.note == "speculate: mtp, up to 4 drafts of a sequence in a step"
    for drafts in (2, 7):
        assert resolved(identify(open_checkpoint(with_head)), replace(CUDA, draft_tokens=drafts)).memory.drafts == drafts


def test_a_drafter_beside_it_is_taken_before(with_head: Path) -> None:
    config = dflash_config(VOCABULARY)
    write_dflash(with_head / "drafter", config, dflash_tensors(config))
    try:
        found = resolved(identify(open_checkpoint(with_head)))
        assert found.memory.method == "dflash" and not found.why
    finally:
        for file in (with_head / "drafter").iterdir():
            file.unlink()
        (with_head / "drafter").rmdir()


def test_where_there_is_none_nothing_is_drafted(with_head: Path) -> None:
    model = identify(open_checkpoint(with_head))
    alone = changed(model, {name: header for name, header in model.checkpoint.tensors.items() if not name.startswith("mtp.")})
    found = resolved(alone)
    assert found.memory.method == "off" and "brings no drafter; --speculate lookup" in found.note


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"graphs": "off"}, "captured steps of 16 bits"), ({"dtype": "float32"}, "captured steps of 16 bits"),
        ({"random_weights": "qwen3.8-27b"}, "random weights"),
    ],
)
def test_where_it_could_lose_nothing_is_drafted(with_head: Path, setting: dict[str, str], why: str) -> None:
    found = resolved(identify(open_checkpoint(with_head)), replace(CUDA, **setting))  # type: ignore[arg-type]
    assert found.memory.method == "off" and why in found.note


def test_on_a_cpu_nothing_is_drafted_and_said_so(with_head: Path) -> None:
    config = EngineConfig(device="cpu", context=64, max_seqs=2)
    built = build_engine(find_model(with_head, config), config, None)
    assert any(note.startswith("speculate: off: how many drafts pay") for note in built.info.notes)
    built.core.close()


def test_a_head_that_is_not_served_yet_is_left_out() -> None:
    model = published_model("qwen3.8-27b:fp8")
    assert "blocks of fp8" in resolved(model, hardware=card(141 << 30)).note


def test_a_broken_head_is_left_out_with_a_warning(with_head: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It names the tensor, and both dimensions where they differ; asked for by name it is an error."""
    model = identify(open_checkpoint(with_head))
    tensors = model.checkpoint.tensors
    missing = {name: header for name, header in tensors.items() if name != "mtp.fc.weight"}
    narrow = {**tensors, "mtp.fc.weight": replace(tensors["mtp.fc.weight"], shape=(32, 32))}
    for broken, words in ((missing, ("mtp.fc.weight",)), (narrow, ("mtp.fc.weight", "32", "64"))):
        caplog.clear()
        found = resolved(changed(model, broken))
        assert found.memory.method == "off"
        (record,) = caplog.records
        assert record.levelname == "WARNING" and all(word in record.getMessage() and word in found.note for word in words)
        with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight"):
            resolved(changed(model, broken), replace(CUDA, speculate="mtp"))


def test_what_was_asked_for_is_kept() -> None:
    """On a card of 24.4 GB eight users of 4,096 tokens leave room for half of the drafts, and sixteen of 8,192 for none."""
    fewer = plan(24_380 * 10**6, replace(CUDA, context=4096), users=8)
    assert (fewer.drafter.method, fewer.drafter.drafts) == ("mtp", 2)
    assert "fewer than 4, with which the cache holds" in fewer.drafting.note and "instead of 32,768" in fewer.drafting.note
    none = plan(24_380 * 10**6, replace(CUDA, context=8192), users=16)
    assert none.drafter.method == "off" and "--speculate mtp has it nevertheless" in none.drafting.note
    assert plan(24_380 * 10**6, replace(CUDA, context=8192, speculate="mtp"), users=16).drafter.method == "mtp"
    assert plan(40 * 10**9, replace(CUDA, context=8192), users=16).drafting.note.endswith("in a step")


@pytest.mark.parametrize("gigabytes", [26, 28, 30, 36, 64])
@pytest.mark.parametrize(("context", "users"), [(None, None), (4096, 8), (None, 4)])
def test_plans_say_what_engines_do(gigabytes: int, context: int | None, users: int | None) -> None:
    engine = replace(CUDA, context=context)
    planned = plan(gigabytes * 10**9, engine, users)
    hardware = planned.case.stages[0].hardware
    assert planned.drafting == resolved(PUBLISHED, replace(engine, max_seqs=users), hardware)


def test_where_nothing_fits_the_engine_says_why() -> None:
    assert resolved(PUBLISHED, hardware=card(12 << 30)) == OFF
    with pytest.raises(ConfigError, match="verify_tokens 9 is for drafters that lookup extends"):
        resolved(PUBLISHED, replace(CUDA, verify_tokens=9, graphs="off"))


def test_several_cards_draft_what_is_asked_for() -> None:
    settings = PlanConfig(gpu="h200,h200")
    found = make_plan(Request("w4a16", CUDA, settings), cards_for(settings), lambda format: PUBLISHED)
    assert found.drafter.method == "off" and "over several cards" in found.drafting.note
