"""The text of wgmma instructions, whose operands are as many as their accumulators have numbers."""

from __future__ import annotations

from functools import cache


@cache
def products(keys: int, columns: int, bf16: bool) -> str:
    """Device functions for 64 queries. logits(d, a, b, step): queries times keys, rows of both in shared memory (descriptors),
    added from the second step on. sum_up(d, a, b): probabilities in registers times `columns` dimensions of 16 keys' values,
    which lie side by side in shared memory, added.
    """
    shapes = [f"m64n{n}k16.f32.{kind}.{kind}" for kind in ("bf16" if bf16 else "f16",) for n in (keys, columns)]
    logits = _function(
        "logits", keys // 2, "u64 a, u64 b, int step", ("l(a)", "l(b)", "r(step)"),
        "setp.ne.b32 p, {2}, 0; wgmma.mma_async.sync.aligned." + shapes[0] + " {d}, {0}, {1}, p, 1, 1, 0, 0;",
    )
    sum_up = _function(
        "sum_up", columns // 2, "const u32 (&a)[4], u64 b", ("r(a[0])", "r(a[1])", "r(a[2])", "r(a[3])", "l(b)"),
        "setp.eq.b32 p, 0, 0; wgmma.mma_async.sync.aligned." + shapes[1] + " {d}, {{{0}, {1}, {2}, {3}}}, {4}, p, 1, 1, 1;",
    )
    return logits + sum_up


def _function(name: str, numbers: int, parameters: str, inputs: tuple[str, ...], instructions: str) -> str:
    """numbers: of the accumulator. In the instructions {d} stands for it, {i} for the i-th input."""
    accumulator = "{" + ", ".join(f"%{i}" for i in range(numbers)) + "}"
    text = instructions.format(*(f"%{numbers + i}" for i in range(len(inputs))), d=accumulator)
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(numbers))
    given = ", ".join(f'"{item[0]}"{item[1:]}' for item in inputs)
    return (
        f"__device__ __forceinline__ void {name}(float (&d)[{numbers}], {parameters}) {{\n"
        f'  asm volatile("{{ .reg .pred p; {text} }}" : {outputs} : {given});\n}}\n'
    )
