#!/usr/bin/env bash
# The kernels' small cases under compute-sanitizer, on a machine with a GPU: tools/sanitize.sh memcheck|racecheck [pytest options]
# tests/kernels/sanitized.txt names them: every CUDA kernel, and every Triton kernel whose threads exchange numbers. They run once
# without the tool, which compiles them. PyTorch's own caching of memory is off, so that memory beyond a tensor is not its neighbour's.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$1
shift
cases=("${PYTHON:-python3}" -m pytest -m gpu -q -p no:cacheprovider @tests/kernels/sanitized.txt "$@")
"${cases[@]}"
PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 86 "${cases[@]}"
