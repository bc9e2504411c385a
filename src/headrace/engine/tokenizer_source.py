"""What a checkpoint says about its tokenizer, whichever format it comes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """library: the tokenizer, truncation and padding off. eos_ids: every token that ends a message, the main one first.

    special_tokens: strings by name (bos_token, eos_token, ...), as chat templates see them.
    """

    library: tokenizers.Tokenizer
    eos_ids: tuple[int, ...] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
