"""What `--speculate auto` makes of a checkpoint, a card and what is asked for; plans say the same as engines do."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.test_dflash import VOCABULARY
from tests.support.tiny import make_tiny_checkpoint
from tests.support.tiny_dflash import dflash_config, dflash_tensors, write_dflash

from headrace.config import EngineConfig, PlanConfig
from headrace.engine.build import build_engine
from headrace.engine.model_source import find_model
from headrace.errors import CheckpointError, ConfigError
from headrace.hardware import Hardware
from headrace.plan.auto_drafter import LEAST_SEQS, LEAST_TOKENS, Drafting, resolve_drafter
from headrace.plan.checkpoint import Model, TensorHeader, identify, open_checkpoint
from headrace.plan.drafters import NO_DRAFTER
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.fit import capacity_tokens, outcome
from headrace.plan.planner import Plan, Request, cards_for, make_plan
from headrace.plan.published import published_model

CUDA = EngineConfig(device="cuda")
CPU = Hardware("cpu", "CPU", 64 << 30, 64 << 30)
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


def test_a_broken_head_is_left_out(with_head: Path) -> None:
    """It names the tensor, and both dimensions where they differ; asked for by name it is an error."""
    model = identify(open_checkpoint(with_head))
    tensors = model.checkpoint.tensors
    missing = {name: header for name, header in tensors.items() if name != "mtp.fc.weight"}
    narrow = {**tensors, "mtp.fc.weight": replace(tensors["mtp.fc.weight"], shape=(32, 32))}
    for broken, words in ((missing, ("mtp.fc.weight",)), (narrow, ("mtp.fc.weight", "32", "64"))):
        found = resolved(changed(model, broken))
        assert found.memory.method == "off" and found.broken
        assert all(word in found.note for word in words)
        with pytest.raises(CheckpointError, match=r"mtp\.fc\.weight"):
            resolved(changed(model, broken), replace(CUDA, speculate="mtp"))


def test_an_engine_warns_of_a_broken_head_once(with_head: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(device="cpu", context=64, max_seqs=2)
    model = find_model(with_head, config)
    tensors = {name: header for name, header in model.checkpoint.tensors.items() if name != "mtp.fc.weight"}
    build_engine(changed(model, tensors), config, None).core.close()
    (record,) = (record for record in caplog.records if "drafted" in record.getMessage())
    assert record.levelname == "WARNING" and "nothing is drafted: multi-token head of" in record.getMessage()
    assert "mtp.fc.weight" in record.getMessage()


def test_what_was_asked_for_is_kept() -> None:
    """Eight users of 4,096 tokens leave room for half of the drafts on a card of 24 GB, 16 of 8,192 for none on one of 30."""
    fewer = plan(23_960 * 10**6, replace(CUDA, context=4096), users=8)
    assert (fewer.drafter.method, fewer.drafter.drafts) == ("mtp", 2)
    assert "fewer than 4, with which 8 sequences of 4,096 tokens do not fit at once" in fewer.drafting.note
    none = plan(30 * 10**9, replace(CUDA, context=8192), users=16)
    assert none.drafter.method == "off" and "--speculate mtp has it nevertheless" in none.drafting.note
    assert plan(30 * 10**9, replace(CUDA, context=8192, speculate="mtp"), users=16).drafter.method == "mtp"
    assert plan(40 * 10**9, replace(CUDA, context=8192), users=16).drafting.note.endswith("in a step")
    shared = plan(24 * 10**9, replace(CUDA, context=32_768), users=8)
    assert shared.drafter.method == "mtp", "of what does not fit at once anyway, users share what there is"


@pytest.mark.parametrize(("users", "drafts", "pages"), [(95, 2, 90), (110, 0, 49)])
def test_sequences_that_are_asked_for_have_a_page_each_with_a_drafter_too(users: int, drafts: int, pages: int) -> None:
    settings = PlanConfig(gpu="rtx5090", users=users)
    request = Request("w4a16", replace(CUDA, page_tokens=512), settings)
    found = make_plan(request, cards_for(settings), lambda format: PUBLISHED)
    assert found.drafter.drafts == drafts and f"there are {pages} pages for {users} sequences" in found.drafting.note
    assert outcome(found.case, None, users).fits


USUAL = [
    (None, None, 4), (32_768, None, 4), (None, 1, 4), (None, 4, 4), (32_768, 1, 4), (8192, 4, 4), (4096, 8, 4), (32_768, 8, 4),
]
"""Context and sequences that are asked for, and the drafts that there are on 24 GB: none of it costs the drafter."""


@pytest.mark.parametrize("name", ["rtx3090", "rtx4090", "rtx5090", "h200"])
@pytest.mark.parametrize(("context", "users", "drafts"), USUAL)
def test_on_usual_cards_a_drafter_is_usual(name: str, context: int | None, users: int | None, drafts: int) -> None:
    """The 27B shape in 4 bits; at least so much is left where nobody asked for a number."""
    settings = PlanConfig(gpu=name, users=users, vision="off")
    found = make_plan(Request("w4a16", replace(CUDA, context=context), settings), cards_for(settings), lambda format: PUBLISHED)
    assert (found.drafter.method, found.drafter.drafts) == ("mtp", drafts)
    (budget,) = outcome(found.case, context, users).budgets
    assert budget.max_seqs >= (users or LEAST_SEQS) and capacity_tokens(budget) >= (context or LEAST_TOKENS)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.integers(18, 48), st.sampled_from([None, 1000, 8192, 65_536]), st.sampled_from([None, 1, 3, 16]),
    st.sampled_from(["auto", "off"]), st.sampled_from(["auto", "int8"]),
)
def test_a_choice_costs_nothing_that_was_asked_for(
    gigabytes: int, context: int | None, users: int | None, vision: str, kv_dtype: str
) -> None:
    """What fits without drafts fits with what auto makes of them; an engine of the same card decides as its plan."""
    engine = replace(CUDA, context=context, kv_dtype=kv_dtype)
    settings = PlanConfig(gpu="rtx5090", vram_bytes=gigabytes * 10**9, users=users, vision=vision)

    def made(speculate: str) -> Plan:
        request = Request("w4a16", replace(engine, speculate=speculate), settings)
        return make_plan(request, cards_for(settings), lambda format: PUBLISHED)

    chosen, without = made("auto"), made("off")
    assert outcome(chosen.case, context, users).fits == outcome(without.case, context, users).fits
    assert chosen.drafting == resolved(PUBLISHED, replace(engine, max_seqs=users), chosen.case.stages[0].hardware)


def test_a_small_model_needs_no_more_than_it_can_have(with_head: Path) -> None:
    """Its context is shorter than what is left at least of a large one's."""
    found = resolved(identify(open_checkpoint(with_head)), replace(CUDA, context=None, max_seqs=None))
    assert found.memory.method == "mtp"


