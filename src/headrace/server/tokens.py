"""Single tokens and their log-probabilities, as they are written in answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.types import TokenLogprob

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

Block = dict[str, list[Any]]
NEVER = -9999.0
"""Written for a log-probability of minus infinity, which JSON has no word for (the value is OpenAI's)."""


def finite(logprob: float) -> float | None:
    if math.isnan(logprob):
        return None
    return max(NEVER, logprob)


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""The token's text; for one that is no text by itself (a part of a character) its bytes, as in `bytes:\xf0\x9f`."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_logprobs(tokenizer: Tokenizer, logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """The `content` of a chat choice's logprobs: one entry for each token, an ending EOS token included."""
    return [
        {**_chat_entry(tokenizer, each.token, each.logprob), "top_logprobs": [_chat_entry(tokenizer, *top) for top in each.top]}
        for each in logprobs
    ]


def _chat_entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": token_name(tokenizer, token),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """One entry for each prompt token, null for the first: token id -> logprob, rank (null if unknown) and text."""
    entries: list[dict[str, Any] | None] = [None]
    for each in logprobs:
        ranks = {token: rank for rank, (token, _) in enumerate(each.top, 1)}
        known = {**dict(each.top), each.token: each.logprob}
        entries.append({
            str(token): {"logprob": finite(value), "rank": ranks.get(token), "decoded_token": token_name(tokenizer, token)}
            for token, value in known.items()
        })
    return entries


class LegacyLogprobs:
    """The logprobs object of one choice of /v1/completions, block after block; text_offset counts characters of its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prompt_characters = 0

    def prompt_block(self, prompt: Sequence[int], logprobs: Sequence[TokenLogprob], text: str) -> Block:
        """The echoed prompt's. The first token has no log-probability; a BOS token that `text` does not show has no width."""
        tokenizer = self._tokenizer
        self._prompt_characters = len(text)
        raw = [tokenizer.token_bytes(token) for token in prompt]
        if prompt[0] == tokenizer.bos_id and not text.startswith(token_name(tokenizer, prompt[0])):
            raw[0] = b""
        return {
            "tokens": [token_name(tokenizer, token) for token in prompt],
            "token_logprobs": [None, *(finite(each.logprob) for each in logprobs)],
            "top_logprobs": [None, *(self._alternatives(each) for each in logprobs)],
            "text_offset": _offsets(raw),
        }

    def block(self, logprobs: Sequence[TokenLogprob], offsets: Sequence[int]) -> Block:
        """Generated tokens'. offsets: where each begins in the generated text."""
        return {
            "tokens": [token_name(self._tokenizer, each.token) for each in logprobs],
            "token_logprobs": [finite(each.logprob) for each in logprobs],
            "top_logprobs": [self._alternatives(each) for each in logprobs],
            "text_offset": [self._prompt_characters + offset for offset in offsets],
        }

    def _alternatives(self, each: TokenLogprob) -> dict[str, float | None]:
        # Two tokens may have one text: the likelier one, which comes first, keeps the name.
        named: dict[str, float | None] = {}
        for token, logprob in (*each.top, (each.token, each.logprob)):
            named.setdefault(token_name(self._tokenizer, token), finite(logprob))
        return named


def _offsets(raw: Sequence[bytes]) -> list[int]:
    """Where each token begins, in characters; one that begins inside a character, where the character begins."""
    offsets: list[int] = []
    characters = 0
    for token in raw:
        offsets.append(max(0, characters - (bool(token) and _continues(token[0]))))
        characters += sum(not _continues(byte) for byte in token)
    return offsets


def _continues(byte: int) -> bool:
    """Whether a byte is inside a UTF-8 character."""
    return byte & 0xC0 == 0x80


def joined(blocks: Sequence[Block]) -> Block | None:
    """Blocks one after the other; None when there are none."""
    if not blocks:
        return None
    return {name: [value for block in blocks for value in block[name]] for name in blocks[0]}
