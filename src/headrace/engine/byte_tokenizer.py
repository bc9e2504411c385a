"""A tokenizer for models without one: a token for each byte, and ChatML's control tokens."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headrace.engine.tokenizer import Tokenizer
from headrace.engine.tokenizer_source import TokenizerSource

_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_END = 2
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """259 tokens: three control tokens, then the bytes. A model's ids beyond them have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: token for token, text in enumerate((*_CONTROL, *alphabet))}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _CONTROL])
    return Tokenizer(TokenizerSource(library, (_END,), {"eos_token": _CONTROL[_END]}, _CHAT_TEMPLATE))
