"""Prompts as the routes take them, turned into tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import RequestError
from headrace.server.choice import Prompt
from headrace.server.front import Front
from headrace.server.hopeless import SLICE_CHARACTERS, refuse_hopeless
from headrace.server.offload import offload
from headrace.server.schemas.chat import ChatBody


async def plain_prompts(
    front: Front, given: Sequence[str | tuple[int, ...]], *, add_special: bool, needs_text: bool
) -> list[Prompt]:
    """Prompts of text or token ids. needs_text: whether those of token ids are decoded too, for echo."""

    def make() -> list[Prompt]:
        return [
            _text_prompt(front, each, add_special) if isinstance(each, str) else _token_prompt(front, each, needs_text)
            for each in given
        ]

    return await offload(sum(map(len, given)), make)


def _text_prompt(front: Front, text: str, add_special: bool) -> Prompt:
    """Marks of special tokens in the text are those tokens."""
    refuse_hopeless(text, front.tokenizer, front.engine.info.context, param="prompt")
    return Prompt(text, tuple(front.tokenizer.encode(text, add_special=add_special)))


def _token_prompt(front: Front, tokens: tuple[int, ...], needs_text: bool) -> Prompt:
    check_tokens(front, tokens, "prompt")
    return Prompt(front.tokenizer.decode(tokens, skip_special=False) if needs_text else "", tokens)


def check_tokens(front: Front, tokens: tuple[int, ...], param: str) -> None:
    """Raises RequestError for an id outside the vocabulary."""
    vocab_size = front.engine.info.vocab_size
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        culprit = next(token for token in tokens if not 0 <= token < vocab_size)
        raise RequestError(f"{param} has token id {culprit}, outside the vocabulary of {vocab_size}", param=param)


async def chat_prompt(front: Front, body: ChatBody) -> Prompt:
    """The rendered conversation. Its text is not kept: chat has no echo."""
    template, messages = front.chat_template, body.messages or []
    if template is None:
        raise RequestError("this model has no chat template; use /v1/completions, or start the server with --chat-template",
                           param="messages", code="no_chat_template")
    generation_prompt, continues, kwargs = body.generation_prompt(), bool(body.continue_final_message), body.template_kwargs()
    size = len(msgspec.json.encode(messages))

    def encode() -> list[int]:
        if size > SLICE_CHARACTERS:
            text = template.render(
                messages, add_generation_prompt=generation_prompt, continue_final_message=continues, template_kwargs=kwargs
            )
            refuse_hopeless(text, front.tokenizer, front.engine.info.context, param="messages")
        return template.encode(
            messages, add_generation_prompt=generation_prompt, continue_final_message=continues, template_kwargs=kwargs
        )

    return Prompt("", tuple(await offload(size, encode)))
