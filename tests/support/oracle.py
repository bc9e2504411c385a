"""The oracle: transformers, held to its plain PyTorch paths so that its figures do not depend on what else is installed."""

from __future__ import annotations

import logging
import sys

for _accelerator in ("fla", "causal_conv1d", "flash_attn"):
    sys.modules.setdefault(_accelerator, None)  # type: ignore[arg-type]  # an import of it now fails

import transformers  # noqa: E402

logging.getLogger("transformers").setLevel(logging.ERROR)

__all__ = ["transformers"]
