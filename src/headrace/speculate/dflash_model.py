"""The modules of DFlash and DFlash2 drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from headrace.kernels.block_attention import KeyRing
from headrace.layers.arena import settle
from headrace.layers.block_attention import BlockAttention, Rotary
from headrace.layers.block_convolution import BlockConvolution
from headrace.layers.candidate_selector import CandidateSelector
from headrace.layers.linear import Linear
from headrace.layers.mlp import Mlp
from headrace.layers.norm import RmsNorm
from headrace.models.spec import AttentionSpec, LayerSpec
from headrace.plan.dflash import DFlashSpec
from headrace.quant import LinearFormat
from headrace.quant.unquantized import Plain


def build_dflash(
    spec: DFlashSpec, *, dtype: torch.dtype, device: torch.device, formats: Mapping[str, LinearFormat] | None = None
) -> DFlashModel:
    """The drafter's modules on `device`, parameters uninitialised. Their paths are the targets of `dflash_weights`."""
    model = DFlashModel(spec, dtype=dtype, device=torch.device("meta"))
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            module.allocate((formats or {}).get(path, Plain()))
    if device.type != "meta":
        settle(model, device)
    return model


class DFlashModel(nn.Module):
    """What is made of the target's hidden states, and a block of tokens over it. Sources: DFlash, and DFlash2's model."""

    def __init__(self, spec: DFlashSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec, hidden = spec, spec.hidden
        self.fc = Linear(len(spec.taps) * hidden, hidden, dtype=dtype, device=device)
        self.hidden_norm = RmsNorm(hidden, eps=spec.norm_eps, dtype=dtype, device=device)
        self.layers = nn.ModuleList(DFlashLayer(spec, layer, dtype=dtype, device=device) for layer in spec.layers)
        self.norm = RmsNorm(hidden, eps=spec.norm_eps, dtype=dtype, device=device)
        self.selector = None if spec.selector is None else CandidateSelector(
            spec.vocab_size, hidden, spec.selector.rank, dtype=dtype, device=device
        )

    @property
    def blocks(self) -> list[DFlashLayer]:
        return [layer for layer in self.layers if isinstance(layer, DFlashLayer)]

    def prepare(self) -> None:
        """To be called once, when the weights are there and before they are used."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepare()

    def keep(self, tapped: Tensor, rotary: Rotary, rings: Sequence[KeyRing], places: Tensor) -> None:
        """tapped [T, taps * hidden]: of every layer, keys and values of these tokens go into its ring, at places [T] int64."""
        context = self.hidden_norm(self.fc(tapped))
        for layer, ring in zip(self.blocks, rings, strict=True):
            layer.mixer.keep(context, rotary, ring, places)

    def forward(
        self, embedded: Tensor, rotary: Rotary, rings: Sequence[KeyRing], slots: Tensor, starts: Tensor, own: Tensor
    ) -> Tensor:
        """embedded [R B, hidden]: R blocks from positions `starts` [R] on -> hidden states after the last norm, [R B, hidden].

        slots [R]: whose rings are read. own [R B] int64: 0, 1, 2, ...
        """
        layers = self.blocks
        normed, hidden = layers[0].mixer_norm(embedded), embedded
        norms = (*(following.mixer_norm for _, following in pairwise(layers)), self.norm)
        for layer, ring, norm in zip(layers, rings, norms, strict=True):
            normed, hidden = layer(normed, hidden, rotary, ring, slots, starts, own, norm)
        result: Tensor = normed
        return result


class DFlashLayer(nn.Module):
    """One layer, from a norm to the next, with a convolution before and behind its attention and its MLP if there are any."""

    def __init__(self, model: DFlashSpec, spec: LayerSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        assert isinstance(spec.mixer, AttentionSpec)
        hidden, eps, self.block = model.hidden, model.norm_eps, model.block
        self.mixer_norm = RmsNorm(hidden, eps=eps, dtype=dtype, device=device)
        self.mixer = BlockAttention(spec.mixer, hidden, eps=eps, dtype=dtype, device=device)
        self.mlp_norm = RmsNorm(hidden, eps=eps, dtype=dtype, device=device)
        self.mlp = Mlp(spec.mlp, hidden, dtype=dtype, device=device)
        self.mixer_convolution, self.mlp_convolution = (
            None if model.convolution is None
            else BlockConvolution(hidden, model.convolution.taps, model.convolution.group, dtype=dtype, device=device)
            for _ in range(2)
        )

    def forward(
        self, normed: Tensor, hidden: Tensor, rotary: Rotary, ring: KeyRing, slots: Tensor, starts: Tensor, own: Tensor,
        next_norm: RmsNorm,
    ) -> tuple[Tensor, Tensor]:
        """hidden [T, hidden] and mixer_norm of it -> next_norm of hidden after this layer, and that."""
        convolution = self.mixer_convolution
        if convolution is None:
            mixed = self.mixer(normed, rotary, ring, slots, starts, own)
        else:
            changes = convolution.changes(normed)
            mixed = self.mixer(convolution(normed, changes, 0, self.block), rotary, ring, slots, starts, own)
            mixed = convolution(mixed, changes, 1, self.block)
        normed, hidden = self.mlp_norm.add(mixed, hidden)
        return next_norm.add(self._mlp(normed), hidden)

    def _mlp(self, x: Tensor) -> Tensor:
        convolution = self.mlp_convolution
        if convolution is None:
            return self.mlp.alone(x)
        changes = convolution.changes(x)
        y: Tensor = convolution(self.mlp.alone(convolution(x, changes, 0, self.block)), changes, 1, self.block)
        return y
