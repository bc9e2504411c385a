"""The sampler over steps: what a slot remembers, forgets and resumes."""

import pytest
import torch

from headrace.plan.sampler_memory import sampler_bytes
from headrace.runner.sampler import Sampler
from headrace.types import MAX_LOGIT_BIAS, Admission, Request, SamplingParams

VOCAB = 200
EOS = 5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
FULL = SamplingParams(temperature=0.9, top_k=40, top_p=0.97, min_p=0.001, presence_penalty=0.4, frequency_penalty=0.3,
                      repetition_penalty=1.2, logit_bias={3: 1.5, 8: -100.0}, min_tokens=6)  # fmt: skip
SOME = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(top_k=5, logprobs=2),
    SamplingParams(top_p=0.8, min_tokens=3),
    SamplingParams(temperature=0, frequency_penalty=2.0),
    FULL,
]


def _sampler(*params: SamplingParams, dtype: torch.dtype = torch.float64, vocab_size: int = VOCAB) -> Sampler:
    """Slot i serves params[i], with seed i."""
    sampler = Sampler(len(params), vocab_size, torch.device("cpu"), dtype)
    sampler.admit([_admission(slot, p) for slot, p in enumerate(params)])
    return sampler


def _admission(slot: int, params: SamplingParams, output: tuple[int, ...] = (), seed: int | None = None) -> Admission:
    request = Request(f"r{slot}", (1, 2, 3, 1), params, slot if seed is None else seed, max_tokens=99, eos_ids=(EOS,))
    return Admission(sequence=slot, slot=slot, request=request, output=output)


def _logits(seed: int, rows: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3).to(dtype)


def _run(sampler: Sampler, slot: int, steps: range) -> list[int]:
    return [int(sampler.draw(_logits(step, dtype=sampler.dtype), [slot], [step]).tokens) for step in steps]


@pytest.mark.parametrize(("slots", "vocab_size"), [(1, 7), (3, 1000), (8, 49152)])
@DTYPES
def test_memory_is_what_the_plan_says(slots: int, vocab_size: int, dtype: torch.dtype) -> None:
    sampler = Sampler(slots, vocab_size, torch.device("cpu"), dtype)
    tensors = [t for t in (*sampler.state.tensors(), *vars(sampler).values()) if isinstance(t, torch.Tensor)]
    assert sum(t.untyped_storage().nbytes() for t in tensors) == sampler_bytes(slots, vocab_size)


def test_logits_of_16_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        Sampler(1, VOCAB, torch.device("cpu"), torch.bfloat16)


@DTYPES
def test_alone_and_in_company_alike(dtype: torch.dtype) -> None:
    """Six different requests over twelve steps, rows in another order every step, against each one alone."""
    alone = [_run(_sampler(*SOME, dtype=dtype), slot, range(12)) for slot in range(len(SOME))]
    sampler, together = _sampler(*SOME, dtype=dtype), [[] for _ in SOME]
    for step in range(12):
        order = torch.randperm(len(SOME), generator=torch.Generator().manual_seed(step)).tolist()
        drawn = sampler.draw(_logits(step, dtype=dtype).repeat(len(SOME), 1), order, [step] * len(SOME))
        for slot, token in zip(order, drawn.tokens.tolist(), strict=True):
            together[slot].append(token)
        assert sampler.next_tokens[order].tolist() == drawn.tokens.tolist()
    assert together == alone


@pytest.mark.parametrize("params", SOME, ids=range(len(SOME)))
@pytest.mark.parametrize("after", [1, 2, 7])
def test_a_preempted_sequence_goes_on_as_if_it_never_was(params: SamplingParams, after: int) -> None:
    whole = _run(_sampler(params), 0, range(15))
    sampler = _sampler(params, SamplingParams(), FULL)
    assert _run(sampler, 0, range(after)) == whole[:after]
    sampler.admit([_admission(0, FULL, seed=9)])  # someone else has the slot meanwhile
    _run(sampler, 0, range(4))
    sampler.admit([_admission(2, params, output=tuple(whole[:after]), seed=0)])
    assert _run(sampler, 2, range(after, 15)) == whole[after:]


def test_a_slot_forgets_its_last_occupant() -> None:
    later = [*SOME, SamplingParams(logit_bias={1: 1.0}, min_tokens=9, seed=1)]
    for params in later:
        sampler = _sampler(FULL)
        _run(sampler, 0, range(3))
        sampler.admit([_admission(0, params)])
        assert _run(sampler, 0, range(3, 9)) == _run(_sampler(params), 0, range(3, 9))


def test_an_old_stop_mask_does_not_reach_the_next_occupant() -> None:
    """The newcomer has min_tokens but no EOS, and company whose EOS is being held back."""
    sampler = _sampler(FULL, FULL)
    free = SamplingParams(temperature=0, min_tokens=9, logit_bias={1: 0.5})
    sampler.admit([Admission(0, 0, Request("x", (1,), free, 0, max_tokens=9))])
    logits = torch.zeros(2, VOCAB, dtype=torch.float64)
    logits[:, EOS] = 50.0
    tokens = sampler.draw(logits, [0, 1], [1, 1]).tokens.tolist()
    assert tokens[0] == EOS and tokens[1] != EOS


