"""What the client of `headrace bench serve` costs and adds: `python benchmarks/load_client.py`. Exits 1 if a target is missed.

A process that is nothing but sockets gives every stream an event at every step, with the time of its sending as its text; the
client reads all streams. A chunk's delay is the time from its sending to the moment that the client put down for it: both
clocks are the machine's monotonic one.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection

from headrace.bench.client import Answer, ask
from headrace.bench.exchange import Server
from headrace.bench.strain import Strain
from headrace.bench.summary import spread_ms

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1790000000,'
    '"model":"paced","choices":[{"index":0,"delta":{"content":"%020.9f"},"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
END = 'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'
STAMP = 20
MAX_CPU = 0.5
MAX_DELAY_MS = 2.0


def serve(streams: int, steps: int, interval_s: float, ready: Connection) -> None:
    """Once all streams are there, every one gets an event at every step."""
    writers: list[asyncio.StreamWriter] = []

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        writers.append(writer)

    async def main() -> None:
        server = await asyncio.start_server(join, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        while len(writers) < streams:
            await asyncio.sleep(0.01)
        began_s = time.perf_counter()
        for step in range(1, steps + 1):
            await asyncio.sleep(max(0.0, began_s + step * interval_s - time.perf_counter()))
            for writer in writers:
                writer.write(_chunked(EVENT % time.perf_counter()))
        for writer in writers:
            writer.write(_chunked(END % steps) + b"0\r\n\r\n")
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def _chunked(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


async def load(port: int, streams: int) -> tuple[list[Answer], dict[str, object]]:
    server = Server("127.0.0.1", port)
    strain = Strain()
    strain.start()
    answers = await asyncio.gather(*(ask(server, "/v1/chat/completions", {"messages": []}, 600.0) for _ in range(streams)))
    return answers, strain.stop()


def delays_s(answer: Answer) -> list[float]:
    assert answer.failure is None, answer.failure
    stamps = [float(answer.text[at : at + STAMP]) for at in range(0, len(answer.text), STAMP)]
    return [arrived_s - sent_s for arrived_s, sent_s in zip(answer.chunks_s, stamps, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens-per-s", type=int, default=6000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    steps = round(options.seconds * options.tokens_per_s / options.streams)
    ours, theirs = multiprocessing.Pipe()
    arguments = (options.streams, steps, options.streams / options.tokens_per_s, theirs)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
    process.start()
    answers, strain = asyncio.run(load(ours.recv(), options.streams))
    process.join()
    took_s = max(a.ended_s for a in answers) - min(a.chunks_s[0] for a in answers)
    spread = spread_ms(delay for answer in answers for delay in delays_s(answer))
    assert spread is not None
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; {options.streams} streams")
    print(f"chunks/s {spread['count'] / took_s:.0f} (asked for {options.tokens_per_s}), {spread['count']} in all")
    print(f"client: {strain['cpu_share']:.2f} of a core (target under {MAX_CPU:g})")
    print(f"delay, ms: p50 {spread['p50']:.2f}, p95 {spread['p95']:.2f}, p99 {spread['p99']:.2f} (p50 under {MAX_DELAY_MS:g})")
    return 0 if float(str(strain["cpu_share"])) < MAX_CPU and spread["p50"] < MAX_DELAY_MS else 1


if __name__ == "__main__":
    sys.exit(main())
