"""Thousands of requests of mixed length over HTTP on a tiny hybrid that never has enough pages, with clients that leave.

Many begin alike, so prefixes are kept, evicted, and brought back from host memory and SSD. Every answer is compared with what
the same request yields alone, in process, without a prefix cache; at the end nothing is held and memory is flat.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.server_process import ServerProcess
from tests.support.tiny import make_tiny_checkpoint

from headrace import LLM, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 300
USERS = 24
PAGES = 24
PAGE_BYTES = 16 * 2 * 2 * 16 * 8  # one attention layer, two KV heads of 16, float64
STATE_BYTES = 3 * (4 * 8 * 8 + 64 * 3) * 8
SEQUENCES, KEPT_STATES = 16, 8
SETTINGS = {"dtype": "float64", "context": CONTEXT, "chunk_tokens": 96}
SERVED = {
    "max_seqs": SEQUENCES,
    "cache_bytes": (SEQUENCES + KEPT_STATES) * STATE_BYTES + PAGES * PAGE_BYTES,
    "gpu_checkpoint_bytes": KEPT_STATES * STATE_BYTES,
    "ram_cache_bytes": 12 * STATE_BYTES + 40 * PAGE_BYTES,
    "ssd_cache_bytes": 200 * STATE_BYTES,
}
ALONE = {"max_seqs": 1, "chunk_tokens": 1024, "prefix_cache": "off"}


@dataclass
class Job:
    """One request, how many chunks its client reads before it leaves (None: all), and what it was answered."""

    body: dict[str, Any]
    leaves_after: int | None
    text: str = ""
    logprobs: list[float] = field(default_factory=list)  # of each token
    finish_reason: str | None = None


def make_jobs(count: int, seed: int, vocab_size: int) -> list[Job]:
    rng = random.Random(seed)
    openings = [[rng.randrange(3, vocab_size) for _ in range(100)] for _ in range(3)]
    jobs = []
    for number in range(count):
        prompt = rng.choice(openings)[: rng.choice((0, 0, 30, 64, 100))]
        prompt = prompt + [rng.randrange(3, vocab_size) for _ in range(rng.choice((1, 5, 20, 20, 50)))]
        body = {
            "prompt": prompt,
            "max_tokens": rng.choice((1, 30, 80, 120)),
            "seed": number,
            "temperature": rng.choice((0.0, 0.8, 1.3)),
            "top_k": rng.choice((0, 10)),
            "top_p": rng.choice((1.0, 0.9)),
            "repetition_penalty": rng.choice((1.0, 1.2)),
            "ignore_eos": rng.random() < 0.7,
            "min_tokens": rng.choice((0, 1)),
        }
        jobs.append(Job(body, rng.choice((0, 1, 3, 10)) if rng.random() < 0.25 else None))
    return jobs


async def run_job(client: httpx.AsyncClient, job: Job) -> None:
    body = {**job.body, "stream": True, "logprobs": 0}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        chunks = 0
        async for line in response.aiter_lines():
            if job.leaves_after is not None and chunks >= job.leaves_after:
                return
            if not line.startswith("data: {"):
                continue
            chunks += 1
            (choice,) = json.loads(line[6:])["choices"]
            assert choice["finish_reason"] is None or job.finish_reason is None
            job.finish_reason = choice["finish_reason"] or job.finish_reason
            job.text += choice["text"]
            job.logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]


async def run_jobs(url: str, jobs: list[Job], done: Callable[[int], None]) -> None:
    waiting = list(enumerate(jobs))[::-1]
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def user() -> None:
            while waiting:
                number, job = waiting.pop()
                await run_job(client, job)
                done(number)

        await asyncio.gather(*(user() for _ in range(USERS)))


async def metrics(url: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=url) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def check_against_alone(model: Path, jobs: list[Job]) -> None:
    """Answers equal the model's own, computed one request at a time, token for token; what was cut short is its beginning."""
    with LLM(model, device="cpu", **{**SETTINGS, **ALONE}) as llm:
        for job in jobs:
            body = {name: value for name, value in job.body.items() if name != "prompt"}
            (alone,) = llm.generate([job.body["prompt"]], SamplingParams(**body, logprobs=0))
            assert alone.logprobs is not None
            expected = [entry.logprob for entry in alone.logprobs]
            if job.leaves_after is None:
                assert (job.text, job.finish_reason) == (alone.text, alone.finish_reason)
                assert len(job.logprobs) == len(expected)
            assert job.logprobs == pytest.approx(expected[: len(job.logprobs)], abs=1e-9)


async def soak(tmp_path: Path, count: int, seed: int, compared: int) -> dict[str, float]:
    """Run `count` requests and compare some; returns the final metrics, and both processes' growth after the first third."""
    model = make_tiny_checkpoint(tmp_path / "model", "qwen3_5_text", seed=7)
    settings = {**SETTINGS, **SERVED, "ssd_cache": tmp_path / "ssd"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    jobs = make_jobs(count, seed, vocab_size=280)
    with ServerProcess(model, *flags, log=tmp_path / "server.log") as server:
        resident: dict[int, tuple[int, int]] = {}

        def done(number: int) -> None:
            if number in (count // 3, count - USERS - 1):
                resident[number] = server.resident_bytes()

        await run_jobs(server.url, jobs, done)
        await asyncio.sleep(1.0)  # the last clients' leaving is noticed
        found = await metrics(server.url)
    first, last = resident[count // 3], resident[count - USERS - 1]
    found |= {"front_growth_bytes": last[0] - first[0], "engine_growth_bytes": last[1] - first[1]}
    assert found["headrace_requests_running"] == found["headrace_requests_waiting"] == 0
    assert found["headrace_kv_pages_used"] == found["headrace_slots_used"] == 0
    assert found["headrace_kv_pages_total"] == PAGES and found["headrace_checkpoints_total"] == KEPT_STATES
    assert found["headrace_prefix_hits_total"] >= count // 20
    assert found['headrace_prefix_restores_total{tier="host"}'] >= count // 50
    assert found['headrace_prefix_restores_total{tier="ssd"}'] > 0
    assert all(job.finish_reason is not None for job in jobs if job.leaves_after is None), "an answer was lost"
    check_against_alone(model, random.Random(seed).sample(jobs, compared))
    return found


async def test_a_tenth_of_the_soak(tmp_path: Path) -> None:
    found = await soak(tmp_path, 200, seed=1, compared=40)
    assert found["headrace_preemptions_total"] >= 20


@pytest.mark.long
async def test_soak(tmp_path: Path) -> None:
    found = await soak(tmp_path, 2000, seed=2, compared=400)
    print({name: value for name, value in found.items() if "bucket" not in name})
    assert found["headrace_preemptions_total"] >= 200
    assert found["front_growth_bytes"] < 20e6 and found["engine_growth_bytes"] < 20e6
