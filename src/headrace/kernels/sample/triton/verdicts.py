"""What is known of a row's token before it is drawn from the whole vocabulary, [R] int32, where drafts have odds."""

from __future__ import annotations

import triton.language as tl

from headrace.kernels.sample.odds import RESIDUAL

PLAIN = tl.constexpr(0)
"""Nothing: it is drawn."""
DECIDED = tl.constexpr(1)
"""It is there."""
REST = tl.constexpr(2)
"""It is not the draft: it is drawn from what q leaves of p, which is spread over the vocabulary."""
SALT = tl.constexpr(RESIDUAL)
"""Added to the seed for that."""
