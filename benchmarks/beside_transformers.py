"""By hand, on a machine with a GPU: `PYTHONPATH=src:. python benchmarks/beside_transformers.py`, the whole 27B shape.

Random bf16 weights, the same memory for transformers (5.17, without fla) and for us. Logits of a prompt, most of it computed at
once and its last tokens one by one from the cache. Then random 4-bit weights, and what they stand for in bf16 in place of the
first ones: our logits of both, and transformers'. At the end `generate` of both, milliseconds a step.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu import measure
from tests.support.oracle import transformers
from torch import Tensor, nn

from headrace.cache.layout import CacheLayout, cache_groups
from headrace.config import EngineConfig
from headrace.engine.core import EngineCore
from headrace.hardware import detect
from headrace.kernels.ahead import compiling_ahead
from headrace.kernels.low_bit_linear.reference import dequantized
from headrace.layers.linear import Linear
from headrace.models.decoder import Decoder, build_decoder
from headrace.plan.budget import make_budget
from headrace.plan.checkpoint import Model
from headrace.plan.dtypes import resolve_dtypes
from headrace.plan.shapes import declared_model
from headrace.random_weights import make_weights
from headrace.runner.batch import Packer
from headrace.runner.page_tables import PageTables
from headrace.runner.pools import allocate_pools
from headrace.runner.rehearsal import rehearse
from headrace.runner.runner import Runner
from headrace.scheduler.scheduler import Scheduler
from headrace.types import PageUpdate, Row

PAGE_TOKENS = 16
PARTS = ("logits", "low-bit", "steps")


def make_decoder(model: Model, device: torch.device, seed: int | None) -> Decoder:
    """With random weights; without any if there is no seed."""
    decoder = build_decoder(model.spec, dtype=torch.bfloat16, device=device, formats=model.formats)
    if seed is not None:
        make_weights(decoder, seed)
    decoder.prepare()
    return decoder


def oracle(model: Model, decoder: Decoder, device: torch.device) -> Any:
    """transformers' model whose parameters are views of the decoder's."""
    config = transformers.Qwen3_5TextConfig(**model.checkpoint.config)
    with torch.device("meta"):
        net = transformers.Qwen3_5ForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    parameters = dict(decoder.named_parameters())
    for weight in model.weight_map.weights:
        rows = parameters[weight.target][weight.offset : weight.offset + weight.shape[0]]
        path, _, name = weight.source.rpartition(".")
        shared = rows.unsqueeze(1) if weight.transform == "squeeze_conv" else rows
        setattr(net.get_submodule(path), name, nn.Parameter(shared, requires_grad=False))
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)
    assert not any(tensor.is_meta for tensor in (*net.parameters(), *net.buffers()))
    return net.eval()


# Logits


def our_logits(model: Model, decoder: Decoder, device: torch.device, prompt: list[int], alone: int) -> Tensor:
    """[T, V] float32: the last `alone` tokens one by one."""
    with compiling_ahead():
        _our_logits(model, decoder.outline(), device, prompt, alone)
    return _our_logits(model, decoder, device, prompt, alone)


@torch.inference_mode()
def _our_logits(model: Model, decoder: Decoder, device: torch.device, prompt: list[int], alone: int) -> Tensor:
    dtypes = resolve_dtypes(EngineConfig(device=device.type, dtype="bfloat16"), detect(device.type), "bfloat16")
    groups = cache_groups(model.spec)
    pages = -(-len(prompt) // PAGE_TOKENS)
    layout = CacheLayout(groups, PAGE_TOKENS, (pages,) * len(groups), 1)
    pools, tables = allocate_pools(model.spec, layout, dtypes, device), PageTables(layout, len(prompt), device)
    packer = Packer(tables, len(prompt), 1, pages * len(groups), device)
    updates = tuple(PageUpdate(group.index, 0, tuple(range(pages))) for group in groups)
    begun, found = 0, []
    for count in (len(prompt) - alone, *(1,) * alone):
        row = Row(0, 0, begun, tuple(prompt[begun : begun + count]), (), updates if begun == 0 else ())
        batch, _ = packer.pack((row,), torch.zeros(1, dtype=torch.int64, device=device))
        found.append(decoder.logits(decoder(batch, pools)))
        begun += count
    return torch.cat(found)


@torch.inference_mode()
def their_logits(net: Any, device: torch.device, prompt: list[int], alone: int) -> Tensor:
    """As `our_logits`."""
    tokens, found, cache = torch.tensor([prompt], device=device), [], None
    for part in torch.split(tokens, [len(prompt) - alone, *(1,) * alone], dim=1):
        out = net(input_ids=part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        found.append(out.logits[0].float())
    return torch.cat(found)


def compare(name: str, ours: Tensor, theirs: Tensor, alone: int) -> dict[str, Any]:
    """Of the tokens computed together, and of those computed one by one."""
    figures: dict[str, Any] = {"name": name}
    for part, at in (("together", slice(None, -alone)), ("one by one", slice(-alone, None))):
        a, b = ours[at].double(), theirs[at].double()
        rms = float(b.square().mean().sqrt())
        cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1)
        same = float((a.argmax(-1) == b.argmax(-1)).double().mean())
        figures[part] = {
            "least_cosine": float(cosine.min()), "mean_cosine": float(cosine.mean()), "rms": rms,
            "largest_error_over_rms": float((a - b).abs().max()) / rms, "rms_error_over_rms":
            float((a - b).square().mean().sqrt()) / rms, "same_best": same,
        }
        print(f"{name}, {len(a)} tokens {part}: " + ", ".join(f"{key} {value:.5f}" for key, value in figures[part].items()))
    return figures


# Generation


def their_step_ms(net: Any, device: torch.device, users: int, prompt_tokens: int, steps: int) -> float:
    """Milliseconds of one step of transformers' generate: what `steps` tokens more take, sampled as we do."""
    tokens = torch.randint(0, net.config.vocab_size, (users, prompt_tokens), device=device)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "pad_token_id": 0}
    seconds = []
    for count in (1, 1, steps + 1):  # the first warms up
        torch.cuda.synchronize()
        began = time.perf_counter()
        config = transformers.GenerationConfig(max_new_tokens=count, min_new_tokens=count, **sampling)
        made = net.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
        torch.cuda.synchronize()
        assert made.shape[1] == prompt_tokens + count
        seconds.append(time.perf_counter() - began)
    return (seconds[2] - seconds[1]) / steps * 1e3


