"""What the front adds to a token's way: `python benchmarks/front.py`. Exits 1 when a target is missed.

An engine process without a model gives every stream a token at every step; the real front (engine link, detokenizer,
server-sent events, uvicorn) serves 64 chat streams from them; this process reads. The delay of a token is the time from just
before the engine process reports it to the arrival of its bytes here: all clocks are the machine's monotonic one. The
tokenizer is the demo model's. Streams start together, and the first second is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from headrace.config import EngineConfig, ServerConfig
from headrace.engine.chat import ChatTemplate
from headrace.engine.process import EngineProcess
from headrace.engine.tokenizer import Tokenizer, load_tokenizer
from headrace.plan.demo import demo_model_path
from headrace.server.serve import Service, run
from headrace.types import EngineInfo, EngineStats, Request, TokenEvent

WARM_UP_S = 1.0
MAX_DELAY_S = 0.020
MAX_CPU = 1.0


@dataclass(frozen=True)
class Load:
    """What the engine process is told, as a file. words: tokens that begin with a space, so that text can be counted."""

    streams: int
    tokens_per_s: int
    steps: int
    words: list[int]


class PacedCore:
    """Stands for engine.core.EngineCore: from the moment that all streams are there, a step at its time, whatever happens.

    The time of every step is written to `clock` before its events are.
    """

    def __init__(self, load: Load, clock: Path) -> None:
        self._load = load
        self._clock = clock.open("a")
        self._requests: list[str] = []
        self._step = 0
        self._began_s = 0.0

    @property
    def has_work(self) -> bool:
        return len(self._requests) == self._load.streams and self._step < self._load.steps

    def add(self, request: Request) -> None:
        self._requests.append(request.id)
        self._began_s = time.monotonic()

    def cancel(self, request_id: str) -> None:
        """The reader went away, at the end."""

    def step(self) -> list[TokenEvent]:
        if not self.has_work:
            return []
        self._step += 1
        due_s = self._began_s + self._step * self._load.streams / self._load.tokens_per_s
        time.sleep(max(0.0, due_s - time.monotonic()))
        words, end = self._load.words, "length" if self._step == self._load.steps else None
        events = [
            TokenEvent(request, (words[(self._step * 31 + number) % len(words)],), finish_reason=end)
            for number, request in enumerate(self._requests)
        ]
        self._clock.write(f"{time.monotonic():.6f}\n")
        self._clock.flush()
        return events

    def stats(self) -> EngineStats:
        return EngineStats(requests_running=len(self._requests))

    def close(self) -> None:
        self._clock.close()


@dataclass(frozen=True)
class Paced:
    core: PacedCore
    info: EngineInfo


def build(directory: Path, config: EngineConfig, progress: Callable[[int, int], None]) -> Paced:
    """The engine process's builder; `directory` has the load."""
    load = Load(**json.loads((directory / "load.json").read_text()))
    info = EngineInfo("paced", "cpu", "float32", 1 << 20, load.streams, 1024, 16, 1 << 16, max(load.words) + 1)
    return Paced(PacedCore(load, directory / "clock"), info)


def serve(directory: Path, ready: Connection) -> None:
    """The front's process."""
    tokenizer = load_tokenizer(demo_model_path())

    async def start() -> Service:
        engine = await EngineProcess.start(str(directory), EngineConfig(), max_queue=64, builder=f"{_module()}:build")
        return Service(engine, tokenizer, ChatTemplate(tokenizer.chat_template or "", tokenizer))

    sys.exit(run(start, ServerConfig(port=0), announce=lambda line: ready.send(line.rsplit(":", 1)[1])))


def _module() -> str:
    """This file's name for the engine process, which must be able to import it."""
    directory = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([directory, os.environ.get("PYTHONPATH", "")])
    return Path(__file__).stem


@dataclass
class Reader(asyncio.Protocol):
    """One stream's bytes with their arrival times; they are looked into when all is over."""

    body: bytes
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(self.body)}\r\n\r\n"
        transport.write(head.encode() + self.body)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.monotonic(), data))

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()

    def arrivals(self) -> list[float]:
        """The time of every token."""
        times: list[float] = []
        held = b""
        for arrived_s, data in self.parts:
            *events, held = (held + data).split(b"\n\n")
            for event in events:
                _, _, content = event.partition(b'"delta":{"content":"')
                times += [arrived_s] * content.partition(b'"')[0].count(b" ")
        return times


def words_of(tokenizer: Tokenizer) -> list[int]:
    """Tokens of a space and letters."""
    texts = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return [token for token, text in texts if text[:1] == b" " and text[1:].isalpha() and text.isascii()]


async def read_streams(port: int, streams: int) -> list[Reader]:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
    readers = [Reader(body) for _ in range(streams)]
    for reader in readers:
        await asyncio.get_running_loop().create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]
    for reader in readers:
        await reader.ended.wait()
    return readers


def delays_s(readers: list[Reader], clock: list[float]) -> Iterator[float]:
    """Of all tokens after the warm-up. Raises ValueError if one is missing."""
    for reader in readers:
        times = reader.arrivals()
        if len(times) != len(clock):
            raise ValueError(f"a stream got {len(times)} of {len(clock)} tokens")
        yield from (arrived - emitted for arrived, emitted in zip(times, clock, strict=True) if emitted > clock[0] + WARM_UP_S)


def measure(load: Load) -> bool:
    """Print what was measured; returns whether the targets were met."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "load.json").write_text(json.dumps(load.__dict__))
        ours, theirs = multiprocessing.Pipe()
        front = multiprocessing.get_context("spawn").Process(target=serve, args=(directory, theirs))
        front.start()
        port = int(ours.recv())
        process = psutil.Process(front.pid)
        before, began_s = process.cpu_times(), time.monotonic()
        readers = asyncio.run(read_streams(port, load.streams))
        took_s, after = time.monotonic() - began_s, process.cpu_times()
        front.terminate()
        front.join()
        clock = [float(line) for line in (directory / "clock").read_text().split()]
    cpu = (after.user + after.system - before.user - before.system) / took_s
    return _report(load, sorted(delays_s(readers, clock)), cpu, (len(clock) - 1) * load.streams / (clock[-1] - clock[0]))


def _report(load: Load, delays: list[float], cpu: float, tokens_per_s: float) -> bool:
    percentiles = statistics.quantiles(delays, n=1000)
    p50, p99, p999 = percentiles[499], percentiles[989], percentiles[998]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {load.streams} chat streams, demo tokenizer")
    print(f"tokens/s {tokens_per_s:.0f} (asked for {load.tokens_per_s}), {len(delays)} tokens measured")
    print(f"front: {cpu:.2f} of a core (target under {MAX_CPU:g})")
    print(f"added delay, ms: p50 {p50 * 1e3:.2f}, p99 {p99 * 1e3:.2f} (target under {MAX_DELAY_S * 1e3:g}), "
          f"p99.9 {p999 * 1e3:.2f}, most {delays[-1] * 1e3:.2f}")
    return p99 < MAX_DELAY_S and cpu < MAX_CPU and tokens_per_s > 0.99 * load.tokens_per_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens-per-s", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    words = words_of(load_tokenizer(demo_model_path()))
    steps = round(options.seconds * options.tokens_per_s / options.streams)
    return 0 if measure(Load(options.streams, options.tokens_per_s, steps, words)) else 1


if __name__ == "__main__":
    sys.exit(main())
