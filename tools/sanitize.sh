#!/usr/bin/env bash
# The kernels' small cases under compute-sanitizer, on a machine with a GPU: tools/sanitize.sh memcheck|racecheck [pytest options]
# PyTorch's own caching of memory is off, so that memory beyond a tensor is not its neighbour's.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$1
shift
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
exec compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 86 \
  "${PYTHON:-python3}" -m pytest -m gpu -q -p no:cacheprovider tests/kernels \
  -k "(bfloat16 and (test_compiled or test_cases_on_a_gpu) and (mixed or odd or uneven or int8 or residual or several or tiled)) \
or (counts_what_it_draws and V1023)" "$@"
