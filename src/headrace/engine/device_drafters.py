"""The drafter on the device that an engine's settings ask for, with its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.budget import Budget
from headrace.plan.checkpoint import Model
from headrace.plan.dflash import drafter_model, open_dflash, published_dflash
from headrace.plan.drafters import DrafterMemory
from headrace.plan.dtypes import Dtypes
from headrace.plan.mtp import head_model, mtp_head
from headrace.plan.own_drafter import drafter_folder
from headrace.plan.speculation import looked_up

if TYPE_CHECKING:
    import torch

    from headrace.layers.batch import Pools
    from headrace.models.decoder import Decoder
    from headrace.runner.runner import MakeDrafter
    from headrace.speculate.device_lookup import DeviceLookup
    from headrace.speculate.dflash_model import DFlashModel
    from headrace.speculate.drafter import DeviceDrafter
    from headrace.speculate.mtp import MtpModule


def drafter_maker(
    model: Model, config: EngineConfig, budget: Budget, dtypes: Dtypes, memory: DrafterMemory, decoder: Decoder
) -> MakeDrafter | None:
    """What makes the drafter of the pools; its weights are there when this returns. None without a drafter.

    Raises ConfigError where there are no weights to be had, and CheckpointError for weights that cannot be read.
    """
    from headrace.speculate.device_lookup import DeviceLookup
    from headrace.speculate.dflash import DFlashDrafter
    from headrace.speculate.drafter import Surroundings
    from headrace.speculate.extended import Extended
    from headrace.speculate.mtp import MtpDrafter

    device, layout, most = decoder.embedding.weight.device, budget.layout, memory.drafts - memory.extended
    layers = len(model.spec.layers)

    def around(pools: Pools) -> Surroundings:
        groups = tuple(group for group in pools.group_of[layers:] if group is not None)
        return Surroundings(decoder, pools, layout, dtypes, layers, groups, budget.context, budget.max_seqs)

    def lookup() -> DeviceLookup:
        return DeviceLookup(memory.drafts, layout.pool_slots, looked_up(model, config), device)

    def extended(drafter: DeviceDrafter) -> DeviceDrafter:
        return Extended(drafter, lookup()) if memory.extended else drafter

    match memory.method:
        case "off":
            return None
        case "lookup":
            return lambda pools: lookup()
        case "mtp":
            head = _mtp(model, config, dtypes, device)
            return lambda pools: extended(MtpDrafter(head, around(pools), most, config.draft_vocabulary))
        case "dflash":
            drafter = _dflash(model, config, dtypes, device)
            return lambda pools: extended(DFlashDrafter(drafter, around(pools), most))


def _mtp(model: Model, config: EngineConfig, dtypes: Dtypes, device: torch.device) -> MtpModule:
    import torch

    from headrace.loader import load_weights
    from headrace.random_weights import make_weights
    from headrace.speculate.mtp import build_mtp

    head, dtype = mtp_head(model), getattr(torch, dtypes.compute)
    module = build_mtp(model.spec, head.layer, len(model.spec.layers), dtype=dtype, device=device, formats=head.formats)
    if config.random_weights:
        make_weights(module)
    else:
        load_weights(head_model(model, head), module)
    module.prepare()
    return module


def _dflash(model: Model, config: EngineConfig, dtypes: Dtypes, device: torch.device) -> DFlashModel:
    """That of --drafter, or the checkpoint's own; with random weights and no directory, as the published one."""
    import torch

    from headrace.loader import load_weights
    from headrace.random_weights import make_weights
    from headrace.speculate.dflash_model import build_dflash

    dtype, folder = getattr(torch, dtypes.compute), drafter_folder(model, config)
    if folder is not None:
        files = open_dflash(folder, model.spec)
        module = build_dflash(files.spec, dtype=dtype, device=device, formats=files.formats)
        load_weights(drafter_model(model, files), module)
    elif config.random_weights:
        module = build_dflash(published_dflash()[0], dtype=dtype, device=device)
        make_weights(module)
    else:
        raise ConfigError("--speculate dflash needs --drafter DIR, the directory of the drafter")
    module.prepare()
    return module
