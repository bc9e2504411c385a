"""From settings to a case: which model in which format, on which cards, with what beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.config import EngineConfig, PlanConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware, driver_and_gpus, ram_bytes
from headrace.plan.auto_drafter import Drafting, resolve_drafter
from headrace.plan.cards import Card, card, card_of_driver
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import NO_DRAFTER, DrafterMemory
from headrace.plan.dtypes import Dtypes, has_scales, resolve_dtypes
from headrace.plan.engine_settings import check_settings
from headrace.plan.extras import BudgetLine
from headrace.plan.fit import NO_LIMIT_BYTES, Case, outcome
from headrace.plan.host_memory import check_host_memory
from headrace.plan.speculation import drafter_extras, drafter_for
from headrace.plan.stages import split
from headrace.plan.state_memory import state_bytes_per_sequence

ANY_CARD = Card("card", NO_LIMIT_BYTES)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. format: of a published model, None of a checkpoint on disk."""

    format: str | None
    engine: EngineConfig
    plan: PlanConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """A request worked out: what fits is asked of `case`."""

    request: Request
    model: Model
    cards: tuple[Card, ...]
    dtypes: Dtypes
    drafting: Drafting
    case: Case

    @property
    def drafter(self) -> DrafterMemory:
        return self.drafting.memory

    @property
    def state_bytes(self) -> int:
        """Of one sequence of the target: S and convolution tails."""
        return state_bytes_per_sequence(self.model.spec, self.dtypes)

    @property
    def checkpoint_bytes(self) -> int:
        """Of one sequence at one position: the state, with what a drafter keeps of it."""
        return state_bytes_per_sequence(replace(self.model.spec, drafter=self.drafter.cache), self.dtypes)


def cards_for(plan: PlanConfig) -> tuple[Card, ...]:
    """Cards by name, else one of --vram-bytes, else this machine's first, else one of any size."""
    if plan.gpu is not None:
        named = tuple(map(card, _names(plan.gpu)))
        return named if plan.vram_bytes is None else tuple(_of_size(each, plan.vram_bytes) for each in named)
    if plan.vram_bytes is not None:
        return (Card("card", plan.vram_bytes),)
    _, gpus = driver_and_gpus()
    return tuple(
        card_of_driver(gpu.name, gpu.memory_bytes, 10 * gpu.compute_capability[0] + gpu.compute_capability[1])
        for gpu in gpus[:1]
    ) or (ANY_CARD,)


def _of_size(each: Card, memory_bytes: int) -> Card:
    """As if its memory were what is given, all of it."""
    return replace(each, memory_bytes=memory_bytes, kept_bytes=0)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"--gpu {text!r}: a name is missing beside a comma")
    return names


def make_plan(request: Request, cards: Sequence[Card], models: Callable[[str | None], Model]) -> Plan:
    """models: the model in a format. Raises ConfigError for settings that no card could serve with."""
    model, settings = models(request.format), request.plan
    for name in ("vram_bytes", "users"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be 1 or more, not {value}")
    if settings.desktop_bytes < 0:
        raise ConfigError(f"desktop_bytes must be 0 or more, not {settings.desktop_bytes}")
    check_settings(model.spec, request.engine)
    if settings.gpu is None and settings.vram_bytes is None:
        check_host_memory(request.engine, ram_bytes())
    devices = [_hardware(each, request) for each in cards]
    dtypes = resolve_dtypes(request.engine, devices[0], model.checkpoint.dtype)
    if settings.kv_scales == "one" and not has_scales(dtypes.kv):
        raise ConfigError("--kv-scales one is for --kv-dtype fp8 and int8")
    drafting = _drafting(model, request, devices, dtypes)
    made = _with(drafting, model, request, cards, devices, dtypes)
    if request.engine.speculate == "auto" and made.drafter.method != "off" and not _fits(made):
        off = Drafting(NO_DRAFTER, f"with {made.drafter.method} it does not fit")
        without = _with(off, model, request, cards, devices, dtypes)
        return without if _fits(without) else made
    return made


def _drafting(model: Model, request: Request, devices: Sequence[Hardware], dtypes: Dtypes) -> Drafting:
    """As an engine on the first card decides it, for so many users."""
    engine = replace(request.engine, max_seqs=request.plan.users)
    if engine.speculate == "auto" and not engine.drafter and len(devices) > 1:
        memory = drafter_for(model, replace(request.engine, speculate="off"), dtypes)
        return Drafting(memory, "over several cards drafts are planned if they are asked for")
    return resolve_drafter(model, engine, devices[0], dtypes)


def _fits(plan: Plan) -> bool:
    return outcome(plan.case, plan.request.engine.context, plan.request.plan.users).fits


def _with(
    drafting: Drafting, model: Model, request: Request, cards: Sequence[Card], devices: Sequence[Hardware], dtypes: Dtypes
) -> Plan:
    drafter, settings = drafting.memory, request.plan
    extras = replace(drafter_extras(model, request.engine, dtypes, drafter), one_scale=settings.kv_scales == "one")
    spec = replace(model.spec, drafter=drafter.cache)
    stages = split(spec, model.weight_map, devices, dtypes, _vision(model, settings), extras)
    engine = request.engine
    if engine.gpu_checkpoint_bytes is not None:
        engine = replace(engine, gpu_checkpoint_bytes=engine.gpu_checkpoint_bytes // len(stages))
    case = Case(stages, engine, dtypes, drafter.drafts, model.spec.max_context)
    return Plan(request, model, tuple(cards), dtypes, drafting, case)


def _hardware(each: Card, request: Request) -> Hardware:
    """As CUDA tells it."""
    held, given = request.plan.desktop_bytes, each.memory_bytes - each.kept_bytes
    if held > given:
        raise ConfigError(f"desktop_bytes {held} is more than the {each.name}'s {given}")
    return Hardware(
        "cuda", each.name, given, given - held, capability=each.capability, elsewhere=True, processors=each.processors,
        context_bytes=request.engine.cuda_context_bytes,
    )


def _vision(model: Model, settings: PlanConfig) -> tuple[BudgetLine, ...]:
    names = [name for reason, names in model.weight_map.left_out if reason == "vision tower" for name in names]
    if settings.vision == "on" and not names:
        raise ConfigError(f"--vision on: {model.checkpoint.path} has no vision tower")
    if settings.vision == "off" or not names:
        return ()
    stored = sum(model.checkpoint.tensors[name].nbytes for name in names)
    why = f"{len(names)} tensors of the vision tower, which `serve` leaves out so far (--vision off)"
    return (BudgetLine("weights vision", stored, why),)
