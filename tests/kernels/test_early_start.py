"""Kernels that may run beside the one before them: all wait, on every path, before they read or write what is not theirs.

Read off the PTX of every variant that is launched with `dispatch.early`, since a missing wait is a race that tests seldom lose.
"""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from tests.support.triton_kernels import TRITON_OPS, compile_variant, module

from headrace.kernels import dispatch
from headrace.kernels.card import Card
from headrace.kernels.variant import SHARED_BYTES, Variant

WAIT = "griddepcontrol.wait"
INSTRUCTION = re.compile(r"^(?:@!?%p\d+\s+)?(?P<name>[a-z][\w.:]*)\s+(?P<operands>.*);")
READS = re.compile(r"^(ld\.global|cp\.async\.\w+\.shared)")
WRITES = re.compile(r"^(st|red|atom)\b(?!\.shared)")


def variants() -> dict[str, Variant]:
    if importlib.util.find_spec("triton") is None:
        return {}
    return {f"{op}/{v.name}": v for op in TRITON_OPS for v in module(op, "triton").VARIANTS}


VARIANTS = variants()
EARLY = {name: variant for name, variant in VARIANTS.items() if variant.early}


def one_of_each_kernel(chosen: dict[str, Variant]) -> list[str]:
    """Names of variants: one for each kernel and setting of its switches, which alone decide what stands before the wait."""
    found: dict[object, str] = {}
    for name, variant in chosen.items():
        flags = tuple(sorted((key, value) for key, value in variant.constants.items() if isinstance(value, bool)))
        found.setdefault((variant.kernel, flags), name)
    return list(found.values())


def before_wait(ptx: str) -> list[tuple[str, str]]:
    """(instruction, operands) of all that stands before the first wait, which every path must come to."""
    head, wait, _ = ptx.partition(WAIT)
    assert wait, "no wait"
    body = head[head.index("{") :]
    assert not re.search(r"\b(ret|exit|brx\S*)\b.*;", body), "a path ends before the wait"
    assert all(f"\n{label}:" in body for label in re.findall(r"\bbra\S*\s+(\S+);", body)), "a path leads past the wait"
    return [(m["name"], m["operands"]) for m in map(INSTRUCTION.match, map(str.strip, body.splitlines())) if m]


def parameters_read(instructions: list[tuple[str, str]]) -> set[int]:
    """Numbers of the parameters whose memory is read: each address is followed to the parameters that it was made of."""
    made_of: dict[str, set[int]] = {}
    read: set[int] = set()
    for name, operands in instructions:
        registers = re.findall(r"%[a-z]+\d+", operands)
        parameter = re.search(r"_param_(\d+)", operands)
        if READS.match(name):  # the address comes last, or before a size
            address = re.findall(r"%[a-z]+\d+", operands[operands.rindex("[") :])
            read |= set().union(*(made_of.get(register, set()) for register in address))
        elif name.startswith("ld.param") and parameter:
            made_of[registers[0]] = {int(parameter[1])}
        elif registers:
            several = operands.startswith("{")
            written = re.findall(r"%[a-z]+\d+", operands[: operands.index("}")]) if several else registers[:1]
            sources = set().union(*(made_of.get(register, set()) for register in registers[len(written) :]))
            for register in written:
                made_of[register] = sources
    return read


def pointers(variant: Variant, numbers: set[int]) -> set[str]:
    taken = [name for name in variant.kernel.arg_names if name in variant.signature]
    return {taken[number] for number in numbers if variant.signature[taken[number]].startswith("*")}


@pytest.mark.parametrize("name", one_of_each_kernel(EARLY))
def test_waits_before_it_touches_what_others_write(name: str) -> None:
    variant = EARLY[name]
    found = before_wait(compile_variant(variant, 90).ptx)
    assert not [i for i, _ in found if WRITES.match(i)], "writes before the wait"
    assert pointers(variant, parameters_read(found)) == set(variant.reads_early)


@pytest.mark.parametrize("name", one_of_each_kernel(VARIANTS))
def test_older_cards_and_other_launches_have_no_wait(name: str) -> None:
    assert "griddepcontrol" not in compile_variant(VARIANTS[name], 89).ptx
    if name not in EARLY:
        assert "griddepcontrol" not in compile_variant(VARIANTS[name], 90).ptx


def test_the_reading_of_ptx_sees_what_it_must() -> None:
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from tests.kernels import probes

    found = before_wait(compile_variant(probes.HASTY, 90).ptx)
    assert pointers(probes.HASTY, parameters_read(found)) == {"source", "index"}
    assert [i for i, _ in found if WRITES.match(i)]
    for probe, message in ((probes.FP16_PRODUCT, "no wait"), (probes.EVADING, "a path")):
        with pytest.raises(AssertionError, match=message):
            before_wait(compile_variant(probe, 90).ptx)


def test_only_hopper_and_later_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch.early(torch.device("cpu")) == {"EARLY": False}
    for capability, started in ((86, False), (89, False), (90, True), (120, True)):
        monkeypatch.setattr(dispatch, "card", lambda device, c=capability: Card(c, 100, SHARED_BYTES[c]))
        assert dispatch.early(torch.device("cuda")) == ({"EARLY": True, "launch_pdl": True} if started else {"EARLY": False})
