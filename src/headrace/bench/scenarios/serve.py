"""Load a running OpenAI-compatible server, and tell what its users would see.

Users who each wait for their answers (--concurrency), or requests that come whether the server keeps up or not (--rate). Both
may be given several times, for a run each. Token counts are the server's.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from headrace.bench.arrivals import arrival_times_s
from headrace.bench.client import Served, served_model
from headrace.bench.counters import Watch
from headrace.bench.exchange import Server
from headrace.bench.load import Asked, Sender, at_times, with_users
from headrace.bench.serve_settings import (
    DRAWN,
    USUAL_IDS,
    Level,
    Settings,
    check,
    common_fields,
    ids_within,
    levels,
    make_warm_up,
    make_workload,
)
from headrace.bench.strain import Strain
from headrace.bench.summary import Limits, raw, spread_ms, summarise
from headrace.bench.table import print_runs
from headrace.bench.workload import Conversation, conversations
from headrace.errors import HeadraceError

__all__ = ["Settings", "run"]


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """See `bench.scenarios`. The results' `runs` has one entry for each --concurrency and --rate, in this order."""
    check(settings)
    return asyncio.run(_run(settings, console))


async def _run(settings: Settings, console: Console) -> dict[str, Any]:
    server = Server.at(settings.url, settings.api_key)
    served = await _served(server, settings.model)
    model = served.name
    sender = Sender(server, {**common_fields(settings), "model": model}, settings.timeout_s)
    console.print(f"{model} at {server.url}, workload {settings.workload}, seed {settings.seed}")
    if settings.token_ids is None and served.vocab_size and ids_within(served.vocab_size) != USUAL_IDS:
        settings = replace(settings, token_ids=ids_within(served.vocab_size))
        if settings.workload in DRAWN:
            console.print(f"token ids {settings.token_ids}: the model has {served.vocab_size}")
    await _try_out(settings, sender)
    runs = [await _run_level(settings, level, sender) for level in levels(settings)]
    print_runs(console, runs)
    return {"model": model, "runs": runs}


async def _served(server: Server, name: str | None) -> Served:
    """A model whose name is given need not be in the server's list."""
    try:
        return await served_model(server, name)
    except HeadraceError:
        if name is None:
            raise
        return Served(name, None)


async def _run_level(settings: Settings, level: Level, sender: Sender) -> dict[str, Any]:
    """Its figures."""
    seed = f"{settings.seed}/{level.name}"
    planned = conversations(make_workload(settings, seed), seed, level.requests(settings))
    warm_up_failures = await _warm_up(settings, level, sender, f"{seed}/warm-up")
    watch, strain = Watch(sender.server, settings.sample_s), Strain()
    gc.collect()
    gc.freeze()  # the prompts: collections during the run need not look at them
    await watch.start()
    strain.start()
    asked, late_s = await _send(settings, level, sender, planned, seed)
    client, counters = strain.stop(), await watch.stop()
    gc.unfreeze()
    return {
        "concurrency": level.users,
        "rate": level.rate,
        "warmup_failures": warm_up_failures,
        **summarise(asked, Limits(settings.goodput_ttft_ms, settings.goodput_tpot_ms)),
        "client": {**client, "sent_late_ms": spread_ms(late_s)},
        "server": counters,
        **({"raw": raw(asked)} if settings.raw else {}),
    }


async def _send(
    settings: Settings, level: Level, sender: Sender, planned: Sequence[Conversation], seed: str
) -> tuple[list[Asked], list[float]]:
    """Answers, and how late each request was sent in seconds where there was a time for it."""
    if level.users is not None:
        return await with_users(sender, planned, level.users), []
    assert level.rate is not None
    return await at_times(sender, planned, arrival_times_s(settings.arrivals, level.rate, len(planned), seed))


async def _try_out(settings: Settings, sender: Sender) -> None:
    """One request. Raises HeadraceError if it fails: nothing would work."""
    seed = f"{settings.seed}/try"
    (conversation,) = conversations(make_warm_up(settings, seed), seed, 1)
    first, *_ = await sender.hold(0, replace(conversation, turns=conversation.turns[:1]))
    if failure := first.answer.failure:
        raise HeadraceError(f"{sender.server.url} does not answer as it should: {failure.kind}: {failure.message}")


async def _warm_up(settings: Settings, level: Level, sender: Sender, seed: str) -> int:
    """How many requests failed."""
    planned = conversations(make_warm_up(settings, seed), seed, level.warm_up(settings))
    return sum(asked.answer.failure is not None for asked in await with_users(sender, planned, level.users or len(planned)))
