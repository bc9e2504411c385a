"""`headrace bench step`: the floor's arithmetic, profiles from made-up launches, and a run on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from headrace.bench.kernel_profile import behind_pause, summarise
from headrace.bench.scenarios import step
from headrace.errors import ConfigError
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from headrace.plan.dtypes import Dtypes
from headrace.plan.floor import Ceilings, Load, Work, step_work
from headrace.plan.shapes import declared_model

BF16 = Dtypes("bfloat16", "bfloat16", "float16")
ATTENTION = AttentionSpec(4, 2, 8, RopeSpec(1e4, 8))
WEIGHTS = {"embedding.weight": 1000, "layers.0.mixer.qkv.weight": 300, "head.weight": 700}


def spec(mixer: AttentionSpec | GatedDeltaSpec) -> ModelSpec:
    return ModelSpec("test", 10, 16, (LayerSpec(mixer, MlpSpec(32)),), 1e-6, 1024)


def test_bytes_of_attention():
    work = step_work(spec(ATTENTION), BF16, WEIGHTS, Load(3, 1, 50))
    assert work.bytes == 300 + 700 + 3 * 1000 / 10 + 3 * (50 + 1) * 2 * 2 * 8 * 2
    windowed = step_work(spec(replace(ATTENTION, window=20)), BF16, WEIGHTS, Load(3, 1, 50))
    assert work.bytes - windowed.bytes == 3 * 30 * 2 * 2 * 8 * 2
    tied = step_work(replace(spec(ATTENTION), tied=True), BF16, WEIGHTS, Load(3, 1, 50))
    assert tied.bytes - work.bytes == 700


def test_a_state_is_read_and_written_once_however_many_tokens():
    mixer = GatedDeltaSpec(2, 4, 8, 16, 4)
    one, eight = (step_work(spec(mixer), BF16, WEIGHTS, Load(5, tokens, 50)).bytes for tokens in (1, 8))
    assert one == 1000 + 5 * 100 + 5 * 2 * (4 * 8 * 16 * 2 + (2 * 2 * 8 + 4 * 16) * 3 * 2)
    assert eight - one == 5 * 7 * 100  # the tokens' rows of the embedding


def test_flops_of_a_token():
    projections = 2 * 16 * ((4 + 2 * 2) * 8 + 4 * 8) + 2 * 3 * 16 * 32
    work = step_work(spec(ATTENTION), BF16, WEIGHTS, Load(2, 3, 50))
    attention = 4 * 4 * 8 * (50 - 1)  # queries at 48, 49 and 50 tokens
    assert work.flops == 6 * (projections + attention) + 2 * 2 * 10 * 16


def test_the_27b_shape_is_near_two_flops_a_parameter():
    model = declared_model("qwen3.8-27b")
    parameters = {w.target: 0 for w in model.weight_map.weights} | {"embedding.weight": 0}
    flops = step_work(model.spec, BF16, parameters, Load(1, 1, 1024)).flops
    read = sum(t.nbytes // 2 for name, t in model.checkpoint.tensors.items() if "embed" not in name and "mtp" not in name)
    assert 1.0 < flops / (2 * read) < 1.02


def test_the_floor_is_the_longer_time():
    ceilings = Ceilings(bytes_per_s=10.0, flops_per_s=100.0)
    assert ceilings.floor_s(Work(20.0, 100.0)) == 2.0 and ceilings.floor_s(Work(20.0, 1000.0)) == 10.0


def test_a_profile_counts_what_runs_and_what_does_not():
    spans = [(0.0, 10.0, "a"), (5.0, 10.0, "b"), (20.0, 5.0, "a"), (21.0, 2.0, "c"), (35.0, 5.0, "b")]
    found = summarise(spans, 2)
    assert [(k.name, k.calls, k.us) for k in found.kernels] == [("a", 1.0, 7.5), ("b", 1.0, 7.5), ("c", 0.5, 1.0)]
    assert found.busy_us == 12.5 and found.idle_share == pytest.approx(15 / 40) and found.between_share == 0
    assert not found.complete and summarise(spans[:3], 1).complete


def test_a_profile_starts_behind_the_pause():
    measured = [(1_400_000.0 + n, 1.0, "b") for n in range(3)]
    assert behind_pause([*measured, (0.0, 5.0, "a"), (1_000_000.0, 2.0, "a")]) == [(1_000_000.0, 2.0, "a"), *measured]
    assert behind_pause(measured) == measured and behind_pause([]) == []


def test_gaps_beside_a_steps_first_copy_lie_between_steps():
    spans = [(0.0, 1.0, "Memcpy HtoD (Pinned -> Device)"), (2.0, 4.0, "a"), (7.0, 2.0, "b"),
             (12.0, 1.0, "Memcpy HtoD (Pinned -> Device)"), (15.0, 5.0, "a")]
    found = summarise(spans, 2)
    assert found.busy_us == 6.5
    assert found.idle_share == pytest.approx((1 + 1 + 3 + 2) / 20) and found.between_share == pytest.approx((1 + 3 + 2) / 20)


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_a_run_on_a_cpu(loop: str):
    settings = step.Settings(
        random_weights="smollm2-135m", rows=(1, 3), query_tokens=(1, 2), context=(20,), steps=3, device="cpu", loop=loop,
        read_tb_per_s=0.01, matmul_tflops=0.1,
    )
    console = Console(file=None, quiet=True)
    found = step.run(settings, console)
    loads = [(entry["rows"], entry["query_tokens"], entry["context"]) for entry in found["steps"]]
    assert loads == [(1, 1, 20), (1, 2, 20), (3, 1, 20), (3, 2, 20)]
    for entry in found["steps"]:
        assert entry["step_ms"] > 0 and entry["ratio"] == pytest.approx(entry["step_ms"] / entry["floor_ms"])
        assert entry["tokens_per_s"] == pytest.approx(entry["rows"] * entry["query_tokens"] / entry["step_ms"] * 1e3)
    assert found["ceilings"] == {"bytes_per_s": 1e10, "flops_per_s": 1e11}


@pytest.mark.parametrize("loop", ["plain", "overlapped"])
def test_a_run_with_drafts_on_a_cpu(loop: str):
    settings = step.Settings(
        random_weights="smollm2-135m", rows=(1, 2), drafts=(0, 3), context=(20,), steps=3, device="cpu", loop=loop,
        read_tb_per_s=0.01, matmul_tflops=0.1,
    )
    found = step.run(settings, Console(file=None, quiet=True))["steps"]
    assert [(e["rows"], e["query_tokens"], e["drafts"]) for e in found] == [(1, 1, 0), (1, 4, 3), (2, 1, 0), (2, 4, 3)]
    head = 2 * 49_152 * 576
    assert found[1]["flops"] - 4 * found[0]["flops"] == pytest.approx(0, abs=head / 100)  # each token's logits are needed


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"steps": 0}, "--steps"), ({"drafts": (3,), "query_tokens": (2,)}, "--drafts are"), ({"drafts": (16,)}, "--drafts must"),
     ({"rows": (0,)}, "--rows must be 1 or more, not 0"), ({"query_tokens": (4, 0)}, "--query-tokens must be 1 or more, not 0"),
     ({"query_tokens": (9,), "context": (8,)}, "--context 8 is less than the 9 tokens"),
     ({"drafts": (8,), "context": (8,)}, "--context 8 is less than the 9 tokens"),
     ({"random_weights": "smollm2-135m", "context": (8000,)}, "--context 8000 and --steps 200 need sequences of 8256 tokens"),
     ({"profile": True}, "--profile needs"), ({"model": "x", "random_weights": "smollm2-135m"}, "exclude a model")],
)
def test_what_cannot_be_measured_is_refused(fields: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        step.run(step.Settings(device="cpu", **fields), Console(quiet=True))
