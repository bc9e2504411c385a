"""`headrace chat`: a conversation with a running server, in a terminal or through a pipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from headrace.commands.chat_client import ChatClient
from headrace.errors import HeadraceError

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What an answer may not send to a terminal: only tabs and line ends pass."""


def chat(client: ChatClient, *, system: str | None, sampling: Mapping[str, Any]) -> None:
    """Talk until the end of input. Each line is a message; `/reset` forgets the conversation.

    In a terminal a failed answer is reported and the conversation goes on; through a pipe it raises HeadraceError.
    """
    model = client.model()
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    if terminal:
        print(f"{model} at {client.url}. /reset starts over, Ctrl-C stops an answer, Ctrl-D leaves.")
    for line in _lines(terminal):
        if line == "/reset":
            messages = list(start)
        elif line:
            messages.append({"role": "user", "content": line})
            answer = _answer(client, {"model": model, "messages": messages, **sampling}, terminal)
            if answer:
                messages.append({"role": "assistant", "content": answer})
            else:
                messages.pop()


def _lines(terminal: bool) -> Iterator[str]:
    if not terminal:
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401  line editing and history for input()

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\nCtrl-D leaves.")


def _answer(client: ChatClient, body: Mapping[str, Any], terminal: bool) -> str:
    """Print the answer as it comes; returns what was said, which is only the beginning when the user stopped it."""
    said: list[str] = []
    try:
        with closing(client.stream(body)) as deltas:
            for text in deltas:
                said.append(text)
                sys.stdout.write(CONTROL_CHARACTERS.sub("", text) if terminal else text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not terminal:
            raise
        print(" [stopped]", end="")
    except HeadraceError as error:
        if not terminal:
            raise
        print(f"headrace: {error}", end="")
    print()
    return "".join(said)