def test_where_nothing_fits_it_says_so() -> None:
    found = resolved(PUBLISHED, hardware=card(12 << 30))
    assert found.memory == NO_DRAFTER and "no room for what is asked for without a drafter either" in found.note


WRONG = [
    ({"draft_tokens": 0}, "draft_tokens must be 1 or more, not 0"),
    ({"draft_tokens": 16}, "draft_tokens must be 15 or less, not 16"),
    ({"verify_tokens": 0}, "verify_tokens must be 1 or more, not 0"),
    ({"verify_tokens": 16}, "verify_tokens must be 15 or less, not 16"),
    ({"draft_tokens": 5, "verify_tokens": 4}, "verify_tokens must be from 5, which draft_tokens are, to 15, not 4"),
    ({"draft_vocabulary": 100}, "draft_vocabulary must be a multiple of 128 up to"),
    ({"draft_vocabulary": 1 << 20}, "draft_vocabulary must be a multiple of 128 up to"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG)
@pytest.mark.parametrize("speculate", ["auto", "off", "lookup", "mtp", "dflash"])
@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_what_no_drafter_could_have_is_wrong_always(
    settings: dict[str, int], words: str, speculate: str, graphs: str
) -> None:
    config = replace(CUDA, speculate=speculate, graphs=graphs, **settings)  # type: ignore[arg-type]
    for hardware in (card(), card(12 << 30), CPU):
        with pytest.raises(ConfigError, match=words):
            resolved(PUBLISHED, config, hardware)


@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_what_the_drafter_could_not_have_is_wrong_whether_it_is_taken_or_not(with_head: Path, graphs: str) -> None:
    config = replace(CUDA, graphs=graphs, verify_tokens=2)
    with pytest.raises(ConfigError, match="verify_tokens must be from 4, which are mtp's own, to 15, not 2"):
        resolved(identify(open_checkpoint(with_head)), config)
    drafter = dflash_config(VOCABULARY)
    write_dflash(with_head / "drafter", drafter, dflash_tensors(drafter))
    try:
        model = identify(open_checkpoint(with_head))
        for wrong, words in (({"draft_tokens": 4}, "draft_tokens 4: the drafter proposes 3 at most"),
                             ({"draft_vocabulary": 128}, "draft_vocabulary must be a multiple of 128 up to 60, not 128")):
            with pytest.raises(ConfigError, match=words):
                resolved(model, replace(CUDA, graphs=graphs, **wrong))  # type: ignore[arg-type]
    finally:
        shutil.rmtree(with_head / "drafter")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draft_tokens": 7}, "; --draft-tokens has no effect"),
        ({"verify_tokens": 9, "draft_vocabulary": 1024}, "; --verify-tokens and --draft-vocabulary have no effect"),
    ],
)
def test_what_is_right_never_fails_because_nothing_is_drafted(settings: dict[str, int], words: str) -> None:
    alone = changed(PUBLISHED, {name: h for name, h in PUBLISHED.checkpoint.tensors.items() if not name.startswith("mtp.")})
    config = replace(CUDA, **settings)  # type: ignore[arg-type]
    for model, asked, hardware in (
        (PUBLISHED, replace(config, graphs="off"), card()), (PUBLISHED, config, card(12 << 30)), (PUBLISHED, config, CPU),
        (alone, config, card()), (PUBLISHED, replace(config, random_weights="qwen3.8-27b"), card()),
    ):
        found = resolved(model, asked, hardware)
        assert found.memory == NO_DRAFTER and found.note.endswith(words)
    assert resolved(PUBLISHED, replace(config, speculate="off")) == Drafting(NO_DRAFTER)
    on = resolved(PUBLISHED, config, card(40 << 30))
    assert on.memory.method == "mtp" and "no effect" not in on.note


def test_a_choice_can_be_asked_for(with_head: Path) -> None:
    """As an engine that is tried for a plan is asked for it."""
    model = identify(open_checkpoint(with_head))
    for asked in (CUDA, replace(CUDA, draft_tokens=2, verify_tokens=6), replace(CUDA, graphs="off", draft_tokens=2)):
        chosen = resolved(model, asked)
        assert resolved(model, chosen.asked_for(asked)).memory == chosen.memory


def test_several_cards_draft_what_is_asked_for() -> None:
    settings = PlanConfig(gpu="h200,h200")
    found = make_plan(Request("w4a16", CUDA, settings), cards_for(settings), lambda format: PUBLISHED)
    assert found.drafter.method == "off" and "over several cards" in found.drafting.note
