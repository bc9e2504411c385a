"""Log-probabilities on their way from the device to messages."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headrace.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of N tokens, with the best alternatives to each; K is the most that any of them asked for."""

    tokens: Tensor  # [N]
    chosen: Tensor  # [N]
    values: Tensor  # [N, K]
    ids: Tensor  # [N, K]
    counts: tuple[int, ...]  # N alternatives to report

    def to_host(self) -> TokenScores:
        """Copies that may be read once the device has come this far."""
        tokens, chosen = (column.to("cpu", non_blocking=True) for column in (self.tokens, self.chosen))
        values, ids = (column.to("cpu", non_blocking=True) for column in (self.values, self.ids))
        return TokenScores(tokens, chosen, values, ids, self.counts)

    def read(self) -> tuple[TokenLogprob, ...]:
        """As messages, token n with its first counts[n] alternatives. Waits for a device."""
        columns = (self.tokens.tolist(), self.chosen.tolist(), self.values.tolist(), self.ids.tolist(), self.counts)
        return tuple(
            TokenLogprob(token, logprob, tuple(zip(ids, values, strict=True))[:k])
            for token, logprob, values, ids, k in zip(*columns, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the prompt tokens that a row computed, in parts."""

    parts: tuple[TokenScores, ...]

    def to_host(self) -> PromptScores:
        return PromptScores(tuple(part.to_host() for part in self.parts))

    def read(self) -> tuple[TokenLogprob, ...]:
        return tuple(entry for part in self.parts for entry in part.read())
