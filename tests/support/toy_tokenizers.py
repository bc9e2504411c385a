"""Small tokenizers of each kind, and directories that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from headrace.engine.token_pieces import BYTE_ALPHABET
from headrace.engine.tokenizer import Tokenizer
from headrace.engine.tokenizer_source import TokenizerSource

MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("i", "n"), ("Ġ", "Ġ"), ("d", "e"),
          ("Ã", "©"), ("ì", "Ĥ"), ("ð", "Ł"), ("ðŁ", "ĺ"))  # fmt: skip
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE: 256 bytes, a few merges (some end inside a character), control tokens, and added ones that are not."""
    words = [*BYTE_ALPHABET, *(left + right for left, right in MERGES)]
    library = tokenizers.Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, list(MERGES)))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    library.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    return library


def byte_fallback(*, strip: bool = True) -> tokenizers.Tokenizer:
    """SentencePiece-like BPE: spaces as U+2581, bytes that no token covers as <0x..>."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<unk>", "<s>", "</s>", *bytes_, "▁", *"abcdehilmnort.", "é", "▁t", "he", "▁the"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    vocabulary = {word: index for index, word in enumerate(words)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in words[:3]])
    return library


def metaspace() -> tokenizers.Tokenizer:
    """The Metaspace decoder, which drops the first token's spaces."""
    library = byte_fallback()
    library.normalizer = None  # type: ignore[assignment]
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return library


def words() -> tokenizers.Tokenizer:
    """No decoder at all: tokens are joined with spaces."""
    library = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, "[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library


def toy_tokenizer(library: tokenizers.Tokenizer | None = None, *, chat_template: str | None = None) -> Tokenizer:
    """A byte-level tokenizer whose messages end with <|im_end|>, or one around `library`."""
    if library is not None:
        return Tokenizer(TokenizerSource(library, chat_template=chat_template))
    library = byte_level()
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    return Tokenizer(TokenizerSource(library, (library.token_to_id("<|im_end|>"),), names, chat_template))


def write_directory(directory: Path, library: tokenizers.Tokenizer, **files: Mapping[str, Any] | str) -> Path:
    """A Hugging Face directory: tokenizer.json, and a file for each keyword (`tokenizer_config={...}`, text with .jinja)."""
    directory.mkdir(parents=True, exist_ok=True)
    library.save(str(directory / "tokenizer.json"))
    for name, value in files.items():
        if isinstance(value, str):
            (directory / f"{name}.jinja").write_text(value, encoding="utf-8")
        else:
            (directory / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return directory