def make_core(model: Model, decoder: Decoder, device: torch.device, users: int, prompt_tokens: int) -> EngineCore:
    hardware = detect(device.type)
    config = EngineConfig(
        device=device.type, dtype="bfloat16", max_seqs=users, context=prompt_tokens + 256,
        cache_bytes=(users + 1) * (10**8 + (prompt_tokens + 512) * 65_536),
    )
    dtypes = resolve_dtypes(config, hardware, "bfloat16")
    budget = make_budget(model.spec, model.weight_map, hardware, config, dtypes)
    rehearse(
        model.spec, decoder, budget.layout, dtypes, device, context=budget.context, chunk_tokens=budget.chunk_tokens
    )
    runner = Runner(
        model.spec, decoder, budget.layout, dtypes, device, context=budget.context, chunk_tokens=budget.chunk_tokens
    )
    return EngineCore(Scheduler(budget.layout, chunk_tokens=budget.chunk_tokens), runner, depth=2)


def compare_steps(model: Model, decoder: Decoder, net: Any, device: torch.device, options: argparse.Namespace) -> list[Any]:
    core = make_core(model, decoder, device, max(options.users), options.prompt)
    found = []
    for users in options.users:
        for steps in (2, options.steps):  # the first warms up
            ours = measure(core, model.spec.vocab_size, users, options.prompt, steps)
        ours_ms = users / ours["decode_tokens_per_s"] * 1e3
        theirs_ms = their_step_ms(net, device, users, options.prompt, options.their_steps)
        print(f"{users} users, {options.prompt} tokens each: transformers {theirs_ms:.1f} ms a step, ours {ours_ms:.2f} ms")
        found.append({"users": users, "their_step_ms": theirs_ms, "our_step_ms": ours_ms})
    core.close()
    return found


# 4 bits


@torch.no_grad()
def stand_for(low: Decoder, plain: Decoder) -> None:
    """Give `plain` the weights that `low`'s codes stand for."""
    targets = dict(plain.named_parameters())
    for path, module in low.named_modules():
        packed = getattr(module, "weight_packed", None)
        if isinstance(module, Linear) and packed is not None:
            zero = getattr(module, "weight_zero_point", None)
            scale = module.get_parameter("weight_scale")
            targets[f"{path}.weight"].copy_(dequantized(packed, scale, zero, tiled=module.prepared, dtype=torch.bfloat16))
    for name, parameter in low.named_parameters():
        if name in targets:
            targets[name].copy_(parameter)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3.8-27b")
    parser.add_argument("--low-bit", default="w4a16-head8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=512, help="of the prompt whose logits are compared")
    parser.add_argument("--alone", type=int, default=8, help="how many of them are computed one by one")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--users", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of a user's prompt")
    parser.add_argument("--steps", type=int, default=64, help="of ours that are timed")
    parser.add_argument("--their-steps", type=int, default=12, help="of transformers' that are timed")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    device, results = torch.device(options.device), {}
    model, low_model = declared_model(options.shape), declared_model(f"{options.shape}:{options.low_bit}")
    prompt = torch.randint(0, model.spec.vocab_size, (options.tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    given = (device, prompt, options.alone)

    decoder = make_decoder(model, device, seed=None if options.parts == ["low-bit"] else 0)
    net = oracle(model, decoder, device)
    results["logits"] = []
    if "logits" in options.parts:
        ours, theirs = our_logits(model, decoder, *given), their_logits(net, *given)
        results["logits"].append(compare("bf16, transformers", ours, theirs, options.alone))
    if "low-bit" in options.parts:
        low = make_decoder(low_model, device, seed=1)
        stand_for(low, decoder)
        ours = our_logits(low_model, low, *given)
        del low
        for name, theirs in (("the bf16 weights they stand for", our_logits(model, decoder, *given)),
                             ("those in transformers", their_logits(net, *given))):
            results["logits"].append(compare(f"{options.low_bit}, {name}", ours, theirs, options.alone))
    results["steps"] = compare_steps(model, decoder, net, device, options) if "steps" in options.parts else []
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
