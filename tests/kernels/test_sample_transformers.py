"""Each step of a draw against the logits processors of transformers, on random logits."""

import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from headrace.kernels.sample.reference import adjusted, probabilities
from headrace.kernels.sample.slots import ENDS_MESSAGE, GENERATED_ONCE, IN_PROMPT, SlotState

VOCAB = 400
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0, "frequency": 0.0, "repetition": 1.0}


def _state(top_k: int = 0, min_tokens: int = 0, generated: int = 0, **numbers: float) -> SlotState:
    state = SlotState.allocate(1, VOCAB, torch.device("cpu"))
    state.integers[0] = torch.tensor([11, top_k, min_tokens, generated])
    state.numbers[0] = torch.tensor(list((NEUTRAL | numbers).values()), dtype=torch.float64)
    return state


def _logits(seed: int, step: float = 0.0) -> torch.Tensor:
    x = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    return (x / step).round() * step if step else x


def _by_transformers(logits: torch.Tensor, *processors: LogitsProcessor, ids: tuple[int, ...] = (0,)) -> torch.Tensor:
    scores = logits[None].clone()
    for processor in processors:
        scores = processor(torch.tensor([ids]), scores)
    return scores[0]


def _assert_same(logits: torch.Tensor, state: SlotState, *processors: LogitsProcessor) -> None:
    expected = _by_transformers(logits, *processors).softmax(-1)
    found = probabilities(logits, state, 0)
    assert torch.equal(found > 0, expected > 0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 1.7, 100.0])
def test_temperature(temperature: float) -> None:
    _assert_same(_logits(1), _state(temperature=temperature), TemperatureLogitsWarper(temperature))


@pytest.mark.parametrize("top_k", [1, 2, 50, 400, 1000])
def test_top_k(top_k: int) -> None:
    _assert_same(_logits(2), _state(top_k=min(top_k, VOCAB)), TopKLogitsWarper(top_k))


@pytest.mark.parametrize("top_k", [1, 2, 50])
def test_top_k_among_equals_takes_the_lowest_ids(top_k: int) -> None:
    """transformers keeps all that equal the k-th; here exactly k of those stay, the lowest ids."""
    logits = _logits(3, step=1.0)
    theirs = _by_transformers(logits, TopKLogitsWarper(top_k)).isfinite()
    ours = probabilities(logits, _state(top_k=top_k), 0) > 0
    boundary = logits[theirs].min()
    tied = (logits == boundary).nonzero()[:, 0].tolist()
    above = int((logits > boundary).sum())
    assert torch.equal(ours & (logits > boundary), theirs & (logits > boundary))
    assert (ours & (logits == boundary)).nonzero()[:, 0].tolist() == tied[: top_k - above]


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_p(top_p: float) -> None:
    for seed in range(20):
        _assert_same(_logits(seed), _state(top_p=top_p), TopPLogitsWarper(top_p))


def test_top_p_among_equals_keeps_as_many() -> None:
    for seed in range(20):
        logits = _logits(seed, step=1.0)
        theirs = _by_transformers(logits, TopPLogitsWarper(0.8)).isfinite()
        ours = probabilities(logits, _state(top_p=0.8), 0) > 0
        assert sorted(logits[ours].tolist()) == sorted(logits[theirs].tolist())


@pytest.mark.parametrize("min_p", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("step", [0.0, 1.0])
def test_min_p(min_p: float, step: float) -> None:
    for seed in range(20):
        _assert_same(_logits(seed, step), _state(min_p=min_p), MinPLogitsWarper(min_p))


def test_all_warpers_in_their_order() -> None:
    for seed in range(40):
        state = _state(top_k=60, temperature=1.4, top_p=0.9, min_p=0.05)
        warpers = (TemperatureLogitsWarper(1.4), TopKLogitsWarper(60), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05))
        _assert_same(_logits(seed), state, *warpers)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 100.0])
@pytest.mark.parametrize("step", [0.0, 1.0])
def test_repetition_penalty(penalty: float, step: float) -> None:
    state, logits = _state(repetition=penalty), _logits(5, step)
    prompt, output = tuple(range(0, 100, 3)), tuple(range(200, 300, 7)) * 2
    state.marks[0, list(prompt)] = IN_PROMPT
    state.marks[0, list(set(output))] = 2 * GENERATED_ONCE
    expected = _by_transformers(logits, RepetitionPenaltyLogitsProcessor(penalty), ids=prompt + output)
    torch.testing.assert_close(adjusted(logits, state, 0), expected, atol=0, rtol=1e-15)


def test_presence_and_frequency_penalty() -> None:
    """OpenAI's formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence, c the counts of generated tokens alone."""
    state, logits = _state(presence=0.75, frequency=-0.25), _logits(6)
    state.marks[0, 3] = IN_PROMPT
    state.marks[0, 4] = ENDS_MESSAGE | 3 * GENERATED_ONCE
    state.marks[0, 5] = IN_PROMPT | 1 * GENERATED_ONCE
    expected = logits.tolist()
    expected[4] -= 0.75 - 3 * 0.25
    expected[5] -= 0.75 - 0.25
    assert adjusted(logits, state, 0).tolist() == pytest.approx(expected, abs=1e-12)


def test_logit_bias() -> None:
    state, logits = _state(), _logits(7)
    state.bias_tokens[0, :3] = torch.tensor([9, 0, 399])
    state.bias_values[0, :3] = torch.tensor([2.5, -100.0, 100.0])
    expected = _by_transformers(logits, SequenceBiasLogitsProcessor({(9,): 2.5, (0,): -100.0, (399,): 100.0}))
    torch.testing.assert_close(adjusted(logits, state, 0), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("generated", [0, 1, 2, 3])
def test_min_tokens(generated: int) -> None:
    state, logits = _state(min_tokens=2, generated=generated), _logits(8)
    state.marks[0, [7, 250]] = ENDS_MESSAGE
    processor = MinNewTokensLengthLogitsProcessor(5, 2, [7, 250])
    assert torch.equal(adjusted(logits, state, 0), _by_transformers(logits, processor, ids=(1,) * (5 + generated)))
