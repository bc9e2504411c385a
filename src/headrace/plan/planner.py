"""From settings to a case: which model in which format, on which cards, with what beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.config import EngineConfig, PlanConfig
from headrace.errors import ConfigError
from headrace.hardware import Hardware, driver_and_gpus, ram_bytes
from headrace.plan.auto_drafter import Drafting, off, resolve_drafter
from headrace.plan.cards import Card, card, card_of_driver
from headrace.plan.checkpoint import Model
from headrace.plan.drafters import NO_DRAFTER, DrafterMemory
from headrace.plan.dtypes import Dtypes, has_scales, resolve_dtypes
from headrace.plan.engine_settings import check_seqs, check_settings
from headrace.plan.extras import BudgetLine, Extras
from headrace.plan.fit import NO_LIMIT_BYTES, Case, outcome
from headrace.plan.host_memory import check_host_memory
from headrace.plan.speculation import check_drafts, drafter_extras
from headrace.plan.stages import split
from headrace.plan.state_memory import state_bytes_per_sequence
from headrace.quantities import counted, exact_size

ANY_CARD = Card("card", NO_LIMIT_BYTES)
VISION_LINE = "weights vision"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. format: of a published model, None of a checkpoint on disk."""

    format: str | None
    engine: EngineConfig
    plan: PlanConfig

    @property
    def decides(self) -> bool:
        """Whether a drafter is taken only if there is room for one."""
        return self.engine.speculate == "auto" and not self.engine.drafter


@dataclass(frozen=True, slots=True)
class Plan:
    """A request worked out: what fits is asked of `case`, and the most that fits of `limits`: auto goes without a drafter, and
    without a vision tower, where there is no room for one. served: with --vision auto, the plan without a tower, as `serve` is
    so far; None where it is the same.
    """

    request: Request
    model: Model
    cards: tuple[Card, ...]
    dtypes: Dtypes
    drafting: Drafting
    case: Case
    limits: Case
    served: Plan | None = None

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
    check_seqs("users", settings.users)
    if settings.vram_bytes is not None and settings.vram_bytes < 1:
        raise ConfigError(f"vram_bytes must be 1 or more, not {settings.vram_bytes}")
    if settings.desktop_bytes < 0:
        raise ConfigError(f"desktop_bytes must be 0 or more, not {settings.desktop_bytes}")
    check_settings(model.spec, request.engine)
    if settings.gpu is None and settings.vram_bytes is None:
        check_host_memory(request.engine, ram_bytes())
    devices = [_hardware(each, request) for each in cards]
    dtypes = resolve_dtypes(request.engine, devices[0], model.checkpoint.dtype)
    if settings.kv_scales == "one" and not has_scales(dtypes.kv):
        raise ConfigError("--kv-scales one is for --kv-dtype fp8 and int8")
    tower = _vision(model, settings)

    def planned(lines: tuple[BudgetLine, ...]) -> Plan:
        beside = Extras(lines, one_scale=settings.kv_scales == "one")
        drafting = _drafting(model, request, devices, dtypes, beside)
        case = _case(model, request, devices, dtypes, drafting.memory, beside)
        limits = _case(model, request, devices, dtypes, NO_DRAFTER, beside) if request.decides else case
        return Plan(request, model, tuple(cards), dtypes, drafting, case, limits)

    return planned(tower) if settings.vision == "on" or not tower else _with_room(planned(()), lambda: planned(tower))


def _with_room(served: Plan, whole: Callable[[], Plan]) -> Plan:
    """With a vision tower where it costs neither what is asked for nor the drafter; else as `serve` is so far."""
    asked = served.request.engine.context, served.request.plan.users
    if not outcome(served.case, *asked).fits:
        return served
    plan = whole()
    if plan.drafter != served.drafter or not outcome(plan.case, *asked).fits:
        return served
    return replace(plan, drafting=served.drafting, limits=served.limits, served=served)


def _drafting(
    model: Model, request: Request, devices: Sequence[Hardware], dtypes: Dtypes, beside: Extras
) -> Drafting:
    """As an engine on the first card decides it, for so many users."""
    engine = replace(request.engine, max_seqs=request.plan.users)
    if request.decides and len(devices) > 1:
        check_drafts(model, engine)
        return off(engine, "over several cards drafts are planned if they are asked for")
    return resolve_drafter(model, engine, devices[0], dtypes, beside)


def _case(
    model: Model, request: Request, devices: Sequence[Hardware], dtypes: Dtypes, drafter: DrafterMemory, beside: Extras
) -> Case:
    engine, last = request.engine, replace(beside, lines=())
    extras = drafter_extras(model, replace(engine, max_seqs=request.plan.users), dtypes, drafter, last)
    stages = split(replace(model.spec, drafter=drafter.cache), model.weight_map, devices, dtypes, beside.lines, extras)
    if engine.gpu_checkpoint_bytes is not None:
        engine = replace(engine, gpu_checkpoint_bytes=engine.gpu_checkpoint_bytes // len(stages))
    return Case(stages, engine, dtypes, drafter.drafts, model.spec.max_context)


def _hardware(each: Card, request: Request) -> Hardware:
    """As CUDA tells it."""
    held, given = request.plan.desktop_bytes, each.memory_bytes - each.kept_bytes
    if held > given:
        raise ConfigError(f"desktop_bytes: {exact_size(held)} are more than the {each.name}'s {exact_size(given)}")
    return Hardware(
        "cuda", each.name, given, given - held, capability=each.capability, elsewhere=True, processors=each.processors,
        context_bytes=request.engine.cuda_context_bytes,
    )


def tower_bytes(model: Model) -> int:
    """Of its vision tower as it is stored; 0 without one."""
    return sum(model.checkpoint.tensors[name].nbytes for name in _tower(model))


def _tower(model: Model) -> list[str]:
    return [name for reason, names in model.weight_map.left_out if reason == "vision tower" for name in names]


def _vision(model: Model, settings: PlanConfig) -> tuple[BudgetLine, ...]:
    names = _tower(model)
    if settings.vision == "on" and not names:
        raise ConfigError(f"--vision on: {model.checkpoint.path} has no vision tower")
    if settings.vision == "off" or not names:
        return ()
    why = f"{counted(len(names), 'tensor')} of the vision tower, planned for; `serve` leaves them out so far (--vision off)"
    return (BudgetLine(VISION_LINE, tower_bytes(model), why),)
