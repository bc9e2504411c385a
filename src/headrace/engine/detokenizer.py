"""Token events of one message to the text that its reader gets."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engine.stop_strings import StopStrings
from headrace.engine.text_stream import TextStream
from headrace.engine.tokenizer import Tokenizer
from headrace.types import FinishReason, SamplingParams, TokenEvent, TokenLogprob


@dataclass(slots=True)
class TextDelta:
    """What an event adds to the message.

    text: new text, certain to belong to it. tokens: new tokens, an ending EOS or stop token and those of a stop string
    included, nothing after them. logprobs: an entry for each token, if the request asked for them; offsets then: where in the
    message's text each of these tokens begins, in characters (one that begins inside a character: where the character
    begins; of a stop string or an ending token, which are no text: the text's end). finish_reason ends the message;
    stop_reason is the stop string or stop token that did.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    offsets: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Detokenizer:
    """Text of one message. Joined, the deltas are what decoding all its tokens gives, cut at the first stop string.

    A text that may be the start of a stop string is held back until it is known not to be one. A stop string counts from the
    `min_tokens`-th token on. The message is `finished` with the delta that has a finish_reason: if a stop string ended it, the
    caller cancels the request; events after that give empty deltas. skip_special=False shows control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, skip_special: bool = True) -> None:
        self._stream = TextStream(tokenizer.pieces)
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        self._stops = StopStrings(params.stop) if params.stop else None
        self._min_tokens = params.min_tokens
        self._ends = frozenset(params.stop_token_ids if params.ignore_eos else (*tokenizer.eos_ids, *params.stop_token_ids))
        self._with_offsets = params.logprobs is not None
        self._token_count = 0
        self._text_chars = 0  # all text so far, held back or not
        self._held = ""
        self.finished = False

    def push(self, event: TokenEvent) -> TextDelta:
        """The event's part of the message."""
        if self.finished:
            return TextDelta()
        if self._stops is None and not self._with_offsets:
            return self._push_plain(event)
        return self._push_watched(event)

    def _text_tokens(self, event: TokenEvent) -> tuple[int, ...]:
        """The event's tokens without the one that ends the message, which is no text."""
        tokens = event.tokens
        if event.finish_reason == "stop" and tokens and (tokens[-1] in self._ends or tokens[-1] == event.stop_reason):
            return tokens[:-1]
        return tokens

    def _push_plain(self, event: TokenEvent) -> TextDelta:
        push, hidden = self._stream.push, self._hidden
        text = "".join([push(token) for token in self._text_tokens(event) if token not in hidden])
        if event.finish_reason is not None:
            text += self._stream.flush()
            self.finished = True
        return TextDelta(text, event.tokens, event.logprobs, (), event.finish_reason, event.stop_reason)

    def _push_watched(self, event: TokenEvent) -> TextDelta:
        """As `_push_plain`, token by token: stop strings are looked for and the tokens' places noted."""
        parts: list[str] = []
        offsets: list[int] = []
        for token in self._text_tokens(event):
            self._token_count += 1
            offsets.append(self._text_chars)
            if token in self._hidden:
                continue
            if (stop := self._watch(self._stream.push(token), parts)) is not None:
                return self._stopped(event, stop, parts, offsets)
        offsets += [self._text_chars] * (len(event.tokens) - len(offsets))
        if event.finish_reason is not None:
            if (stop := self._watch(self._stream.flush(), parts)) is not None:
                return self._stopped(event, stop, parts, offsets)
            parts.append(self._held)
            self.finished = True
        places = self._offsets(offsets)
        return TextDelta("".join(parts), event.tokens, event.logprobs, places, event.finish_reason, event.stop_reason)

    def _watch(self, piece: str, parts: list[str]) -> str | None:
        """Add what is certain of the held text and `piece` to `parts`; returns the stop string that ends the message here."""
        self._text_chars += len(piece)
        if self._stops is None or not piece:
            parts.append(piece)
            return None
        found = self._stops.push(piece, honoured=self._token_count >= self._min_tokens)
        text = self._held + piece
        if found is None:
            certain = len(text) - self._stops.held
            parts.append(text[:certain])
            self._held = text[certain:]
            return None
        start = len(self._held) + found.end - len(found.text)
        parts.append(text[:start])
        self._text_chars -= len(text) - start
        return found.text

    def _stopped(self, event: TokenEvent, stop: str, parts: list[str], offsets: list[int]) -> TextDelta:
        self.finished = True
        count = len(offsets)
        places = self._offsets([min(offset, self._text_chars) for offset in offsets])
        return TextDelta("".join(parts), event.tokens[:count], event.logprobs[:count], places, "stop", stop)

    def _offsets(self, offsets: list[int]) -> tuple[int, ...]:
        return tuple(offsets) if self._with_offsets else ()