def test_the_same_seed_gives_the_same_tokens_in_any_slot() -> None:
    sampler = _sampler(*[SamplingParams()] * 3)
    sampler.admit([_admission(1, SamplingParams(), seed=0)])
    first, second, third = (_run(sampler, slot, range(30)) for slot in range(3))
    assert first == second != third


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 2**64 - 1])
def test_any_seed_is_taken(seed: int) -> None:
    sampler = _sampler(SamplingParams())
    sampler.admit([_admission(0, SamplingParams(), seed=seed)])
    assert 0 <= _run(sampler, 0, range(1))[0] < VOCAB


def test_top_k_of_one_is_greedy() -> None:
    sampler = _sampler(SamplingParams(top_k=1, temperature=5.0), SamplingParams(temperature=0))
    logits = (_logits(3, 2) * 2).round() / 2  # many equal
    for position in range(20):
        tokens = sampler.draw(logits[:1].repeat(2, 1).roll(position, 1), [0, 1], [position] * 2).tokens.tolist()
        assert tokens[0] == tokens[1]


def test_penalties_follow_counts_over_steps() -> None:
    """Greedy on flat logits: each step a token's logit falls by what the formula says, and the next best is taken."""
    sampler = _sampler(SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=0.25))
    logits, counts, tokens = torch.zeros(1, VOCAB, dtype=torch.float64), {10: 0, 20: 0, 30: 0}, []
    logits[0, [10, 20, 30]] = torch.tensor([3.0, 2.7, 2.2], dtype=torch.float64)
    for position in range(12):
        best = max(counts, key=lambda t: float(logits[0, t]) - 0.25 * counts[t] - 0.5 * (counts[t] > 0))
        token = int(sampler.draw(logits, [0], [position]).tokens)
        assert token == best
        counts[token] += 1
        tokens.append(token)
    assert set(tokens) == {10, 20, 30} and tokens.count(10) > tokens.count(30)


def test_repetition_penalty_sees_the_prompt_and_presence_does_not() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.float64)
    logits[0, [2, 9]] = torch.tensor([4.0, 3.5], dtype=torch.float64)  # 2 is in the prompt
    assert int(_sampler(SamplingParams(temperature=0, repetition_penalty=1.5)).draw(logits, [0], [0]).tokens) == 9
    assert int(_sampler(SamplingParams(temperature=0, presence_penalty=2.0)).draw(logits, [0], [0]).tokens) == 2


def test_min_tokens_holds_back_eos_and_stop_ids() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.float64)
    logits[0, [EOS, 7, 60]] = torch.tensor([9.0, 8.0, 7.0], dtype=torch.float64)
    sampler = _sampler(SamplingParams(temperature=0, min_tokens=3, stop_token_ids=(7, EOS, VOCAB + 4)))
    assert [int(sampler.draw(logits, [0], [p]).tokens) for p in range(5)] == [60, 60, 60, EOS, EOS]
    sampler.admit([_admission(0, SamplingParams(temperature=0, min_tokens=3), output=(60, 61))])
    assert [int(sampler.draw(logits, [0], [p]).tokens) for p in range(2)] == [7, EOS]


def test_min_tokens_reached_before_a_preemption_stays_reached() -> None:
    """In company whose EOS is still held back, so that the device's own count decides."""
    sampler = _sampler(FULL, FULL)
    params = SamplingParams(temperature=0, min_tokens=3, logit_bias={1: 0.5}, presence_penalty=0.1)
    sampler.admit([_admission(0, params, output=(60, 61))])
    logits = torch.zeros(2, VOCAB, dtype=torch.float64)
    logits[:, EOS] = 50.0
    firsts = [sampler.draw(logits, [0, 1], [p, p]).tokens.tolist()[0] for p in range(2)]
    assert firsts[0] != EOS and firsts[1] == EOS


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 1e-300])
def test_bias_of_100_decides(temperature: float) -> None:
    sampler = _sampler(
        SamplingParams(temperature=temperature, logit_bias={77: 100.0}),
        SamplingParams(temperature=temperature, logit_bias={t: -100.0 for t in range(VOCAB) if t != 42}),
        SamplingParams(temperature=temperature, logit_bias={VOCAB: 100.0, VOCAB + 9: 100.0, 0: 100.0}),
        dtype=torch.float32,
    )
    for position in range(20):
        logits = _logits(position, 3, torch.float32)
        assert sampler.draw(logits, [0, 1, 2], [position] * 3).tokens.tolist() == [77, 42, 0]


def test_the_most_biases_that_a_request_may_have() -> None:
    bias = dict.fromkeys(range(MAX_LOGIT_BIAS), -100.0)
    sampler = _sampler(SamplingParams(logit_bias=bias), vocab_size=MAX_LOGIT_BIAS + 2)
    logits = torch.zeros(1, MAX_LOGIT_BIAS + 2, dtype=torch.float64)
    tokens = {int(sampler.draw(logits, [0], [p]).tokens) for p in range(40)}
    assert tokens == {MAX_LOGIT_BIAS, MAX_LOGIT_BIAS + 1}


