"""A Hugging Face model directory: config.json, tokenizer.json and model.safetensors, whole or in shards with an index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError
from headrace.plan.contents import Checkpoint, TensorHeader
from headrace.plan.json_file import read_json_object
from headrace.plan.safetensors_header import read_header
from headrace.quantities import counted

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_NAMES_SHOWN = 16


def open_directory(path: Path, *, tokenizer: bool = True) -> Checkpoint:
    """The checkpoint in directory `path`, with a tokenizer unless it needs none. Raises CheckpointError naming the file or
    field at fault.
    """
    config = _config(path)
    tensors = _sharded(path) if _present(path / _INDEX) else _whole(path)
    if tokenizer:
        _check_tokenizer(path)
    return Checkpoint(path, "hf", config, tensors, _generation_eos_ids(path))


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not _present(file):
        raise CheckpointError(f"{path} is not a model directory: {file} is missing{_hint(path)}")
    config = read_json_object(file)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{file} has no model_type")
    modelopt = path / "hf_quant_config.json"
    if "quantization_config" not in config and _present(modelopt):
        # ModelOpt's older exports keep their quantisation beside the configuration instead of in it.
        config["quantization_config"] = {"quant_method": "modelopt", **read_json_object(modelopt)}
    return config


def _hint(path: Path) -> str:
    if any(path.glob("*.gguf")):
        return "; it holds GGUF files, of which one must be named"
    if (path / "snapshots").is_dir():
        return "; name one of the directories in its snapshots"
    return ""


def _whole(path: Path) -> dict[str, TensorHeader]:
    whole = _present(path / _WHOLE)
    extra = sorted(_safetensors_files(path) - {_WHOLE})
    if whole and not extra:
        return read_header(path / _WHOLE)
    if whole:
        raise CheckpointError(f"{path / extra[0]} does not belong to {_WHOLE}: no {_INDEX} lists it")
    if extra:
        files = counted(len(extra), "file")
        raise CheckpointError(f"{path / _INDEX} is missing: it must say what the {files} like {extra[0]} hold")
    others = sorted(file.name for pattern in ("*.bin", "*.pth", "*.pt") for file in path.glob(pattern))
    if others:
        raise CheckpointError(f"{path / _WHOLE} is missing: {others[0]} is PyTorch's own format, and safetensors are needed")
    raise CheckpointError(f"{path / _WHOLE} is missing: the directory holds no weights")


def _sharded(path: Path) -> dict[str, TensorHeader]:
    shard_of = _read_index(path / _INDEX)
    names: dict[str, list[str]] = {}
    for name, shard in shard_of.items():
        names.setdefault(shard, []).append(name)
    for shard in sorted(names):
        if not _present(path / shard):
            raise CheckpointError(
                f"{path / shard} is missing: {_INDEX} puts {counted(len(names[shard]), 'tensor')} there ({_some(names[shard])})"
            )
    extra = sorted(_safetensors_files(path) - names.keys())
    if extra:
        raise CheckpointError(f"{path / extra[0]} does not belong to this checkpoint: {_INDEX} does not list it")
    tensors: dict[str, TensorHeader] = {}
    for shard in sorted(names):
        header = read_header(path / shard)
        _check_shard(path / shard, header, names[shard], shard_of)
        tensors.update(header)
    return tensors


def _read_index(file: Path) -> dict[str, str]:
    shard_of = read_json_object(file).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{file} has no weight_map")
    for name, shard in shard_of.items():
        # A shard lies beside its index: a path could name any file of the machine.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise CheckpointError(f"{file}: weight_map puts {name!r} in {shard!r}, which is no safetensors file beside it")
    return shard_of


def _check_shard(file: Path, header: Collection[str], names: list[str], shard_of: Mapping[str, str]) -> None:
    absent = [name for name in names if name not in header]
    if absent:
        raise CheckpointError(f"{file} lacks {counted(len(absent), 'tensor')} that {_INDEX} puts there ({_some(absent)})")
    for name in header:
        shard = shard_of.get(name)
        if shard is None:
            raise CheckpointError(f"{file} holds tensor {name!r}, which {_INDEX} does not list")
        if shard != file.name:
            raise CheckpointError(f"{file} holds tensor {name!r}, which {_INDEX} puts in {shard}")


def _check_tokenizer(path: Path) -> None:
    file = path / "tokenizer.json"
    if not _present(file):
        raise CheckpointError(
            f"{file} is missing: headrace needs it to turn text into tokens "
            "(transformers writes one with AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )


def _generation_eos_ids(path: Path) -> tuple[int, ...]:
    file = path / "generation_config.json"
    if not _present(file):
        return ()
    value = read_json_object(file).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"{file}: eos_token_id must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def _present(file: Path) -> bool:
    """Whether the file is there. A link whose target is gone (a cache that was cleaned) is an error of its own."""
    if file.is_symlink() and not file.exists():
        raise CheckpointError(f"{file} is a link to {file.readlink()}, which does not exist")
    return file.is_file()


def _safetensors_files(path: Path) -> set[str]:
    return {file.name for file in path.glob("*.safetensors") if not file.name.startswith(".")}


def _some(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
