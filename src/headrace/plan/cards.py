"""NVIDIA cards by name: memory as their driver tells it, and the rates of their data sheets.

Memory is what nvidia-smi prints for the card, and of it what CUDA has to give, since the driver keeps the rest: as listings
and PyTorch's messages that people have published on Linux tell it, and for a 3090 Ti, 4080 and A5000 as for the nearest card.
Rates and processors are NVIDIA's: of the white papers on GA102, Ada and Blackwell GeForce cards (16-bit products summed in
fp32, which those cards do at half the rate of the fp16 figure that is mostly quoted), of the workstation cards' and L4's data
sheets, and of the SXM forms of A100, H100 and H200; a B200's are an HGX board's eighth. Figures that count sparsity are
halved; each is its processors times their products a clock at the boost clock. An H200 alone was measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Card:
    """capability: 86 for compute capability 8.6. bytes_per_s: of its memory. flops_per_s: dense products of 16-bit numbers
    summed in fp32, without sparsity. None where nothing is known but the memory. processors: streaming multiprocessors, 0 where
    they are not known. kept_bytes: of the memory, what the driver keeps for itself.
    """

    name: str
    memory_bytes: int
    capability: int = 0
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    processors: int = 0
    kept_bytes: int = 0


def _card(
    name: str, memory_mib: int, given_gib: float, capability: int, processors: int, gb_per_s: float, tflops: float
) -> Card:
    kept_bytes = (memory_mib << 20) - int(given_gib * 2**30)
    return Card(name, memory_mib << 20, capability, gb_per_s * 1e9, tflops * 1e12, processors, kept_bytes)


_ALL = (  # name, MiB, GiB that CUDA has of them, capability, processors, GB/s, TFLOP/s
    _card("rtx3090", 24_576, 23.69, 86, 82, 936, 71),
    _card("rtx3090ti", 24_564, 23.64, 86, 84, 1008, 80),
    _card("rtx4080", 16_376, 15.6, 89, 76, 717, 97.5),
    _card("rtx4090", 24_564, 23.64, 89, 128, 1008, 165.2),
    _card("rtx5070ti", 16_303, 15.47, 120, 70, 896, 87.9),
    _card("rtx5080", 16_303, 15.47, 120, 84, 960, 112.6),
    _card("rtx5090", 32_607, 31.36, 120, 170, 1792, 209.5),
    _card("rtxa5000", 24_564, 23.64, 86, 64, 768, 111.1),
    _card("rtxa6000", 49_140, 47.4, 86, 84, 768, 154.8),
    _card("rtx6000ada", 49_140, 47.4, 89, 142, 960, 364.2),
    _card("rtxpro6000", 97_887, 94.97, 120, 188, 1792, 503.8),
    _card("l4", 23_034, 22.03, 89, 58, 300, 121),
    _card("l40s", 46_068, 44.39, 89, 142, 864, 362),
    _card("a100-40gb", 40_960, 39.38, 80, 108, 1555, 312),
    _card("a100-80gb", 81_920, 79.14, 80, 108, 2039, 312),
    _card("h100", 81_559, 79.14, 90, 132, 3350, 989),
    _card("h200", 143_771, 139.8, 90, 132, 4800, 989),
    _card("b200", 183_359, 178.35, 100, 148, 7700, 2250),
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
    return Card(name, memory_bytes, capability) if known is None else replace(known, name=name, memory_bytes=memory_bytes)
