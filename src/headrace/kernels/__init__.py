"""Operations. Each package is one operation: its public function, its reference, its cases.

The public function states shapes and formula and hands over to an implementation; `reference.py` is plain PyTorch, runs
on every device and is the definition that any faster implementation must agree with. References accumulate in the larger of
float32 and the type they are given. `cases.py` offers, for the tests that an operation gets by being here: CASES, each with
a `name`; inputs(case, dtype) -> a mapping of plain data; run(op, inputs) -> the outputs of an implementation (a module with the
public function's name), memory that it updates in place included; slow(**inputs) -> the same outputs by an independent float64
formula.
"""

from headrace.registry import Registry

KERNELS = Registry(
    "headrace.kernels",
    skip=(
        "ahead", "bounded_rows", "card", "compile_process", "cuda_function", "dispatch", "late", "nvrtc", "precision",
        "remembered", "rows", "tensor_map", "tile", "variant",
    ),
)
