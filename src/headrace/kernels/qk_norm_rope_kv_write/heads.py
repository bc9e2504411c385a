"""How a row of the q/k/v projection is laid out, and how its heads are normed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """A row: `queries` heads of `dim`, each followed by as much of its gate if there are gates; `keys` heads of k, and of v.
    There may be no queries.
    """

    queries: int
    keys: int
    dim: int
    gated: bool = False

    @property
    def query_width(self) -> int:
        """From one query head to the next."""
        return self.dim * (2 if self.gated else 1)

    @property
    def width(self) -> int:
        return self.queries * self.query_width + 2 * self.keys * self.dim

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Views of [T, width]: q [T, H, D], k and v [T, KV, D], gate [T, H, D] if there is one."""
        cut = self.queries * self.query_width
        q = qkv[:, :cut].view(len(qkv), self.queries, self.query_width)
        k, v = qkv[:, cut:].view(-1, 2 * self.keys, self.dim).chunk(2, 1)
        return q[..., : self.dim], k, v, q[..., self.dim :] if self.gated else None


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms of q's and of k's heads: weights [D], eps and offset as rms_norm takes them."""

    query: Tensor
    key: Tensor
    eps: float
    offset: float = 0.0
