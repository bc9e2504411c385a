"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers

from headrace.engine.gguf_tokenizer import read_gguf_tokenizer
from headrace.engine.hf_tokenizer import read_hf_tokenizer
from headrace.engine.token_pieces import TokenPieces
from headrace.engine.tokenizer_source import TokenizerSource
from headrace.errors import CheckpointError


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or a GGUF file. Raises CheckpointError naming the file or field at fault."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    return Tokenizer(read_hf_tokenizer(path) if path.is_dir() else read_gguf_tokenizer(path))


class Tokenizer:
    """A checkpoint's tokenizer. All methods may be called from several threads at once.

    vocab_size: tokens it knows; a model's embedding may have more rows. eos_ids: tokens that end a message. special_ids:
    control tokens, left out of decoded text. special_tokens: strings by name (bos_token, ...) for chat templates. pieces: what
    each token adds to the text. special_pattern: matches the text of a control token, the longest first.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._library = source.library
        self.vocab_size: int = self._library.get_vocab_size(with_added_tokens=True)
        self.eos_ids = source.eos_ids
        self.special_tokens: Mapping[str, str] = source.special_tokens
        self.chat_template = source.chat_template
        added = self._library.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        bos = source.special_tokens.get("bos_token")
        self.bos_id: int | None = None if bos is None else self._library.token_to_id(bos)
        self.pieces = TokenPieces(self._library)
        self.special_pattern = _any_of([entry.content for entry in added.values() if entry.special])
        self._plain = _plain_twin(self._library)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`. add_special: with the BOS token and the like, where the tokenizer adds them.

        parse_special=False turns the text of control tokens into plain tokens; added tokens that are not control tokens
        (`<think>`, `<tool_call>`) are vocabulary like any other and stay. Lone surrogates are read as U+FFFD.
        """
        library = self._library if parse_special else self._plain
        try:
            ids: list[int] = library.encode(text, add_special_tokens=add_special).ids
        except TypeError:  # how the library refuses lone surrogates
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = library.encode(text, add_special_tokens=add_special).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`, bytes that are no UTF-8 as U+FFFD; ids without a token are left out."""
        try:
            return str(self._library.decode(list(ids), skip_special_tokens=skip_special))
        except OverflowError:  # negative, or beyond 32 bits
            known = [token for token in ids if 0 <= token < 2**32]
            return str(self._library.decode(known, skip_special_tokens=skip_special))

    def token_bytes(self, token: int) -> bytes:
        """Raw bytes of one token, perhaps part of a character; empty for an id without a token."""
        piece = self.pieces.piece(token)
        return piece.encode() if isinstance(piece, str) else piece or b""

    def token_text(self, token: int) -> str:
        """Text of one token by itself, U+FFFD where it holds part of a character."""
        return self.token_bytes(token).decode("utf-8", "replace")


def _any_of(texts: list[str]) -> re.Pattern[str]:
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _plain_twin(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer that reads control tokens as plain text. It shares the vocabulary, so it costs next to nothing.

    The library has a switch for this, but it is a property of the whole tokenizer: with threads, a second one is needed.
    """
    twin = tokenizers.Tokenizer(library.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if (value := getattr(library, part)) is not None:
            setattr(twin, part, value)
    for _, entry in sorted(library.get_added_tokens_decoder().items()):
        (twin.add_special_tokens if entry.special else twin.add_tokens)([entry])
    twin.encode_special_tokens = True
    return twin
