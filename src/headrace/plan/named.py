"""Models that have a name: those that headrace brings along, as package data, and the demo model of another package."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.plan.demo import demo_model_path

SHIPPED = Path(__file__).parents[1] / "shipped"
"""A folder for each model that headrace brings along."""


def lab_model_path() -> Path:
    """The lab model's directory. Raises CheckpointError if the installation lacks it."""
    folder = SHIPPED / "lab"
    if (folder / "config.json").is_file():
        return folder
    if any(folder.glob("*.safetensors")):
        raise CheckpointError(f"the lab model is not all there: {folder}/config.json is missing; install headrace anew")
    raise CheckpointError(f"this headrace comes without the lab model: {folder} has no weights")


NAMED: Mapping[str, Callable[[], Path]] = {"demo": demo_model_path, "lab": lab_model_path}


def model_path(model: str | os.PathLike[str] | None) -> Path:
    """Where a model lies. A string may be a name of NAMED, which a file or directory called so is not taken for: ./NAME is.
    Any other path is one whatever it is called. None is the demo model.

    Raises CheckpointError for what there is not.
    """
    if model is None:
        return demo_model_path()
    if isinstance(model, str) and model in NAMED:
        _tell_of_namesake(model)
        return NAMED[model]()
    if not os.path.exists(model):
        raise CheckpointError(f"model {os.fspath(model)} does not exist; models with a name are {' and '.join(NAMED)}")
    return Path(model)


def _tell_of_namesake(name: str) -> None:
    """What is called like a model with a name, and is one."""
    here = Path(name)
    if here.is_file() or (here / "config.json").is_file():
        kind = "file" if here.is_file() else "directory"
        logging.getLogger("headrace").warning(
            "%s is the model that comes with headrace; for the %s of this name here, say ./%s", name, kind, name
        )
