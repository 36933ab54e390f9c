"""The open connections between the processes of a job, through which each learns when another one ends, and why.

A collective operation on devices may wait forever for a process that has ended. Messages are lines of JSON; they are
not trusted.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from program_support.command_line import USER_ERROR_EXIT_CODE
from program_support.errors import InputError

MOST_BYTES = 1 << 16  # limit of a message
_MOST_CHARACTERS = 500  # limit of a text in a message
_SECONDS_TO_RAISE = 5.0  # a collective operation raises by then if another process has ended
_SECONDS_TO_LEAVE = 10.0  # process 0, which serves JAX's connection, waits so long for the others
# Seconds until the first probe of an idle connection, between two, and the number of probes: firewalls keep the
# connection open, and an unreachable machine is noticed.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 20}


class Peers:
    """The other processes of a job, from their meeting until this process ends."""

    def __init__(self, number: int, count: int):
        self.number, self.count = number, count
        self.names: list[str] = []  # one per process, by number; empty until all have arrived
        self.ended: str | None = None  # which other process has ended, and why
        self.writers: dict[int, asyncio.StreamWriter] = {}  # process 0 has those of all others, the others only its
        self.loop = asyncio.new_event_loop()
        self.task: asyncio.Task | None = None  # kept, because the loop has only a weak reference
        self.is_done = False  # this process no longer needs the others
        self._waiting = False
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="peers")
        self._thread.start()

    def raise_if_ended(self) -> None:
        """Raise InputError if another process has ended."""
        if self.ended:
            raise InputError(self.ended)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a block that waits for other processes and may not raise an exception by itself if one of them ends.

        Raises:
          InputError: another process has ended already.
        """
        self.raise_if_ended()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def reason_of_lost_connection(self, *, seconds: float = 2.0) -> str | None:
        """Return which process has ended, and why, after an error of a connection to it; None if all run."""
        ends = time.monotonic() + seconds
        while self.ended is None and time.monotonic() < ends:
            time.sleep(0.05)
        return self.ended

    def leave(self, reason: str) -> None:
        """Tell the others why this process ends; process 0 waits for their end."""

        async def tell() -> None:
            ends = time.monotonic() + _SECONDS_TO_LEAVE
            for writer in self.writers.values():
                send(writer, ended=[self.number, reason])
            while self.number == 0 and self.writers and time.monotonic() < ends:
                await asyncio.sleep(0.05)

        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(tell(), self.loop).result(2 * _SECONDS_TO_LEAVE)

    def close(self) -> None:
        """Close all connections; the others take it for the end of this process."""
        self.is_done = True

        async def close() -> None:
            for writer in list(self.writers.values()):
                writer.close()
            if tasks := asyncio.all_tasks(self.loop) - {asyncio.current_task()}:  # they end with their connections
                await asyncio.wait(tasks, timeout=_SECONDS_TO_LEAVE)

        asyncio.run_coroutine_threadsafe(close(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def watch(self, number: int, reader: asyncio.StreamReader) -> None:
        """Wait for the end of the process at the other end of a connection; process 0 tells the others."""
        _keep_alive(self.writers[number])
        while line := await _line(reader):
            match message(line).get("ended"):
                case [int(who), str(reason)] if self.names and 0 <= who < self.count:
                    self._has_ended(who, one_line(reason))
        if self.names:
            self._has_ended(number, "killed, or its machine is not reachable")
        self.writers.pop(number).close()

    def _has_ended(self, number: int, reason: str) -> None:
        for other, writer in list(self.writers.items()) if self.number == 0 else ():
            if other != number:
                send(writer, ended=[number, reason])
        if self.ended is None:
            self.ended = (
                f"process {number} of {self.count}, on {self.names[number]}, ended: {reason}; the same command resumes "
                "from the last checkpoint"
            )
            self.loop.call_later(_SECONDS_TO_RAISE, self._exit_if_useless)

    def _exit_if_useless(self) -> None:
        """End this process, unless it is process 0 in work of its own: only process 0 writes files."""
        if not self.is_done and (self._waiting or self.number > 0):
            print(f"error: {self.ended}", file=sys.stderr)
            exit_at_once(USER_ERROR_EXIT_CODE)


def exit_at_once(code: int) -> NoReturn:
    """Exit without JAX's handler, which would wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def send(writer: asyncio.StreamWriter, **fields) -> None:
    """Send a message; a lost connection is noticed where it is read."""
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(f"{json.dumps(fields)}\n".encode())


def message(line: bytes) -> dict[str, Any]:
    """Return a message; {} for anything else that was received."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def one_line(text: str) -> str:
    """Return a received text as one printable line."""
    return " ".join("".join(each if each.isprintable() else " " for each in text[:_MOST_CHARACTERS]).split())


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty where the connection has ended."""
    try:
        return await reader.readline()
    except (OSError, ValueError):  # ValueError: longer than MOST_BYTES
        return b""


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
