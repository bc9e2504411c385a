"""The tokenizer inside a GGUF file: byte-level BPE from its metadata.

A GGUF file has the vocabulary and the merges, and of the pre-tokenizer only a name (`tokenizer.ggml.pre`). What the names
mean is read off llama.cpp's llama-vocab.cpp and the original tokenizer.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headrace.engine.tokenizer_source import TokenizerSource
from headrace.errors import CheckpointError
from headrace.plan.gguf_file import GgufHeader, read_gguf_header

_CONTROL, _USER_DEFINED = 3, 4

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(letter: str, digits: str) -> str:
    """Words with at most one leading symbol, numbers, runs of symbols with their line ends, then white space."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letter}]+|{digits}| ?[^\s{letter}\p{{N}}]+[\r\n]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class _Rules:
    """splits: patterns applied one after the other, each cutting out its matches. whole_words: a word that is in the vocabulary
    is one token whatever the merges say. bos: whether a BOS token is added where the file does not say."""

    splits: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    bos: bool = False


_GPT2 = _Rules((_GPT2_WORDS,))
_SINGLE_DIGITS = _Rules((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = _Rules((_words(r"\p{L}", r"\p{N}{1,3}"),), whole_words=True, bos=True)
_QWEN2 = _Rules((_words(r"\p{L}", r"\p{N}"),), nfc=True)
_QWEN35 = _Rules((_words(r"\p{L}\p{M}", r"\p{N}"),), nfc=True)
_DEFAULT = _Rules((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

_PRE = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _QWEN35,
}

_END_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end a message. Many files name only one of theirs, and not always the one that ends a turn."""


def read_gguf_tokenizer(path: Path) -> TokenizerSource:
    """Raises CheckpointError naming the metadata field that is missing or not supported."""
    header = read_gguf_header(path)
    return gguf_tokenizer(header)


def gguf_tokenizer(header: GgufHeader) -> TokenizerSource:
    """The tokenizer of a file whose header is read. Raises CheckpointError as `read_gguf_tokenizer` does."""
    metadata, path = header.metadata, header.path
    rules = _rules(metadata, path)
    tokens = header.array("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens is missing")
    library = _library(tokens, header.array("tokenizer.ggml.merges"), rules, path)
    kinds = header.array("tokenizer.ggml.token_type")
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            entry = AddedToken(token, special=kind == _CONTROL, normalized=False)
            (library.add_special_tokens if entry.special else library.add_tokens)([entry])
    ids = {name: _token_id(metadata, name, len(tokens), path) for name in ("bos", "eos", "unknown", "padding", "eot", "eom")}
    library.post_processor = _post_processor(metadata, rules, tokens, ids)
    names = {"bos_token": ids["bos"], "eos_token": ids["eos"], "unk_token": ids["unknown"], "pad_token": ids["padding"]}
    return TokenizerSource(
        library,
        eos_ids=_eos_ids(library, ids),
        special_tokens={name: tokens[token] for name, token in names.items() if token is not None},
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _rules(metadata: Mapping[str, Any], path: Path) -> _Rules:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise CheckpointError(f"{path}: tokenizer.ggml.model {model!r} is not supported (known: 'gpt2')")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE:
        raise CheckpointError(f"{path}: tokenizer.ggml.pre {pre!r} is not supported (known: {', '.join(sorted(_PRE))})")
    return _PRE[pre]


def _is_text(text: str) -> bool:
    """Whether it was read from UTF-8: other bytes became lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _library(tokens: list[str], merges: list[str], rules: _Rules, path: Path) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(f"{path}: tokenizer.ggml.tokens holds a token twice")
    if not merges:
        raise CheckpointError(f"{path}: tokenizer.ggml.merges is missing")
    for name, texts in (("tokens", tokens), ("merges", merges)):
        if not _is_text("".join(texts)):  # one look at all of them takes a hundredth of the time
            damaged = next(index for index, text in enumerate(texts) if not _is_text(text))
            raise CheckpointError(f"{path}: tokenizer.ggml.{name}[{damaged}] is not UTF-8")
    try:
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        library = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=rules.whole_words))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: tokenizer.ggml.merges do not fit the tokens: {' '.join(str(error).split())}") from None
    if rules.nfc:
        library.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.splits]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    library.decoder = decoders.ByteLevel()
    return library


def _token_id(metadata: Mapping[str, Any], name: str, count: int, path: Path) -> int | None:
    field = f"tokenizer.ggml.{name}_token_id"
    token: int | None = metadata.get(field)
    if token is not None and not 0 <= token < count:
        raise CheckpointError(f"{path}: {field} {token} is not one of the {count} tokens")
    return token


def _post_processor(
    metadata: Mapping[str, Any], rules: _Rules, tokens: list[str], ids: Mapping[str, int | None]
) -> processors.TemplateProcessing | None:
    """Puts BOS before and EOS after a text, where the file or the pre-tokenizer's name asks for it."""
    bos = ids["bos"] if metadata.get("tokenizer.ggml.add_bos_token", rules.bos) else None
    eos = ids["eos"] if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return None
    around = [(name, tokens[token], token) for name, token in (("bos", bos), ("eos", eos)) if token is not None]
    before = [text for name, text, _ in around if name == "bos"]
    after = [text for name, text, _ in around if name == "eos"]
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=[(text, token) for _, text, token in around]
    )


def _eos_ids(library: Tokenizer, ids: Mapping[str, int | None]) -> tuple[int, ...]:
    control = {entry.content: token for token, entry in library.get_added_tokens_decoder().items() if entry.special}
    found = [ids["eos"], ids["eot"], ids["eom"], *(control.get(text) for text in _END_TEXTS)]
    return tuple(dict.fromkeys(token for token in found if token is not None))
