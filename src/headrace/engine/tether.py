"""What ties an engine process to its front: the connection, and the rule that the process does not outlive it."""

from __future__ import annotations

import os
import queue
import socket
import threading

from headrace.engine import frames

EXIT_FRONT_GONE = 3
READ_BYTES = 1 << 18
RELEASE_S = 2.0


class Tether:
    """A thread reads the front's commands into `inbox`, a FrameError where they cannot be read.

    When the front's end closes the process ends at once, in the midst of loading or of a step.
    """

    def __init__(self, link: socket.socket) -> None:
        self.inbox: queue.SimpleQueue[frames.Command | frames.FrameError] = queue.SimpleQueue()
        self._link = link
        self._released = False
        self._thread = threading.Thread(target=self._read, daemon=True, name="tether")
        self._thread.start()

    def send(self, report: frames.Report) -> None:
        """Write, waiting for a front that is slow to read."""
        try:
            self._link.sendall(frames.encode(report))
        except OSError:
            os._exit(EXIT_FRONT_GONE)

    def release(self) -> None:
        """Say that nothing more comes, and wait until the front has read everything.

        Closing with commands unread would reset the connection, and the front would lose what it had not read yet.
        """
        self._released = True
        self._link.shutdown(socket.SHUT_WR)
        self._thread.join(RELEASE_S)

    def _read(self) -> None:
        reader: frames.FrameReader[frames.Command] | None = frames.command_reader()
        while data := self._receive():
            try:
                if reader is not None:
                    for command in reader.feed(data):
                        self.inbox.put(command)
            except frames.FrameError as error:
                reader = None
                self.inbox.put(error)
        if not self._released:
            os._exit(EXIT_FRONT_GONE)

    def _receive(self) -> bytes:
        try:
            return self._link.recv(READ_BYTES)
        except OSError:
            return b""
