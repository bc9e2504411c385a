"""The one decoder: modules built from a ModelSpec."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from headrace.cache.layout import cache_groups
from headrace.kernels.linear import form_of, linear
from headrace.kernels.precision import accumulation_dtype
from headrace.kernels.rms_norm import Activations, finished
from headrace.layers.arena import settle
from headrace.layers.attention import Attention
from headrace.layers.batch import Batch, Pools
from headrace.layers.embedding import Embedding
from headrace.layers.gated_delta import GatedDelta
from headrace.layers.linear import Linear
from headrace.layers.mlp import Mlp
from headrace.layers.norm import RmsNorm
from headrace.layers.rope import frequencies
from headrace.layers.step import Step, prepare_step
from headrace.models.spec import AttentionSpec, LayerSpec, ModelSpec
from headrace.quant import LinearFormat
from headrace.quant.unquantized import Plain


def build_decoder(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, formats: Mapping[str, LinearFormat] | None = None
) -> Decoder:
    """The model's modules on `device`, parameters uninitialised. Their paths are the targets of the spec's WeightMap.

    formats: how linear layers keep their weights, by path; plain where nothing is said.
    """
    decoder = Decoder(spec, dtype=dtype, device=device)
    for path, module in decoder.named_modules():
        if isinstance(module, Linear):
            module.allocate((formats or {}).get(path, Plain()))
    settle(decoder, device)
    return decoder


class Decoder(nn.Module):
    """Embedding, layers, final norm, head. Parameters are outlines until `build_decoder` gives them their memory."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.spec = spec
        self.windows = tuple(group.window for group in cache_groups(spec))
        mixers = [layer.mixer for layer in spec.layers]
        ropes = dict.fromkeys(m.rope for m in mixers if isinstance(m, AttentionSpec))
        self.frequencies = {rope: frequencies(rope, device) for rope in ropes}
        device = torch.device("meta")
        self.embedding = Embedding(spec.vocab_size, spec.hidden, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer, index, dtype=dtype, device=device) for index, layer in enumerate(spec.layers)
        )
        self.norm = RmsNorm(spec.hidden, eps=spec.norm_eps, offset=spec.norm_offset, dtype=dtype, device=device)
        self.head = None if spec.tied else Linear(spec.hidden, spec.vocab_size, dtype=dtype, device=device)

    def prepare(self) -> None:
        """To be called once, when the weights are there and before the first step."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepare()
        for module in self.modules():
            if isinstance(module, DecoderLayer):
                module.tell_norms()

    def outline(self) -> Decoder:
        """This decoder with one layer of each kind, the first, whose norm stands alone, and the last: its passes launch every
        kernel that whole ones launch.
        """
        kinds: dict[object, nn.Module] = {}
        for spec, layer in zip(self.spec.layers, self.layers, strict=True):
            formats = tuple(module.format for module in layer.modules() if isinstance(module, Linear))
            kinds.setdefault((spec, formats, layer is self.layers[0], layer is self.layers[-1]), layer)
        found = copy.copy(self)
        found._modules = self._modules | {"layers": nn.ModuleList(kinds.values())}
        return found

    def forward(self, batch: Batch, pools: Pools, wanted: Tensor | None = None) -> Tensor:
        """Hidden states after the final norm, [T, hidden]; with `wanted` [N] int64 those of these tokens only, [N, hidden].

        The rows' pages, states and tails are brought up to date. Behind the last mixer only what is wanted is computed.
        """
        return self._run(batch, pools, wanted)[0]

    def tapped(self, batch: Batch, pools: Pools, taps: tuple[int, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As `forward`, with the residual sums behind the layers `taps` as well, each [T, hidden]. An outline gives the last
        layer's for those that it lacks.
        """
        return self._run(batch, pools, None, taps)

    def _run(
        self, batch: Batch, pools: Pools, wanted: Tensor | None, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden = self.embedding(batch.tokens)
        step = prepare_step(batch, pools, self.windows, self.frequencies, hidden)
        layers = [layer for layer in self.layers if isinstance(layer, DecoderLayer)]
        normed: Activations = layers[0].mixer_norm(hidden)
        sums: dict[int, Tensor] = {}
        for index, (layer, following) in enumerate(pairwise(layers)):
            normed, hidden = layer(normed, hidden, step, following.mixer_norm)
            if index in taps:
                sums[index] = hidden
        normed, hidden = layers[-1](normed, hidden, step, self.norm, wanted)
        return finished(normed), tuple(sums.get(index, hidden) for index in taps)

    def token_forms(self, tokens: int) -> tuple[Hashable, ...]:
        """What a step's number of tokens decides of the kernels of each linear layer: those of equal answers are the same."""
        layers = (layer for layer in self.layers if isinstance(layer, DecoderLayer))
        return tuple(form for layer in layers for part in (layer.mixer, layer.mlp) for form in part.forms(tokens))

    def row_forms(self, pools: Pools) -> tuple[Callable[[int, int], tuple[Hashable, ...]], ...]:
        """The same of the mixers' kernels: of a step's number of rows, and of tokens of the longest of those that are short."""
        found = (layer.mixer.row_forms(pools) for layer in self.layers if isinstance(layer, DecoderLayer))
        return tuple(forms for forms in found if forms is not None)

    def head_form(self, rows: int) -> Hashable:
        """The same of the kernels of `scores`, of a number of rows."""
        if self.head is not None:
            return self.head.form_of(rows)
        table = self.embedding.weight
        return form_of(table.new_empty(1, table.shape[1]).expand(rows, -1), table)

    def scores(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden] -> [N, vocab] in the model's type."""
        scores: Tensor = linear(hidden, self.embedding.weight) if self.head is None else self.head(hidden)
        return scores

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores in the larger of float32 and the model's type."""
        scores = self.scores(hidden)
        return scores.to(accumulation_dtype(scores.dtype))


class DecoderLayer(nn.Module):
    """One layer, from a norm to the next: what adds to the residual sum also makes the norm of it that is read next."""

    def __init__(self, model: ModelSpec, spec: LayerSpec, index: int, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        eps, offset, hidden = model.norm_eps, model.norm_offset, model.hidden
        self.mixer_norm = RmsNorm(hidden, eps=eps, offset=offset, dtype=dtype, device=device)
        self.mixer: Attention | GatedDelta
        if isinstance(spec.mixer, AttentionSpec):
            self.mixer = Attention(spec.mixer, hidden, index, eps=eps, norm_offset=offset, dtype=dtype, device=device)
        else:
            self.mixer = GatedDelta(spec.mixer, hidden, index, eps=eps, dtype=dtype, device=device)
        self.mlp_norm = RmsNorm(hidden, eps=eps, offset=offset, dtype=dtype, device=device)
        self.mlp = Mlp(spec.mlp, hidden, dtype=dtype, device=device)

    def tell_norms(self) -> None:
        """To be called when the linear layers are prepared: who reads each norm."""
        self.mixer_norm.pending, self.mlp_norm.pending = self.mixer.reads_pending(), self.mlp.reads_pending()

    def forward(
        self, normed: Activations, hidden: Tensor, step: Step, next_norm: RmsNorm, wanted: Tensor | None = None
    ) -> tuple[Activations, Tensor]:
        """hidden [T, hidden] and mixer_norm of it -> next_norm of hidden after this layer, and that, of the wanted tokens."""
        mixed = self.mixer(normed, step)
        if wanted is not None:
            mixed, hidden = mixed[wanted], hidden[wanted]
            if not len(wanted):
                return hidden, hidden
        normed, hidden = self.mlp_norm.behind(self.mixer.out, mixed, hidden)
        layer: tuple[Activations, Tensor] = self.mlp(normed, hidden, next_norm)
        return layer
