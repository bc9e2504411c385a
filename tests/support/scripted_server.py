"""A whole server process on a scripted engine: `python -m tests.support.scripted_server DIRECTORY`.

A prompt's first word says what the engine does: "die" ends it after three tokens, "endless" goes on for ever (a token every
10 ms), anything else is answered with 50 tokens in half a second.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.scripted_engine import INFO, ScriptedEngine

from headrace.config import ServerConfig
from headrace.engine.chat import ChatTemplate
from headrace.server.serve import Service, run
from headrace.types import Request


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--slow-start", action="store_true")
    parser.add_argument("--drain-s", type=float, default=10.0)
    options = parser.parse_args()
    tokenizer = byte_tokenizer(options.directory)

    async def start() -> Service:
        print("loading", flush=True)
        await asyncio.sleep(30 if options.slow_start else 0)

        def script(request: Request) -> Sequence[int]:
            word = tokenizer.decode(request.prompt).split()[0]
            if word == "die":
                asyncio.get_running_loop().call_later(0.035, engine.die)
            return [70] * (50 if word == "short" else 5000)

        engine = ScriptedEngine(script, info=replace(INFO, context=8192), step_s=0.01)
        return Service(engine, tokenizer, ChatTemplate(tokenizer.chat_template or "", tokenizer))

    return run(start, ServerConfig(port=0, drain_s=options.drain_s), announce=lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main())
