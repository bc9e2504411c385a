"""The budget's arithmetic, on the published shape and on small ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache.layout import cache_groups
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec, Weight, WeightMap
from headrace.plan.budget import make_budget
from headrace.plan.dtypes import Dtypes, resolve_dtypes, token_bytes
from headrace.plan.fixed_lines import CODE_BYTES
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.plan.weight_memory import weight_bytes
from headrace.plan.workspace import Sizes, decoded_bytes, gathered_bytes, layers_bytes, logits_bytes, mask_bytes

GIB = 2**30
FULL = AttentionSpec(4, 2, 16, RopeSpec(1e4, 16))
WINDOW = replace(FULL, window=32)
DELTA = GatedDeltaSpec(2, 4, 8, 8, 4)
CPU = Hardware("cpu", "CPU", 8 * GIB, 6 * GIB)
GPU = Hardware("cuda", "Test 24 GB", 24 * GIB, 23 * GIB)
F32 = Dtypes("float32", "float32", "float32")
WEIGHTS = WeightMap((Weight("embed", "embed", (100, 32)), Weight("norm", "norm", (32,))))


def spec(*mixers: AttentionSpec | GatedDeltaSpec, max_context: int = 1024) -> ModelSpec:
    return ModelSpec("test", 100, 32, tuple(LayerSpec(m, MlpSpec(64)) for m in mixers), 1e-6, max_context)


def test_weights_are_counted_in_their_types() -> None:
    assert weight_bytes(WEIGHTS, "bfloat16") == 100 * 32 * 2 + 32 * 4
    assert weight_bytes(WEIGHTS, "float64") == (100 * 32 + 32) * 8


def test_a_cpu_cache_holds_every_sequence_at_full_length() -> None:
    model = spec(FULL, DELTA)
    budget = make_budget(model, WEIGHTS, CPU, EngineConfig(max_seqs=4, context=100), F32)
    assert budget.layout.pages == (4 * 7,) and budget.layout.slots == 4 and budget.context == 100
    lines = {line.name: line.bytes for line in budget.lines}
    assert lines["kv pages 0"] == 28 * 16 * 2 * 2 * 16 * 4
    assert lines["state slots"] == 4 * state_bytes_per_sequence(model, F32)
    assert budget.total_bytes == sum(lines.values())


def test_keys_and_values_of_8_bits_have_scales() -> None:
    """The published shape: 16 layers of 4 heads of 256, keys and values; 33,024 bytes a token with a 2-byte scale for each."""
    model = spec(*[AttentionSpec(24, 4, 256, RopeSpec(1e7, 64))] * 16)
    (group,) = cache_groups(model)
    assert token_bytes(group, "bfloat16") == 65_536
    assert token_bytes(group, "int8") == token_bytes(group, "float8_e4m3fn") == 33_024
    int8 = replace(F32, kv="int8")
    budget = make_budget(model, WEIGHTS, CPU, EngineConfig(max_seqs=2, context=100), int8)
    assert {line.name: line.bytes for line in budget.lines}["kv pages 0"] == 14 * 16 * 33_024


def test_a_cpu_cache_takes_at_most_a_quarter_of_the_ram() -> None:
    model = spec(FULL, max_context=10_000_000)
    budget = make_budget(model, WEIGHTS, CPU, EngineConfig(), F32)
    cache = sum(line.bytes for line in budget.lines if line.name.startswith("kv"))
    assert 2 * GIB - 16 * 256 < cache <= 2 * GIB
    assert budget.context == budget.layout.pages[0] * 16 < 10_000_000


def test_a_gpu_leaves_its_reserve_and_what_others_hold() -> None:
    model = spec(FULL, DELTA, max_context=100_000_000)
    budget = make_budget(model, WEIGHTS, GPU, EngineConfig(), F32)
    limit = int(24 * GIB * 0.97) - GIB
    page = 16 * 2 * 2 * 16 * 4
    assert limit - page < budget.total_bytes <= limit


def test_what_the_driver_takes_for_the_process_is_a_line() -> None:
    """A card looked at before the process has its context, and by one that has it, are the same card."""
    taken = 600 * 2**20
    ahead = replace(GPU, free_bytes=23 * GIB, context_bytes=taken, elsewhere=True)
    within = replace(ahead, free_bytes=23 * GIB - taken, context_bytes=0).with_context(taken)
    assert within == ahead and CPU.with_context(taken) == CPU
    without = replace(ahead, context_bytes=0)
    model, page = spec(FULL, max_context=100_000_000), 16 * 2 * 2 * 16 * 4
    for config in (EngineConfig(), EngineConfig(memory_bytes=8 * GIB), EngineConfig(memory_fraction=0.5)):
        counted, ignored = (make_budget(model, WEIGHTS, card, config, F32) for card in (ahead, without))
        lines, others = ({line.name: line.bytes for line in each.lines} for each in (counted, ignored))
        assert lines["cuda context"] == taken and "cuda context" not in others
        assert lines["kernel code"] == others["kernel code"] == CODE_BYTES, "which are loaded whatever the context takes"
        assert abs(others["kv pages 0"] - lines["kv pages 0"] - taken) < page
    with pytest.raises(ConfigError, match="cuda_context_bytes must be 0 or more, not -1"):
        make_budget(spec(FULL), WEIGHTS, ahead, EngineConfig(cuda_context_bytes=-1), F32)


def test_window_groups_get_what_windows_need_and_no_more() -> None:
    budget = make_budget(spec(FULL, WINDOW, max_context=4096), WEIGHTS, CPU, EngineConfig(max_seqs=2, chunk_tokens=64), F32)
    full, window = budget.layout.pages
    assert full == 2 * 256
    assert window == 2 * (3 + 1) + 4


def test_states_take_at_most_a_quarter_of_a_small_cache() -> None:
    model = spec(FULL, DELTA)
    state = state_bytes_per_sequence(model, F32)
    budget = make_budget(model, WEIGHTS, CPU, EngineConfig(cache_bytes=20 * state), F32)
    assert budget.max_seqs == 5
    assert any("max-seqs: 5, so that states take at most a quarter of the cache" in note for note in budget.notes)


@pytest.mark.parametrize(("prefix_cache", "seqs"), [("on", 17), ("off", 20)])
def test_states_take_more_where_every_sequence_has_its_context(prefix_cache: str, seqs: int) -> None:
    """An eighth of the cache may be checkpoints of theirs, unless nothing is kept."""
    model, page = spec(FULL, DELTA), 16 * 2 * 2 * 16 * 4
    state = state_bytes_per_sequence(model, F32)
    config = EngineConfig(context=16, cache_bytes=20 * (state + page), prefix_cache=prefix_cache)
    budget = make_budget(model, WEIGHTS, CPU, config, F32)
    assert budget.max_seqs == budget.layout.pages[0] == seqs
    assert any(f"max-seqs: {seqs}, so that each can have 16 tokens at once" in note for note in budget.notes)


def test_sequences_that_are_asked_for_have_a_page_each_before_states_are_kept() -> None:
    model, page = spec(FULL, DELTA), 16 * 2 * 2 * 16 * 4
    state = state_bytes_per_sequence(model, F32)
    for room, kept in ((state - 1, 0), (state, 1)):
        config = EngineConfig(max_seqs=8, cache_bytes=8 * (state + page) + room)
        layout = make_budget(model, WEIGHTS, CPU, config, F32).layout
        assert layout.checkpoints == kept and layout.pages[0] >= 8


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(14, 26), st.sampled_from([None, 65_536]), st.sampled_from([0, 4]))
def test_as_many_sequences_as_their_share_has_room_for(gib: int, context: int | None, drafts: int) -> None:
    """What a sequence takes beside its state leaves the cache less: one more would take more than the share."""
    attention, delta = AttentionSpec(24, 4, 256, RopeSpec(1e7, 64)), GatedDeltaSpec(16, 48, 128, 128, 4)
    model = spec(attention, *(delta,) * 40, max_context=131_072)
    card, config = replace(GPU, memory_bytes=gib * GIB, free_bytes=gib * GIB), EngineConfig(context=context)
    budget = make_budget(model, WEIGHTS, card, config, F32, drafts)
    assert "quarter" in budget.notes[1]
    for seqs, within in ((budget.max_seqs, True), (budget.max_seqs + 1, False)):
        asked = make_budget(model, WEIGHTS, card, replace(config, max_seqs=seqs), F32, drafts)
        cache_bytes = int(asked.notes[0].split()[1].replace(",", ""))
        assert (4 * seqs * state_bytes_per_sequence(model, F32) <= cache_bytes) == within


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context": 2048}, "context 2,048 is more than the model's own limit of 1,024 tokens"),
        ({"cache_bytes": 100_000, "context": 1024, "max_seqs": 1}, "holds"),
        ({"cache_bytes": 100, "max_seqs": 4}, "too small"),
        ({"cache_bytes": 100, "max_seqs": 4, "gpu_checkpoint_bytes": 10**9}, "too small"),
        ({"cache_bytes": 10**6, "max_seqs": 4, "gpu_checkpoint_bytes": 10**9},
         r"gpu_checkpoint_bytes: 1,000,000,000 bytes \(954 MiB\) are too many for a cache of 1,000,000 bytes"),
        ({"cache_bytes": 100, "memory_bytes": 100}, "memory_bytes and cache_bytes exclude each other"),
        ({"memory_bytes": 100}, "before its cache"),
        ({"memory_fraction": 1.5}, "memory_fraction"),
        ({"page_tokens": 0}, "page_tokens must be 1 or more"),
        ({"context": 1}, "context must be 2 or more"),
        ({"max_seqs": 65_537}, "max_seqs must be 65,536 or fewer, not 65,537"),
        ({"chunk_tokens": 50_000_000, "context": 16},
         r"the machine has 8,589,934,592 bytes \(8.0 GiB\); most of it is workspace"),
    ],
)
def test_what_cannot_fit_is_refused_with_its_numbers(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_budget(spec(FULL, DELTA), WEIGHTS, CPU, EngineConfig(**settings), F32)  # type: ignore[arg-type]


def test_auto_types() -> None:
    assert resolve_dtypes(EngineConfig(), CPU, "bfloat16").compute == "float32"
    on_gpu = resolve_dtypes(EngineConfig(), GPU, "bfloat16")
    assert (on_gpu.compute, on_gpu.kv, on_gpu.state) == ("bfloat16", "bfloat16", "float16")
    double = resolve_dtypes(EngineConfig(dtype="float64"), CPU, "bfloat16")
    assert (double.compute, double.kv, double.state) == ("float64", "float64", "float64")
    mixed = resolve_dtypes(EngineConfig(dtype="float32", kv_dtype="fp16", state_dtype="fp16"), CPU, "float32")
    assert (mixed.kv, mixed.state) == ("float16", "float16")
    for short, name in (("fp8", "float8_e4m3fn"), ("int8", "int8")):
        assert resolve_dtypes(EngineConfig(kv_dtype=short), CPU, "float32").kv == name
    with pytest.raises(ConfigError, match="no bfloat16"):
        resolve_dtypes(EngineConfig(dtype="bfloat16"), replace(GPU, has_bfloat16=False), "bfloat16")


def test_a_gpus_logits_lie_where_the_layers_activations_were() -> None:
    """So that only what they take more is a line."""
    config, model = EngineConfig(max_seqs=70, chunk_tokens=30, context=64, dtype="bfloat16"), spec(FULL)
    lines = [make_budget(model, WEIGHTS, each, config, Dtypes("bfloat16", "bfloat16", "float16")).lines for each in (GPU, CPU)]
    gpu, cpu = ([line.bytes for line in found if line.name in ("workspace", "logits workspace")] for found in lines)
    sizes = Sizes(70 + 15, 70, 0, 2, 132, 0, low_bit=False)
    assert gpu == [layers_bytes(model, sizes)] and layers_bytes(model, sizes) > logits_bytes(model, sizes)
    assert cpu == [85 * (256 + 4 * 32) * 4]
    wide = replace(model, vocab_size=50_000)
    of_wide = [make_budget(wide, WEIGHTS, each, config, Dtypes("bfloat16", "bfloat16", "float16")).lines for each in (GPU, CPU)]
    both, on_a_cpu = (sum(line.bytes for line in lines if line.name in ("workspace", "logits workspace")) for lines in of_wide)
    assert on_a_cpu == 3 * 70 * 50_000 * 4
    assert both == logits_bytes(wide, sizes) == (85 + 70) * 32 * 2 + 70 * 50_000 * 4 + 2**21 * 76


def test_packed_weights_are_counted_as_they_are_stored_and_need_a_workspace() -> None:
    packed = WeightMap((Weight("w.weight_packed", "w.weight_packed", (64, 16), dtype="int32"),
                        Weight("b.weight_packed", "b.weight_packed", (64, 8), transform="offset_bytes", dtype="int8"),
                        Weight("w.weight_scale", "w.weight_scale", (64, 1), dtype="float16")))
    assert weight_bytes(packed, "float32") == 64 * 16 * 4 + 64 * 32 + 64 * 2
    budget = make_budget(spec(FULL), packed, CPU, EngineConfig(max_seqs=1, context=16, chunk_tokens=1), F32)
    lines = {line.name: line.bytes for line in budget.lines}
    assert lines["workspace"] + lines["low-bit workspace"] == 2 * (4 * 32 + 3 * 64) * 4 + 64 * 128 * 2 * (4 + 4)
    plain = make_budget(spec(FULL), WEIGHTS, CPU, EngineConfig(max_seqs=1, context=16), F32)
    assert all(line.name != "low-bit workspace" for line in plain.lines)


def test_padding_is_beside_the_cache() -> None:
    """Bytes that are given for the cache are keys, values and states, whatever graphs need."""
    model, config = spec(FULL, DELTA), EngineConfig(cache_bytes=500_000, max_seqs=3, prefix_cache="off")
    state = state_bytes_per_sequence(model, F32)
    for graphs in ("on", "off"):
        card = replace(GPU, elsewhere=True)
        budget = make_budget(model, WEIGHTS, card, replace(config, graphs=graphs), F32)
        assert budget.layout.pages == ((500_000 - 3 * state) // (16 * 2 * 2 * 16 * 4),)
        assert [line.bytes for line in budget.lines if line.name == "padding"] == [state + 4096] * (graphs == "on")


def test_a_context_that_is_asked_for_has_room_beside_the_states() -> None:
    model = spec(FULL, DELTA)
    state, page = state_bytes_per_sequence(model, F32), 16 * 2 * 2 * 16 * 4
    cache = 64 * page + 5 * state
    budget = make_budget(model, WEIGHTS, CPU, EngineConfig(cache_bytes=cache, context=1024), F32)
    assert budget.max_seqs == 5 and budget.context == 1024
    assert any("the context of 1,024 tokens has room" in note for note in budget.notes)


def test_fewer_sequences_where_those_as_usual_leave_no_cache() -> None:
    """A slot's sampler takes 256 KiB with 64 Ki tokens: 64 of them are more than this card has beside the rest."""
    model = replace(spec(FULL, DELTA), vocab_size=65_536)
    base = make_budget(model, WEIGHTS, replace(GPU, elsewhere=True), EngineConfig(max_seqs=1, context=16), F32)
    limit = base.total_bytes + 8 * 2**20
    budget = make_budget(model, WEIGHTS, replace(GPU, elsewhere=True), EngineConfig(memory_bytes=limit), F32)
    assert 1 <= budget.max_seqs <= 32 and budget.total_bytes <= limit
    with pytest.raises(ConfigError, match="before its cache"):
        make_budget(model, WEIGHTS, replace(GPU, elsewhere=True), EngineConfig(memory_bytes=limit, max_seqs=64), F32)


