"""`python -m lab.held_out --work DIR --checkpoint DIR`: what the model and the 5-gram model make of each kind of held-out text.

Windows of 1,024 tokens, each told from those before it in its window; the 5-gram model sees four of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lab.baseline import ORDER, NGrams
from lab.batches import Rows, spread, streams
from lab.tokenizer import VOCABULARY

LENGTH = 1024
FILE = "held-out.json"
Loss = Callable[[Rows], float]


def losses(work: Path, length: int, count: int | None, of: dict[str, Loss]) -> dict[str, dict[str, float]]:
    """By kind of text: how many tokens, and the nats of one in each model's mean."""
    found = {}
    for kind, ids in streams(work, "held-out").items():
        rows = spread(ids, length, count)
        found[kind] = {"tokens": rows[:, 1:].size, **{name: loss(rows) for name, loss in of.items()}}
        print(kind, ", ".join(f"{name} {value:.4g}" for name, value in found[kind].items()), flush=True)
    return found


def five_gram_loss(work: Path, vocabulary: int) -> Loss:
    ngrams = NGrams(np.concatenate(list(streams(work, "train").values())), vocabulary)

    def loss(rows: Rows) -> float:
        return -float(np.concatenate([ngrams.log_probabilities(row.astype(np.uint16)) for row in rows]).mean())

    return loss


def model_loss(checkpoint: Path, length: int) -> Loss:
    """As the engine serves it, in bfloat16 on a GPU and in float32 elsewhere."""
    from headrace import LLM, SamplingParams

    llm = LLM(checkpoint, context=length + 2, max_seqs=16, prefix_cache="off", speculate="off")

    def loss(rows: Rows) -> float:
        done = llm.generate(rows.tolist(), SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True))
        return -float(np.mean([entry.logprob for each in done for entry in (each.prompt_logprobs or ()) if entry]))

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="as lab.export wrote it")
    parser.add_argument("--windows", type=int, help="of each kind, evenly from all over its text; all if not given")
    parser.add_argument("--length", type=int, default=LENGTH)
    options = parser.parse_args()
    if options.length < ORDER:
        parser.error(f"--length {options.length} is less than the {ORDER} tokens of a 5-gram")
    models = {"model": model_loss(options.checkpoint, options.length), "five_gram": five_gram_loss(options.work, VOCABULARY)}
    found = losses(options.work, options.length, options.windows, models)
    (options.work / FILE).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
