"""Where a prompt's recurrent state is to be copied: at the token counts where a later request will want to go on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LAST_MESSAGES = 3
"""Of a prompt's message ends, so many of the last have checkpoints whatever their distance: an edit is of these."""

NEAR_TOKENS = 16
"""So few tokens are not worth a state, nor a step of their own: what a chat template puts behind the last message."""


@dataclass(frozen=True, slots=True)
class CheckpointPlaces:
    """checkpoint_tokens: tokens whose keys and values take the bytes of one checkpoint: message ends and geometric points that
    lie closer to another place than that are not worth one. split_tokens: the fewest tokens that a split point must save.
    chunk_tokens: of a step; geometric points lie where a lone prompt's chunks end anyway, for each other one costs a step.
    """

    checkpoint_tokens: int
    split_tokens: int
    chunk_tokens: int = 1

    def __post_init__(self) -> None:
        if min(self.checkpoint_tokens, self.split_tokens, self.chunk_tokens) < 1:
            distances = f"{self.checkpoint_tokens}, {self.split_tokens} and {self.chunk_tokens}"
            raise ValueError(f"distances and chunks are 1 or more tokens, not {distances}")

    def of_prompt(
        self, prompt_tokens: int, resumed: int = 0, message_ends: Sequence[int] = (), splits: Iterable[int] = ()
    ) -> tuple[int, ...]:
        """Token counts above `resumed`, rising, where checkpoints are to be taken while a prompt is computed.

        resumed: tokens that need not be computed. message_ends: ascending. splits: token counts up to which other requests
        agree with this one. One token before the prompt's end is among them, unless there is a state shortly before:
        whoever asks the same again needs the last token's logits, and whoever goes on has one token more to compute. Raises
        ValueError for a place past the end.
        """
        ends = sorted(set(message_ends))
        splits = sorted(set(splits))
        for name, places in (("message end", ends), ("split point", splits)):
            if places and not 0 <= places[0] <= places[-1] <= prompt_tokens:
                raise ValueError(f"a {name} at {places[0]} or {places[-1]} is not within the prompt's {prompt_tokens} tokens")
        if prompt_tokens <= resumed:
            return ()
        chosen = {*self._worthwhile([end for end in ends if end > resumed])}
        near = range(prompt_tokens - NEAR_TOKENS, prompt_tokens)
        if prompt_tokens - 1 > resumed and not any(end in near for end in (*chosen, *([resumed] if resumed else ()))):
            chosen.add(prompt_tokens - 1)
        chosen.update(split for split in splits if split - resumed >= self.split_tokens)
        return tuple(self._with_geometric(sorted(chosen), resumed)) if chosen else ()

    def _worthwhile(self, ends: list[int]) -> list[int]:
        """The first message end, the last few, and between them those far enough from the one chosen before."""
        if len(ends) <= 1 + LAST_MESSAGES:
            return ends
        chosen = [ends[0]]
        for end in ends[1:-LAST_MESSAGES]:
            if end - chosen[-1] >= self.checkpoint_tokens:
                chosen.append(end)
        return chosen + ends[-LAST_MESSAGES:]

    def _with_geometric(self, places: list[int], resumed: int) -> list[int]:
        """Between them, checkpoint_tokens in whole chunks x 1, 2, 4, ...: for a document cut short, or edited late."""
        point, chosen = -(-self.checkpoint_tokens // self.chunk_tokens) * self.chunk_tokens, list(places)
        while point < places[-1]:
            at = bisect_left(places, point)
            before = places[at - 1] if at else resumed
            if point - before >= self.checkpoint_tokens and places[at] - point >= self.checkpoint_tokens:
                chosen.append(point)
            point *= 2
        return sorted(chosen)


def clip(start: int, end: int, places: Sequence[int]) -> int:
    """Where a chunk of tokens start ... end - 1 has to stop: at the first of the rising `places` within it, if any."""
    at = bisect_left(places, start + 1)
    return min(end, places[at]) if at < len(places) else end
