"""Behind stages 4 and 6: `python -m lab.export --work DIR --out DIR` writes what was trained in the published layouts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from lab.chat import END, END_OF_TEXT, MASK, SPECIAL, TEMPLATE
from lab.dflash import DrafterShape
from lab.shape import Shape

FILE_BYTES = 16 * 2**20 - 65_536  # tensors of a file; its header comes on top
DRAFTER, TRAINING = "drafter", "training.json"
PARTS = ("model", "mtp", "dflash")


def write_checkpoint(
    out: Path, shape: Shape, tokenizer: Path, model: Mapping[str, Tensor], mtp: Mapping[str, Tensor] | None
) -> None:
    """The model, with its head if there is one, the tokenizer and the chat template."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = dict(model) | {f"mtp.{name}": weight for name, weight in (mtp or {}).items()}
    write_tensors(out, tensors)
    end = SPECIAL.index(END)
    config = shape.config(end)
    if mtp is None:
        config["mtp_num_hidden_layers"] = 0
    _write(out / "config.json", config)
    _write(out / "generation_config.json", {"eos_token_id": [end, SPECIAL.index(END_OF_TEXT)], "do_sample": True,
                                            "temperature": 1.0})
    (out / "tokenizer.json").write_text(Tokenizer.from_file(str(tokenizer)).to_str(), encoding="utf-8")
    _write(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END_OF_TEXT, "chat_template": TEMPLATE,
        "model_max_length": shape.context, "clean_up_tokenization_spaces": False,
    })


def write_drafter(out: Path, target: Shape, shape: DrafterShape, drafter: Mapping[str, Tensor]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(out, drafter)
    _write(out / "config.json", shape.config(target, SPECIAL.index(MASK), SPECIAL.index(END)))


def write_tensors(out: Path, tensors: Mapping[str, Tensor], most: int = FILE_BYTES) -> None:
    """In bfloat16, in as many files as `most` bytes each need, with an index if there are several."""
    shards: list[dict[str, Tensor]] = [{}]
    for name in sorted(tensors):
        weight = tensors[name].detach().to("cpu", torch.bfloat16).contiguous()
        if shards[-1] and sum(other.nbytes for other in shards[-1].values()) + weight.nbytes > most:
            shards.append({})
        shards[-1][name] = weight
    for old in out.glob("model*.safetensors*"):
        old.unlink()
    if len(shards) == 1:
        _save(shards[0], out / "model.safetensors")
        return
    files = {f"model-{number + 1:05}-of-{len(shards):05}.safetensors": shard for number, shard in enumerate(shards)}
    for file, shard in files.items():
        _save(shard, out / file)
    total = sum(weight.nbytes for shard in shards for weight in shard.values())
    _write(out / "model.safetensors.index.json", {
        "metadata": {"total_size": total}, "weight_map": {name: file for file, shard in files.items() for name in shard},
    })


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path, {"format": "pt"})
    path.chmod(0o644)  # it is made for its owner alone, and is to be installed


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_training(out: Path, seed: int, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """How many steps each part was trained, and its losses (`lab.saved.Progress`)."""
    progress = {name: {"steps": run["step"], "losses": run["losses"]} for name, run in runs.items()}
    _write(out / TRAINING, {"seed": seed, **progress})


def trained(work: Path, seed: int) -> dict[str, dict[str, Any]]:
    """What was saved of each part that was trained."""
    paths = {name: work / f"{name}-{seed}.pt" for name in PARTS}
    return {name: torch.load(path, map_location="cpu", weights_only=True) for name, path in paths.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    runs = trained(options.work, options.seed)
    if "model" not in runs:
        raise SystemExit(f"no model-{options.seed}.pt in {options.work}: run lab.train first")
    weights = {name: run["model"] for name, run in runs.items()}
    write_checkpoint(options.out, Shape(), options.work / "tokenizer.json", weights["model"], weights.get("mtp"))
    if "dflash" in weights:
        write_drafter(options.out / DRAFTER, Shape(), DrafterShape(), weights["dflash"])
    write_training(options.out, options.seed, runs)


if __name__ == "__main__":
    main()
