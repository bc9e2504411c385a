"""The text of a wgmma instruction on 8-bit codes, whose operands are as many as the accumulator has numbers."""

from __future__ import annotations


def multiply(rows: int, *, fp8: bool) -> str:
    """Device function multiply(sum, a, b, more): W's fragment in registers times x in shared memory (descriptor b), added to
    the sum if `more`.
    """
    numbers = rows // 2
    kind, sign = ("f32.e4m3.e4m3", ", 1, 1") if fp8 else ("s32.s8.s8", "")
    sums = ",".join(f"%{i}" for i in range(numbers))
    a = ",".join(f"%{numbers + i}" for i in range(4))
    constraint = "f" if fp8 else "r"
    outputs = ", ".join(f'"+{constraint}"(d[{i}])' for i in range(numbers))
    return (
        f"__device__ __forceinline__ void multiply({'float' if fp8 else 'int'} (&d)[{numbers}], const unsigned (&a)[4], "
        f"unsigned long long b, int more) {{\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{numbers + 5}, 0; "\n'
        f'               "wgmma.mma_async.sync.aligned.m64n{rows}k32.{kind} "\n'
        f'               "{{{sums}}}, {{{a}}}, %{numbers + 4}, p{sign}; }}"\n'
        f'               : {outputs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));\n}}\n'
    )
