"""The keyed noise: its definition in plain integers, and that it looks independent over seeds, positions and tokens."""

import math

import pytest
import torch

from headrace.kernels.sample.noise import gumbel, row_keys, uniform

MASK = 2**64 - 1
BOUND = 5.5
"""Standard deviations that a test statistic may be off: 4e-8 by chance, and the numbers are fixed anyway."""


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _grid(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Uniforms [seeds, positions, tokens] in float64."""
    pairs = torch.cartesian_prod(seeds, positions)
    return uniform(row_keys(pairs[:, 0], pairs[:, 1]), tokens, torch.float64).view(len(seeds), len(positions), -1)


def test_is_splitmix64_in_plain_integers() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789]
    positions, tokens = [0, 1, 5, 262143, 2**40, 77], [0, 1, 2, 248319]
    got = uniform(row_keys(torch.tensor(seeds), torch.tensor(positions)), torch.tensor(tokens), torch.float64)
    for r, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        key = _mix((_mix((seed + 0x9E3779B97F4A7C15) & MASK) + position) & MASK)
        for c, token in enumerate(tokens):
            bits = _mix((key + token * 0x9E3779B97F4A7C15) & MASK) >> 11
            assert float(got[r, c]) == (bits + 1) * 2.0**-53


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lies_strictly_between_zero_and_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    u = uniform(torch.arange(50), torch.arange(20000), dtype)
    assert u.dtype == dtype and 0 < u.min() < 1e-5 and 1 - 1e-5 < u.max() < 1
    extremes = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    monkeypatch.setattr("headrace.kernels.sample.noise._mix_", lambda x: extremes[:, None].clone())
    u = uniform(torch.zeros(4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), dtype)
    assert 0 < u.min() and u.max() < 1
    assert gumbel(torch.zeros(4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), dtype).isfinite().all()


def test_float32_is_the_rounded_float64() -> None:
    keys, tokens = row_keys(torch.arange(10), torch.arange(10)), torch.arange(10000)
    assert torch.equal(uniform(keys, tokens, torch.float32), uniform(keys, tokens, torch.float64).float())


def test_takes_tokens_in_any_order() -> None:
    keys, tokens = row_keys(torch.arange(4), torch.arange(4)), torch.randint(0, 50000, (4, 9))
    whole = uniform(keys, torch.arange(50000), torch.float64)
    assert torch.equal(uniform(keys, tokens, torch.float64), whole.gather(1, tokens))


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_is_uniform_along_each_axis(axis: str) -> None:
    one, many = torch.tensor([7]), torch.arange(400000)
    u = _grid(*(many if name == axis else one for name in ("seed", "position", "token"))).flatten()
    bins = 1000
    observed = torch.bincount((u * bins).long(), minlength=bins).double()
    expected = len(u) / bins
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    assert abs(chi2 - (bins - 1)) < BOUND * math.sqrt(2 * (bins - 1))
    low = torch.bincount((u * 2**53).long() & 255, minlength=256).double()  # the lowest bits too
    chi2 = float(((low - len(u) / 256) ** 2 / (len(u) / 256)).sum())
    assert abs(chi2 - 255) < BOUND * math.sqrt(510)


@pytest.mark.parametrize(
    "lag", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (0, 1, -1), (1, -1, 0), (1, 0, -1), (0, 0, 2), (0, 2, 0)]
)
def test_neighbours_are_uncorrelated(lag: tuple[int, int, int]) -> None:
    """Also on diagonals, where (position, token) would collide if they were only added."""
    n = (12, 60, 500)
    u = _grid(torch.arange(n[0]), torch.arange(n[1]), torch.arange(n[2]))
    shifted = torch.roll(u, shifts=lag, dims=(0, 1, 2))
    r = torch.corrcoef(torch.stack([u.flatten(), shifted.flatten()]))[0, 1]
    assert abs(float(r)) * math.sqrt(u.numel()) < BOUND


def test_no_row_is_another_rows_noise_moved() -> None:
    """No value comes twice in 2^53 over seeds, positions and tokens together."""
    u = _grid(torch.tensor([0, 1, 2, 3, 2**32, -1, -2]), torch.arange(40), torch.arange(3000)).flatten()
    assert len(u.unique()) == len(u)


@pytest.mark.parametrize("word", ["seed", "position", "token"])
def test_every_input_bit_flips_half_of_the_output(word: str) -> None:
    bits, trials = (64 if word == "seed" else 20), 4000
    rng = torch.Generator().manual_seed(1)
    base = {name: torch.randint(0, 2**20, (trials,), generator=rng) for name in ("seed", "position", "token")}

    def output(changed: dict[str, torch.Tensor]) -> torch.Tensor:
        keys = row_keys(changed["seed"], changed["position"])
        return (uniform(keys, changed["token"][:, None], torch.float64)[:, 0] * 2**53).long() - 1

    for bit in range(bits):
        flip = 1 << bit if bit < 63 else -(2**63)
        difference = output(base) ^ output({**base, word: base[word] ^ flip})
        flipped = ((difference[:, None] >> torch.arange(53)) & 1).double().mean(0)  # [53] share of trials
        assert ((flipped - 0.5).abs() * 2 * math.sqrt(trials)).max() < BOUND, bit


def test_gumbel_has_its_distribution_far_into_the_tail() -> None:
    keys = row_keys(torch.arange(400), torch.zeros(400, dtype=torch.int64))
    g = gumbel(keys, torch.arange(10000), torch.float32).double().flatten()
    for x in (-2.0, -1.0, 0.0, 1.0, 3.0, 6.0, 10.0, 12.0):
        p = -math.expm1(-math.exp(-x))  # P(G > x)
        above = float((g > x).double().mean())
        assert abs(above - p) < BOUND * math.sqrt(p * (1 - p) / len(g)) + 1 / len(g), x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_has_the_same_uniforms(dtype: torch.dtype) -> None:
    keys, tokens = row_keys(torch.arange(64) - 32, torch.arange(64) * 1000), torch.arange(50000)
    assert torch.equal(uniform(keys.cuda(), tokens.cuda(), dtype).cpu(), uniform(keys, tokens, dtype))
    assert torch.equal(row_keys(torch.arange(64).cuda() - 32, torch.arange(64).cuda() * 1000).cpu(), keys)
