"""The text of wgmma instructions, whose operands are as many as the accumulator has numbers."""

from __future__ import annotations

_UPPER = 64 | 1 << 30
"""Half of a descriptor: 1,024 bytes from 8 rows to the next 8, and the 128-byte swizzle."""


def multiply(block_rows: int, bf16: bool) -> str:
    """Device functions multiply(total, a, b) and multiply_shared(total, a, b), which add W times x. x is in shared memory, W in
    registers, a fragment, or in shared memory too; what is there is told by the lower halves of descriptors.
    """
    n = block_rows // 2
    fragment = ",".join(f"%{n + i}" for i in range(4))
    in_registers = _function(
        "multiply", "const unsigned (&a)[4]", block_rows, bf16, [f"x, {{%{n + 4}, %{n + 5}}}"],
        f"{{{fragment}}}, x, p, 1, 1, 0", '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b)',
    )
    in_shared = _function(
        "multiply_shared", "unsigned a", block_rows, bf16, [f"w, {{%{n}, %{n + 2}}}", f"x, {{%{n + 1}, %{n + 2}}}"],
        "w, x, p, 1, 1, 0, 0", '"r"(a), "r"(b)',
    )
    return in_registers + in_shared


def _function(name: str, a: str, block_rows: int, bf16: bool, descriptors: list[str], operands: str, inputs: str) -> str:
    numbers, kind = block_rows // 2, "bf16" if bf16 else "f16"
    sums = ",".join(f"%{i}" for i in range(numbers))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(numbers))
    made = " ".join(f"mov.b64 {descriptor};" for descriptor in descriptors)
    return (
        f"__device__ __forceinline__ void {name}(float (&d)[{numbers}], {a}, unsigned b) {{\n"
        f'  asm volatile("{{ .reg .pred p; .reg .b64 w, x; setp.ne.b32 p, 1, 0; {made} "\n'
        f'               "wgmma.mma_async.sync.aligned.m64n{block_rows}k16.f32.{kind}.{kind} "\n'
        f'               "{{{sums}}}, {operands}; }}"\n'
        f'               : {outputs} : {inputs}, "n"({_UPPER}));\n}}\n'
    )
