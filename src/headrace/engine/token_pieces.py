"""What one token adds to the text: the rules of a tokenizer's decoder, taken apart so that they work token by token."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import tokenizers

from headrace.errors import CheckpointError

Piece = str | bytes | None
"""Text of a token; raw bytes if it is not whole UTF-8 by itself; None for an id without a token."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class DecoderRules:
    """A tokenizer's decoder. kind "utf8": the bytes of all tokens in a row are read as UTF-8. kind "runs": a run of byte tokens
    is one text if it is valid UTF-8, and one U+FFFD a byte if not.

    replace: text replacements in a token. separator: put between tokens. first_drops: what the first token loses. strip:
    (character, how many at most) taken from the start of the text.
    """

    kind: str
    replace: tuple[tuple[str, str], ...] = ()
    byte_tokens: bool = False
    separator: str = ""
    first_drops: str = ""
    strip: tuple[str, int] = ("", 0)


def decoder_rules(library: tokenizers.Tokenizer) -> DecoderRules:
    """The rules of the library's decoder. Raises CheckpointError naming a decoder that cannot be run token by token."""
    if library.decoder is None:
        return DecoderRules("runs", separator=" ")
    state = json.loads(library.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return DecoderRules("utf8")
    if names == ["Metaspace"]:
        return _metaspace(steps[0])
    rules = _chained(steps)
    if rules is None:
        raise CheckpointError(f"tokenizer decoder {' + '.join(names)} is not supported")
    return rules


def _metaspace(step: dict[str, Any]) -> DecoderRules:
    mark = step["replacement"]
    return DecoderRules("runs", ((mark, " "),), first_drops="" if step.get("prepend_scheme") == "never" else mark)


def _chained(steps: list[dict[str, Any]]) -> DecoderRules | None:
    """Replace..., ByteFallback?, Fuse, Strip?: the SentencePiece-like decoders; None for anything else."""
    replace: list[tuple[str, str]] = []
    rest = list(steps)
    while rest and rest[0]["type"] == "Replace" and "String" in rest[0]["pattern"]:
        step = rest.pop(0)
        replace.append((step["pattern"]["String"], step["content"]))
    byte_tokens = bool(rest) and rest[0]["type"] == "ByteFallback"
    rest = rest[1:] if byte_tokens else rest
    fused = bool(rest) and rest[0]["type"] == "Fuse"
    rest = rest[1:] if fused else rest
    strip = ("", 0)
    if fused and rest and rest[0]["type"] == "Strip" and rest[0]["stop"] == 0:
        strip = (rest[0]["content"], rest[0]["start"])
        rest = rest[1:]
    return None if rest else DecoderRules("runs", tuple(replace), byte_tokens, strip=strip)


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 on, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


class TokenPieces:
    """Pieces of a tokenizer's tokens, worked out once each. Safe to share between threads."""

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self.rules = decoder_rules(library)
        self.known: dict[int, Piece] = {}
        self._library = library

    def piece(self, token: int) -> Piece:
        """What `token` adds to a text that has begun."""
        if token in self.known:
            return self.known[token]
        text = self._token(token)
        if text is None:  # not remembered: clients may ask about any number
            return None
        self.known[token] = self._decode(text)
        return self.known[token]

    def first_piece(self, token: int) -> Piece:
        """What `token` gives as the first token of a text."""
        rules, text = self.rules, self._token(token)
        if rules.first_drops and text is not None:
            return self._decode(text.replace(rules.first_drops, ""))
        if rules.separator:
            return text
        return self.piece(token)

    def _token(self, token: int) -> str | None:
        """The vocabulary's entry; ids that no tokenizer can have (negative, beyond 32 bits) have none."""
        return self._library.id_to_token(token) if 0 <= token < 2**32 else None

    def _decode(self, token: str) -> str | bytes:
        if self.rules.kind == "utf8":
            return _byte_level(token)
        for old, new in self.rules.replace:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if self.rules.byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else self.rules.separator + token


def _byte_level(token: str) -> str | bytes:
    # As the library does: a token with any character outside the alphabet (an added token) stands for itself.
    try:
        raw = bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:
        return token
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
