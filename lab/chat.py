"""How a conversation is written: the same text as the checkpoint's chat template makes of it."""

from __future__ import annotations

from collections.abc import Sequence

END_OF_TEXT, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL = (END_OF_TEXT, START, END, MASK)
WARMTH = 0.4  # temperature of the demo model's answers: it is small, and warmer it wanders

TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role not in ('system', 'user', 'assistant') -%}"
    "{{- raise_exception('a message has the role ' ~ message.role ~ '; the template knows system, user and assistant') -}}"
    "{%- endif -%}"
    "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def written(turns: Sequence[str]) -> str:
    """Turns of the user and the assistant by turns, the user first."""
    roles = ("user", "assistant")
    return "".join(f"{START}{roles[number % 2]}\n{turn}{END}\n" for number, turn in enumerate(turns))
