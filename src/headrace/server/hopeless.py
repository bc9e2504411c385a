"""Texts that are too long beyond doubt, told before they are tokenised as a whole: that takes 160 bytes a byte of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import RequestError
from headrace.quantities import counted

if TYPE_CHECKING:
    from headrace.engine.tokenizer import Tokenizer

SURE_CHARACTERS = 8
"""Texts of so many characters for each token of the context are looked at; prose has four to five."""
SLICE_CHARACTERS = 1 << 17
SLACK_TOKENS = 64
"""How many tokens less a slice may be inside the text than alone: a cut splits a word, or a run of spaces."""


def refuse_hopeless(text: str, tokenizer: Tokenizer, context: int, *, param: str) -> None:
    """Tokenises slice by slice until more than `context` tokens are certain. Raises RequestError (context_length_exceeded)."""
    if len(text) <= SURE_CHARACTERS * context + SLICE_CHARACTERS:
        return
    certain = 0
    for start in range(0, len(text), SLICE_CHARACTERS):
        part = text[start : start + SLICE_CHARACTERS]
        certain += max(0, len(tokenizer.encode(part, add_special=False)) - SLACK_TOKENS)
        if certain > context:
            raise RequestError(
                f"the prompt has more than {counted(certain, 'token')}, but the context holds {context:,}, the answer included",
                param=param, code="context_length_exceeded",
            )
