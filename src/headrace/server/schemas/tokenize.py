"""POST /tokenize and /detokenize."""

from __future__ import annotations

import msgspec

from headrace.server.schemas.chat import ChatBody
from headrace.server.schemas.sampling import Int


class TokenizeBody(ChatBody, kw_only=True):
    """Either `prompt`, or `messages` and whatever else a chat request has."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[Int] | None = None
    skip_special_tokens: bool | None = None
