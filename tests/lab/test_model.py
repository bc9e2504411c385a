"""The model that is trained is transformers' model, name by name and number by number."""

from __future__ import annotations

import pytest
import torch
from lab.delta import recurrence
from lab.model import LabModel
from lab.shape import Shape
from tests.support.oracle import transformers

SMALL = Shape(vocabulary=97, hidden=48, layers=4, intermediate=40, heads=4, kv_heads=2, head_size=32, key_heads=2,
              value_heads=4, state_size=16, context=128)


@pytest.fixture(scope="module")
def model() -> LabModel:
    torch.manual_seed(0)
    model = LabModel(SMALL)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight") or "_norm." in name or "layernorm" in name:
            weight.data += torch.randn_like(weight) * 0.2
    return model


@torch.no_grad()
def test_is_transformers_model(model: LabModel) -> None:
    config = transformers.Qwen3_5TextConfig(**SMALL.config(end=2))
    theirs = transformers.Qwen3_5ForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    theirs.tie_weights()
    ids = torch.randint(97, (2, 37), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)


def test_has_gradients_everywhere(model: LabModel) -> None:
    ids = torch.randint(97, (2, 16), generator=torch.Generator().manual_seed(1))
    model(ids).square().mean().backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not without


@torch.no_grad()
def test_later_tokens_change_nothing_before_them(model: LabModel) -> None:
    ids = torch.randint(97, (1, 20), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 97
    torch.testing.assert_close(model(ids)[:, :12], model(changed)[:, :12])
    assert not torch.allclose(model(ids)[:, 12:], model(changed)[:, 12:])


def test_sizes_of_what_is_shipped() -> None:
    count = sum(weight.numel() for weight in LabModel(Shape()).parameters())
    assert 14.5e6 < count < 16e6  # with its drafters 19.8 million: 40 MB in bf16 hold no more


def test_recurrence_reads_after_it_writes() -> None:
    """One token: o = (k . q) beta v, with normalised q scaled by size ** -0.5."""
    q, k, v = (torch.randn(1, 1, 1, 4) for _ in range(3))
    out = recurrence(q, k, v, torch.tensor([[[-0.5]]]), torch.tensor([[[0.7]]]))
    unit = [x / x.norm() for x in (q, k)]
    torch.testing.assert_close(out, 0.7 * v * (unit[0] * unit[1]).sum() / 2)
