"""A small real tokenizer and chat template for tests of the front: one token for each byte, and a few merges."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from headrace.engine.tokenizer import Tokenizer, load_tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2  # <|im_end|>
MERGES = ("he", "hel", "lo", "hello", "th", "the", "in", "an")
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '<think>\\n' }}
{%- endif %}"""


def byte_tokenizer(directory: Path) -> Tokenizer:
    """Written to `directory` and loaded as a checkpoint's is."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate((*SPECIAL_TOKENS, *alphabet, *MERGES))}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=_pairs(vocabulary)))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    library.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": SPECIAL_TOKENS[EOS], "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": EOS}))
    return load_tokenizer(directory)


def _pairs(vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The merge that makes each of MERGES: its longest part that is a token, and the rest."""
    pairs = []
    for word in MERGES:
        cut = max(cut for cut in range(1, len(word)) if word[:cut] in vocabulary and word[cut:] in vocabulary)
        pairs.append((word[:cut], word[cut:]))
    return pairs