def test_a_gpus_cache_is_refused_when_it_is_not_free() -> None:
    with pytest.raises(ConfigError, match="free; most of it is kv pages 0"):
        make_budget(spec(FULL, max_context=2**30), WEIGHTS, GPU, EngineConfig(cache_bytes=24 * GIB, max_seqs=1), F32)


def test_parts_of_a_packed_matrix_are_decoded_together() -> None:
    parts = tuple(Weight(f"{n}.weight_packed", "w.weight_packed", (64, 16), 64 * n, dtype="int32") for n in range(3))
    assert decoded_bytes(WeightMap(parts), 4) == 3 * decoded_bytes(WeightMap(parts[:1]), 4) == 3 * 64 * 128 * 16


def test_a_cpus_lines_are_what_each_takes_beyond_those_before() -> None:
    """One of them lies there at once."""
    config, model = EngineConfig(max_seqs=4, context=600, chunk_tokens=64), replace(spec(FULL, DELTA), vocab_size=9000)
    lines = {line.name: line.bytes for line in make_budget(model, WEIGHTS, CPU, config, F32).lines}
    group, tokens = cache_groups(model)[0], 4 * 38 * 16
    gathered = gathered_bytes(model, group, tokens, 4) + mask_bytes(model, group, 4)
    assert lines["workspace"] + lines["logits workspace"] == 3 * 64 * 9000 * 4
    assert sum(lines[name] for name in lines if name.endswith("workspace")) == gathered
