"""Log lines of the server's processes."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """What headrace logs, as lines on stderr; other libraries' warnings too."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("headrace").setLevel(logging.INFO)
