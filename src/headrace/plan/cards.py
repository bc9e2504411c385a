"""NVIDIA cards by name: memory as their driver tells it, and the rates of their data sheets.

Memory is what nvidia-smi prints for the card, checked against listings that people have published. Rates and processors are
NVIDIA's: of the white papers on GA102, Ada and Blackwell GeForce cards (16-bit products summed in fp32, which those cards do at
half the rate of the fp16 figure that is mostly quoted), of the workstation cards' and L4's data sheets, and of the SXM forms of
A100, H100 and H200; a B200's are an HGX board's eighth. Figures that count sparsity are halved; each is its processors times
their products a clock at the boost clock. An H200 alone was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Card:
    """capability: 86 for compute capability 8.6. bytes_per_s: of its memory. flops_per_s: dense products of 16-bit numbers
    summed in fp32, without sparsity. None where nothing is known but the memory. processors: streaming multiprocessors, 0 where
    they are not known.
    """

    name: str
    memory_bytes: int
    capability: int = 0
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    processors: int = 0


def _card(name: str, memory_mib: int, capability: int, processors: int, gb_per_s: float, tflops: float) -> Card:
    return Card(name, memory_mib << 20, capability, gb_per_s * 1e9, tflops * 1e12, processors)


_ALL = (  # name, MiB, capability, processors, GB/s, TFLOP/s
    _card("rtx3090", 24_576, 86, 82, 936, 71),
    _card("rtx3090ti", 24_564, 86, 84, 1008, 80),
    _card("rtx4080", 16_376, 89, 76, 717, 97.5),
    _card("rtx4090", 24_564, 89, 128, 1008, 165.2),
    _card("rtx5070ti", 16_303, 120, 70, 896, 87.9),
    _card("rtx5080", 16_303, 120, 84, 960, 112.6),
    _card("rtx5090", 32_607, 120, 170, 1792, 209.5),
    _card("rtxa5000", 24_564, 86, 64, 768, 111.1),
    _card("rtxa6000", 49_140, 86, 84, 768, 154.8),
    _card("rtx6000ada", 49_140, 89, 142, 960, 364.2),
    _card("rtxpro6000", 97_887, 120, 188, 1792, 503.8),
    _card("l4", 23_034, 89, 58, 300, 121),
    _card("l40s", 46_068, 89, 142, 864, 362),
    _card("a100-40gb", 40_960, 80, 108, 1555, 312),
    _card("a100-80gb", 81_920, 80, 108, 2039, 312),
    _card("h100", 81_559, 90, 132, 3350, 989),
    _card("h200", 143_771, 90, 132, 4800, 989),
    _card("b200", 183_359, 100, 148, 7700, 2250),
)
CARDS: Mapping[str, Card] = {card.name: card for card in _ALL}
_SPELLED = re.compile(r"nvidia|geforce|\s|_")


def card(name: str) -> Card:
    """The card that is called so: "rtx3090", "RTX 3090". Raises ConfigError naming those there are."""
    found = CARDS.get(_SPELLED.sub("", name.lower()))
    if found is None:
        raise ConfigError(f"--gpu: no card {name!r} is in the table; there are {', '.join(CARDS)}; or give --vram-bytes")
    return found


def card_of_driver(name: str, memory_bytes: int, capability: int) -> Card:
    """A card of this machine, with the rates of its data sheet if the table has them."""
    known = CARDS.get(_SPELLED.sub("", name.lower()))
    if known is None:
        return Card(name, memory_bytes, capability)
    return Card(name, memory_bytes, capability, known.bytes_per_s, known.flops_per_s, known.processors)
