"""The tokenizer of a Hugging Face directory, read from its JSON files (transformers is not needed)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from headrace.engine.tokenizer_source import TokenizerSource
from headrace.errors import CheckpointError
from headrace.plan.json_file import read_json_object


def read_hf_tokenizer(directory: Path) -> TokenizerSource:
    """Raises CheckpointError naming the file that is missing or cannot be read."""
    library = _library(directory / "tokenizer.json")
    config = _optional(directory / "tokenizer_config.json")
    _add_listed_tokens(library, config, directory / "tokenizer_config.json")
    special_map = _optional(directory / "special_tokens_map.json")
    names = _named_tokens(special_map) | _named_tokens(config)
    _mark_special(library, [*names.values(), *_additional_tokens(special_map), *_additional_tokens(config)])
    return TokenizerSource(library, _eos_ids(directory, library, names), names, _chat_template(directory, config))


def _library(path: Path) -> tokenizers.Tokenizer:
    if not path.exists():
        raise CheckpointError(f"{path} is missing: a tokenizer in this format is needed")
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    # Training left-overs: a truncation length would cut prompts, padding would grow them.
    library.no_truncation()
    library.no_padding()
    return library


def _optional(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _text(value: object) -> str | None:
    """A token written as a string or as an object with its content."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like, and a model's own ones such as image_token."""
    extra = config.get("extra_special_tokens")
    entries = {**config, **(extra if isinstance(extra, Mapping) else {})}
    named = {name: _text(value) for name, value in entries.items() if name.endswith("_token")}
    return {name: text for name, text in named.items() if text is not None}


def _additional_tokens(config: Mapping[str, Any]) -> list[str]:
    """Control tokens without a name of their own."""
    listed = config.get("additional_special_tokens")
    texts = [_text(value) for value in listed] if isinstance(listed, list) else []
    return [text for text in texts if text is not None]


def _add_listed_tokens(library: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Tokens that only tokenizer_config.json lists must get the ids it gives them."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, Mapping) or not all(token.isdecimal() for token in listed):
        raise CheckpointError(f"{path}: added_tokens_decoder must give a token for each id")
    for token, entry in sorted((int(token), entry) for token, entry in listed.items()):
        content = _text(entry)
        if content is None or library.token_to_id(content) is not None:
            continue
        options = {name: bool(entry[name]) for name in ("lstrip", "rstrip", "normalized", "single_word") if name in entry}
        added = tokenizers.AddedToken(content, special=bool(entry.get("special")), **options)
        (library.add_special_tokens if added.special else library.add_tokens)([added])
        if library.token_to_id(content) != token:
            raise CheckpointError(f"{path}: added_tokens_decoder gives {content!r} id {token}, "
                                  f"but tokenizer.json makes it {library.token_to_id(content)}")


def _mark_special(library: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """What the files call special is a control token even if tokenizer.json has it as a plain entry of the vocabulary."""
    special = {entry.content for entry in library.get_added_tokens_decoder().values() if entry.special}
    for text in texts:
        if text and text not in special and library.token_to_id(text) is not None:
            library.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])


def _eos_ids(directory: Path, library: tokenizers.Tokenizer, names: Mapping[str, str]) -> tuple[int, ...]:
    """generation_config.json, then the tokenizer's eos_token, then config.json: chat models often end on more than one."""
    config = _optional(directory / "config.json")
    found = _ids(_optional(directory / "generation_config.json"), directory / "generation_config.json")
    if (own := library.token_to_id(names["eos_token"]) if "eos_token" in names else None) is not None:
        found.append(own)
    for part in (config, config.get("text_config")):
        found += _ids(part, directory / "config.json") if isinstance(part, Mapping) else []
    return tuple(dict.fromkeys(found))


def _ids(config: Mapping[str, Any], path: Path) -> list[int]:
    value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise CheckpointError(f"{path}: eos_token_id must be a token id or a list of them, not {value!r}")
    return list(ids)


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    plain = directory / "chat_template.jinja"
    if plain.exists():
        try:
            return plain.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{plain} cannot be read: {error}") from None
    value = _optional(directory / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
        value = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    return value if isinstance(value, str) else None
