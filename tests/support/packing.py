"""Batches and pools for tests of the decoder, built without the runner: random pages, poisoned memory, scattered slots."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headrace.cache.layout import cache_groups
from headrace.layers.batch import Batch, Pools
from headrace.models.decoder import Decoder, build_decoder
from headrace.models.spec import AttentionSpec, GatedDeltaSpec, ModelSpec, WeightMap

CPU = torch.device("cpu")


def fill_decoder(
    spec: ModelSpec, weight_map: WeightMap, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device = CPU
) -> Decoder:
    """A decoder with a checkpoint's tensors, every parameter element of which must be given once."""
    decoder = build_decoder(spec, dtype=dtype, device=device)
    parameters = dict(decoder.named_parameters())
    given = dict.fromkeys(parameters, 0)
    for weight in weight_map.weights:
        source = tensors[weight.source]
        assert source.shape == weight.shape, weight
        source = source.squeeze(1) if weight.transform == "squeeze_conv" else source
        parameters[weight.target].data[weight.offset : weight.offset + len(source)] = source
        given[weight.target] += source.numel()
        assert not weight.wide or parameters[weight.target].dtype == torch.promote_types(dtype, torch.float32)
    assert given == {name: parameter.numel() for name, parameter in parameters.items()}
    return decoder


class Packing:
    """Sequences with pages and slots at random places; packs steps of them into Batches."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, *, page_tokens: int, pages: int, slots: int, seed: int = 0,
        device: torch.device = CPU, state_dtype: torch.dtype | None = None,
    ) -> None:
        self.spec, self.page_tokens, self.device = spec, page_tokens, device
        self.groups = cache_groups(spec)
        rng = random.Random(seed)
        self._free_pages = [rng.sample(range(pages), pages) for _ in self.groups]
        self._free_slots = rng.sample(range(slots), slots)
        self.slots: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.pages: dict[int, list[list[int]]] = {}
        self.pools = make_pools(spec, dtype, page_tokens, pages, slots, device, state_dtype or dtype)

    def admit(self, sequence: int) -> None:
        """Give the sequence a cleared slot."""
        slot = self._free_slots.pop()
        self.slots[sequence], self.lengths[sequence], self.pages[sequence] = slot, 0, [[] for _ in self.groups]
        for pool in (*self.pools.states, *self.pools.conv_tails):
            if pool is not None:
                pool[slot] = 0

    def pack(self, rows: Sequence[tuple[int, Sequence[int]]]) -> Batch:
        """One step of (sequence, its next tokens) rows; each sequence grows by them."""
        tokens = [t for _, row in rows for t in row]
        positions: list[int] = []
        offsets = [0]
        for sequence, row in rows:
            start = self.lengths[sequence]
            positions += range(start, start + len(row))
            self.lengths[sequence] = start + len(row)
            offsets.append(offsets[-1] + len(row))
            self._grow(sequence)
        ids = [sequence for sequence, _ in rows]
        lengths = [self.lengths[s] for s in ids]
        tables = tuple(self._table(ids, group) for group in range(len(self.groups)))
        owner = torch.tensor([r for r, (_, row) in enumerate(rows) for _ in row], device=self.device)
        at = torch.tensor(positions, device=self.device)
        page_tokens = self.page_tokens
        return Batch(
            tokens=torch.tensor(tokens, device=self.device), positions=at,
            row_offsets=torch.tensor(offsets, dtype=torch.int32, device=self.device),
            slots=torch.tensor([self.slots[s] for s in ids], device=self.device),
            lengths=torch.tensor(lengths, dtype=torch.int32, device=self.device), page_tables=tables,
            write_at=tuple(t[owner, at // page_tokens] * page_tokens + at % page_tokens for t in tables),
            host_row_tokens=tuple(len(row) for _, row in rows),
        )

    def _grow(self, sequence: int) -> None:
        needed = -(-self.lengths[sequence] // self.page_tokens)
        for group, held in enumerate(self.pages[sequence]):
            while len(held) < needed:
                held.append(self._free_pages[group].pop())

    def _table(self, ids: Sequence[int], group: int) -> Tensor:
        held = [self.pages[s][group] for s in ids]
        width = max(len(pages) for pages in held)
        other = held[0][0]  # entries past a row's end: valid ids of pages that are not its own
        return torch.tensor([pages + [other] * (width - len(pages)) for pages in held], device=self.device)


def make_pools(
    spec: ModelSpec, dtype: torch.dtype, page_tokens: int, pages: int, slots: int, device: torch.device,
    state_dtype: torch.dtype,
) -> Pools:
    """Pools full of NaN: memory that a sequence did not write must not reach its result."""
    def poisoned(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.full(shape, float("nan"), dtype=of, device=device)

    mixers = [layer.mixer for layer in spec.layers]
    group_of = {layer: group.index for group in cache_groups(spec) for layer in group.layers}
    keys, values = ([poisoned(pages, page_tokens, m.kv_heads, m.head_dim) if isinstance(m, AttentionSpec) else None
                     for m in mixers] for _ in range(2))
    states = [poisoned(slots, m.value_heads, m.value_dim, m.key_dim, of=state_dtype) if isinstance(m, GatedDeltaSpec) else None
              for m in mixers]
    tails = [poisoned(slots, m.conv_width - 1, m.conv_channels) if isinstance(m, GatedDeltaSpec) else None for m in mixers]
    return Pools(tuple(keys), tuple(values), tuple(states), tuple(tails), tuple(group_of.get(i) for i in range(len(mixers))))
