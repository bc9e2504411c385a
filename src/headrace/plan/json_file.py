"""The JSON files of a checkpoint, each of which must be one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises CheckpointError naming the file if it is missing, unreadable or anything else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value