@DTYPES
@pytest.mark.parametrize("params", [SOME[0], SOME[1], SOME[2], SamplingParams(top_p=0.9)])
def test_the_only_possible_token_is_drawn(dtype: torch.dtype, params: SamplingParams) -> None:
    logits = torch.full((1, VOCAB), float("-inf"), dtype=dtype)
    logits[0, 123] = -1e30
    assert all(int(_sampler(params, dtype=dtype).draw(logits, [0], [p]).tokens) == 123 for p in range(20))


@DTYPES
def test_extreme_temperatures(dtype: torch.dtype) -> None:
    sampler = _sampler(SamplingParams(temperature=1e-5), SamplingParams(temperature=100.0), dtype=dtype)
    logits = torch.linspace(-3e4, 3e4, VOCAB, dtype=dtype).repeat(2, 1)
    logits[1] = _logits(1, dtype=dtype)[0]
    drawn = [sampler.draw(logits, [0, 1], [p, p]).tokens.tolist() for p in range(100)]
    assert {cold for cold, _ in drawn} == {VOCAB - 1}
    assert len({hot for _, hot in drawn}) > 50


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_a_broken_row_draws_some_token_and_leaves_its_company_alone(bad: float) -> None:
    for params in SOME:
        sampler = _sampler(params, FULL)
        logits = _logits(1, 2)
        expected = int(_sampler(params, FULL).draw(logits[1:], [1], [4]).tokens)
        logits[0] = bad
        tokens = sampler.draw(logits, [0, 1], [4, 4]).tokens.tolist()
        assert 0 <= tokens[0] < VOCAB and tokens[1] == expected


def test_logprobs_are_those_of_the_models_own_logits() -> None:
    params = [SamplingParams(temperature=0.3, top_k=1, logit_bias={50: 100.0}, logprobs=k) for k in (None, 0, 3, 1)]
    sampler, logits = _sampler(*params), _logits(2, 4)
    drawn = sampler.draw(logits, [3, 0, 2, 1], [4] * 4)
    rows, exact = [logprobs for _, logprobs in drawn.results()], logits.log_softmax(-1)
    assert [len(row) for row in rows] == [1, 0, 1, 1]
    for row, count in ((0, 1), (2, 3), (3, 0)):
        (entry,) = rows[row]
        assert entry.token == 50 and entry.logprob == pytest.approx(float(exact[row, 50]), abs=1e-9)
        best = exact[row].topk(count)
        assert [t for t, _ in entry.top] == best.indices.tolist()
        assert [v for _, v in entry.top] == pytest.approx(best.values.tolist(), abs=1e-9)
    assert type(rows[0][0].token) is int and type(rows[0][0].top[0][1]) is float


def test_nothing_is_reported_unless_asked_for() -> None:
    sampler = _sampler(SamplingParams(), SamplingParams(temperature=0))
    drawn = sampler.draw(_logits(1, 2), [0, 1], [1, 1])
    assert drawn.scored.scores is None and [logprobs for _, logprobs in drawn.results()] == [(), ()]


def test_prompt_logprobs() -> None:
    sampler, logits = _sampler(SamplingParams()), _logits(4, 5)
    tokens = torch.tensor([7, 8, 9, 0, 199])
    entries, exact = sampler.score(logits, tokens, 2).read(), logits.log_softmax(-1)
    assert [e.token for e in entries] == tokens.tolist()
    assert [e.logprob for e in entries] == pytest.approx(exact.gather(1, tokens[:, None])[:, 0].tolist(), abs=1e-9)
    assert [[t for t, _ in e.top] for e in entries] == exact.topk(2).indices.tolist()
    assert all(e.top == () for e in sampler.score(logits, tokens, 0).read())
    assert sampler.score(logits[:0], tokens[:0], 2).read() == ()


@pytest.mark.gpu
def test_a_gpu_draws_the_same_and_is_never_waited_for() -> None:
    """Twelve steps in float64 against the CPU; an operation that waits for the device raises."""
    cpu, gpu = _sampler(*SOME), Sampler(len(SOME), VOCAB, torch.device("cuda"), torch.float64)
    slots = list(range(len(SOME)))
    logits = [_logits(step).repeat(len(SOME), 1) for step in range(12)]
    on_gpu = [x.cuda() for x in logits]
    torch.cuda.set_sync_debug_mode("error")
    try:
        gpu.admit([_admission(slot, p) for slot, p in enumerate(SOME)])
        drawn = [gpu.draw(x, slots, [step] * len(SOME)) for step, x in enumerate(on_gpu)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, (x, found) in enumerate(zip(logits, drawn, strict=True)):
        assert found.tokens.tolist() == cpu.draw(x, slots, [step] * len(SOME)).tokens.tolist()
