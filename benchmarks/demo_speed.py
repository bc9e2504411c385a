"""The demo model in float32 on a CPU, headrace beside transformers' generate: `python benchmarks/demo_speed.py`.

Both get the same weights, prompt and number of new tokens, greedy, with the same threads; rounds alternate, and the median of
each counts. Tokens are compared too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from headrace import LLM, SamplingParams
from headrace.loader import load_weights
from headrace.models.decoder import build_decoder
from headrace.plan.checkpoint import Model, identify, open_checkpoint
from headrace.plan.demo import demo_model_path

PROMPT = "<|im_start|>user\nTell me a long story about a river and a mill.<|im_end|>\n<|im_start|>assistant\n"


def transformers_model(model: Model) -> nn.Module:
    """transformers' own class with the checkpoint's weights, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaForCausalLM(LlamaConfig(**model.checkpoint.config)).float().eval()
    decoder = build_decoder(model.spec, dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, decoder)
    parameters = dict(decoder.named_parameters())
    rows = {w.source: parameters[w.target][w.offset : w.offset + w.shape[0]] for w in model.weight_map.weights}
    missing, unexpected = theirs.load_state_dict(rows, strict=False)
    assert missing in ([], ["lm_head.weight"]) and not unexpected  # the head is tied
    return theirs


def timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    began = time.perf_counter()
    tokens = run()
    return time.perf_counter() - began, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = identify(open_checkpoint(demo_model_path()))
    theirs = transformers_model(model)
    params = SamplingParams(temperature=0.0, max_tokens=options.tokens, ignore_eos=True)
    with LLM(dtype="float32", device="cpu", context=1024, max_seqs=8) as llm, torch.inference_mode():
        prompt = llm.tokenizer.encode(PROMPT)
        ids = torch.tensor([prompt])
        limits = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False, "pad_token_id": 0}

        def transformers_one() -> list[list[int]]:
            out = theirs.generate(ids, attention_mask=torch.ones_like(ids), **limits)
            return [row[len(prompt) :].tolist() for row in out]

        runs: dict[str, tuple[int, Callable[[], list[list[int]]]]] = {
            "transformers, 1 request": (1, transformers_one),
            "headrace, 1 request": (1, lambda: [list(c.tokens) for c in llm.generate([prompt], params)]),
            "headrace, 8 requests": (8, lambda: [list(c.tokens) for c in llm.generate([prompt] * 8, params)]),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        outputs: dict[str, list[list[int]]] = {}
        for round_number in range(options.rounds + 1):
            for name, (_, run) in runs.items():
                seconds, outputs[name] = timed(run)
                if round_number:  # the first round warms up
                    times[name].append(seconds)
    report({name: (count, statistics.median(times[name]), outputs[name]) for name, (count, _) in runs.items()}, options.tokens)


def report(found: dict[str, tuple[int, float, list[list[int]]]], tokens: int) -> None:
    """Tokens per second of each run, as a multiple of the first one's, and whether the tokens are the same."""
    print(f"float32, {torch.get_num_threads()} threads, {tokens} new tokens a request")
    (count, seconds, expected), *_ = found.values()
    base = count * tokens / seconds
    for name, (count, seconds, outputs) in found.items():
        same = sum(out == expected[0] for out in outputs)
        rate = count * tokens / seconds
        print(f"{name:24} {rate:7.1f} tok/s  {rate / base:5.2f} x   same tokens: {same} of {len(outputs)}")


if __name__ == "__main__":
    main()
