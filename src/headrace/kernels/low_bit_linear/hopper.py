"""The text of a wgmma instruction, whose operands are as many as the accumulator has numbers."""

from __future__ import annotations


def multiply(block_rows: int, bf16: bool) -> str:
    """Device function multiply(total, a, b): adds W's fragment in registers times x in shared memory (b: the descriptor's lower
    half; the upper one says 1,024 bytes from 8 rows to the next 8, and the 128-byte swizzle).
    """
    numbers = block_rows // 2
    kind = "bf16" if bf16 else "f16"
    sums = ",".join(f"%{i}" for i in range(numbers))
    a = ",".join(f"%{numbers + i}" for i in range(4))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(numbers))
    return (
        f"__device__ __forceinline__ void multiply(float (&d)[{numbers}], const unsigned (&a)[4], unsigned b) {{\n"
        f'  asm volatile("{{ .reg .pred p; .reg .b64 x; setp.ne.b32 p, 1, 0; mov.b64 x, {{%{numbers + 4}, %{numbers + 5}}}; "\n'
        f'               "wgmma.mma_async.sync.aligned.m64n{block_rows}k16.f32.{kind}.{kind} "\n'
        f'               "{{{sums}}}, {{{a}}}, x, p, 1, 1, 0; }}"\n'
        f'               : {outputs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(64 | 1 << 30));\n}}\n'
    )
