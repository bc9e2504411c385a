"""A prompt and its sampling parameters to the engine's requests, one for each choice."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from headrace.errors import RequestError
from headrace.quantities import counted
from headrace.types import EngineInfo, Request, SamplingParams


def build_requests(
    request_id: str,
    prompt: Sequence[int],
    params: SamplingParams,
    info: EngineInfo,
    eos_ids: tuple[int, ...],
    arrival_s: float,
    tenant: str = "",
) -> tuple[Request, ...]:
    """`params.n` requests with ids `request_id-0`, `request_id-1`, ...

    tenant: who asks, where prompts of one are not to be told from another's time to a first token: with cache_salt, it says
    what is shared.
    max_tokens is clamped to what the context leaves after the prompt. Without a seed one is drawn; choice 0 has the seed
    itself, the others seeds derived from it. Raises RequestError naming the field: for an empty prompt, for token ids
    outside the vocabulary, and, with code "context_length_exceeded", for a prompt that leaves no room in the context.
    """
    tokens = tuple(prompt)
    _check_prompt(tokens, info)
    _check_ids("logit_bias", params.logit_bias, info)
    _check_ids("stop_token_ids", params.stop_token_ids, info)
    room = info.context - len(tokens)
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    # A config may name an end token beyond the embedding's rows; it can never be drawn.
    ends = () if params.ignore_eos else tuple(token for token in eos_ids if token < info.vocab_size)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    messages, salt = _message_ends(tokens, eos_ids), f"{tenant}/{params.cache_salt}" if tenant else params.cache_salt
    return tuple(
        Request(f"{request_id}-{index}", tokens, params, _choice_seed(seed, index), max_tokens, ends, arrival_s, messages, salt)
        for index in range(params.n)
    )


def _message_ends(tokens: tuple[int, ...], eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Behind every token that ends a message: being special, it is the same however what surrounds it is rendered."""
    ends = frozenset(eos_ids)
    return tuple(place for place, token in enumerate(tokens, 1) if token in ends)


def _check_prompt(tokens: tuple[int, ...], info: EngineInfo) -> None:
    if not tokens:
        raise RequestError("the prompt is empty", param="prompt")
    _check_ids("prompt", tokens, info)
    if len(tokens) >= info.context:
        raise RequestError(
            f"the prompt has {counted(len(tokens), 'token')}, but the context holds {info.context:,}, the answer included",
            param="prompt", code="context_length_exceeded",
        )


def _check_ids(param: str, ids: Iterable[int], info: EngineInfo) -> None:
    for token in ids:
        if type(token) is not int or not 0 <= token < info.vocab_size:
            raise RequestError(
                f"{param}: {token!r} is not a token id; the vocabulary has ids from 0 to {info.vocab_size - 1}", param=param
            )


def _choice_seed(seed: int, index: int) -> int:
    """A seed of 64 bits, signed as `seed` is, that depends on nothing but its arguments."""
    if index == 0:
        return seed
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
