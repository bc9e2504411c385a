#!/usr/bin/env bash
# The kernels' small cases under compute-sanitizer, on a machine with a GPU: tools/sanitize.sh memcheck|racecheck [pytest options]
# tests/kernels/sanitized.txt names them: every CUDA kernel, and every Triton kernel whose threads exchange numbers. They run once
# without the tool, which compiles them. PyTorch's own caching of memory is off, so that memory beyond a tensor is not its neighbour's.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$1 found=86 python=${PYTHON:-python3}
shift
sanitizer=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --target-processes all --error-exitcode "$found")
cases=("$python" -m pytest -m gpu -q -p no:cacheprovider @tests/kernels/sanitized.txt "$@")

export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"
"${cases[@]}"
status=0
"${sanitizer[@]}" "$python" -m tests.support.faulty_kernels "$tool" >/dev/null || status=$?
[ "$status" = "$found" ] || { echo "$tool does not find a fault that is there (status $status)" >&2; exit 1; }
"${sanitizer[@]}" "${cases[@]}"
