"""A meeting of the processes of a job before they connect: each waits for all, and learns the others' names.

JAX's own connection aborts the process without an exception if a peer is missing. Process 0 listens; what it receives
may come from anyone.
"""

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from efficientdet.plugins.jax_processes.peers import MOST_BYTES, Peers, message, one_line, send
from program_support.errors import InputError

_SECONDS_BETWEEN_ATTEMPTS = 0.2
_SECONDS_UNTIL_REPORT = 10.0
_SECONDS_BETWEEN_REPORTS = 60.0
_SECONDS_BETWEEN_MESSAGES = 2.0  # process 0 sends them to those that wait with it
_SECONDS_OF_SILENCE = 10.0  # then a process takes what it has connected to for another program
_SECONDS_TO_SEND = 5.0


@dataclass(frozen=True)
class Place:
    """The place of a process in its job."""

    address: str  # host:port of process 0, which listens there
    count: int  # number of processes
    number: int  # this process's, 0 .. count - 1
    name: str  # this process's name for the others
    token: str = ""  # the job's; ASCII

    @property
    def host(self) -> str:
        """The host of process 0, without the brackets of an IPv6 address."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of process 0."""
        return int(self.address.rpartition(":")[2])

    def __str__(self) -> str:
        return f"process {self.number} of {self.count} at {self.address}"


def meet(place: Place, *, seconds: float) -> Peers:
    """Wait until all processes have arrived, up to a time limit.

    Raises:
      InputError: a process has not arrived in time, has no place in this job, or the address cannot be used.
    """
    host, _, port = place.address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 1 << 16:
        raise InputError(f"{place}: expected host:port, port 1 to 65535")
    if not 0 <= place.number < place.count:
        raise InputError(f"{place}: expected a number below {place.count}")
    peers = Peers(place.number, place.count)
    meeting = _Meeting(place, peers, seconds=seconds)
    try:
        asyncio.run_coroutine_threadsafe(meeting.hold() if place.number == 0 else meeting.join(), peers.loop).result()
    except InputError:
        peers.close()
        raise
    return peers


def rank_on_host(hosts: Sequence[str], number: int) -> tuple[int, int]:
    """Return the rank of a process among those of its host, and their number. hosts: the host of each process."""
    neighbors = [other for other, host in enumerate(hosts) if host == hosts[number]]
    return neighbors.index(number), len(neighbors)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only. A machine's own name is not, though it may resolve to 127.0.1.1."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Meeting:
    """The meeting as one process sees it."""

    def __init__(self, place: Place, peers: Peers, *, seconds: float):
        self._place, self._peers, self._seconds = place, peers, seconds
        self._names: dict[int, str] = {0: place.name}
        self._complete = asyncio.Event()
        self._ends = time.monotonic() + seconds
        self._report_at = time.monotonic() + _SECONDS_UNTIL_REPORT

    @property
    def _left(self) -> float:
        return max(self._ends - time.monotonic(), 0.0)

    def _report(self, line: str) -> None:
        """Print what this process waits for: after ten seconds, then every minute."""
        if time.monotonic() >= self._report_at:
            self._report_at = time.monotonic() + _SECONDS_BETWEEN_REPORTS
            print(line, file=sys.stderr, flush=True)

    async def _resolve(self) -> None:
        """Raise InputError if the host of process 0 is not known. In Kubernetes its name appears with its pod."""
        try:
            await self._peers.loop.getaddrinfo(self._place.host, self._place.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if "KUBERNETES_SERVICE_HOST" not in os.environ:
                problem = getattr(error, "strerror", None) or error
                raise InputError(f"{self._place}: the host of process 0 cannot be resolved ({problem})") from error

    # --- process 0

    async def hold(self) -> None:
        """Listen until all have arrived."""
        place, peers = self._place, self._peers
        await self._resolve()
        try:
            sockets = _listening(place)
        except OSError as error:
            raise InputError(f"process 0 cannot listen at {place.address}: {error.strerror}") from error
        servers = [await asyncio.start_server(self._receive, sock=one, limit=MOST_BYTES) for one in sockets]
        while not self._complete.is_set() and self._left:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._complete.wait(), min(self._left, _SECONDS_BETWEEN_MESSAGES))
            line = f"{_missing(self._names, place.count)} at {place.address}"
            if self._left and not self._complete.is_set():
                self._report(f"{line}, up to {self._seconds:g} s")
                self._send_all(waiting=f"{line}, up to {self._seconds:g} s")
        for server in servers:
            server.close()
        if not self._complete.is_set():
            line += f" ended after {self._seconds:g} s"
            self._send_all(error=line)
            raise InputError(line)
        self._send_all(names=peers.names)

    def _send_all(self, **fields) -> None:
        for writer in self._peers.writers.values():
            send(writer, **fields)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give an arriving process its place, and watch it; close the connection of anyone else."""
        peers, count = self._peers, self._place.count
        try:
            arrival = _arrival(await asyncio.wait_for(reader.readline(), _SECONDS_TO_SEND))
        except (OSError, TimeoutError, ValueError):  # ValueError: longer than MOST_BYTES
            arrival = None
        refusal = self._refusal(arrival) if arrival else None
        if arrival is None or refusal or self._complete.is_set():
            if refusal:
                send(writer, error=refusal)
            writer.close()
            return
        number = arrival["number"]
        self._names[number], peers.writers[number] = one_line(arrival["name"]), writer
        if len(self._names) == count:
            peers.names = [self._names[each] for each in range(count)]
            self._complete.set()
        await peers.watch(number, reader)
        self._names.pop(number)  # it may come again until all have arrived

    def _refusal(self, arrival: dict[str, Any]) -> str | None:
        """Return why an arriving process has no place in this job."""
        place, number, count = self._place, arrival["number"], arrival["count"]
        who = f"process {number} of {count} at {place.address}"
        if not hmac.compare_digest(arrival["token"], place.token):
            return f"{who}: the process that listens there belongs to another job; expected another port"
        if count != place.count:
            return f"{who}: process 0 was started as one of {place.count}; expected the same number"
        if not 0 < number < count or number in self._names:
            holder = self._names.get(number, "no host")
            return f"{who}: another process {number} is there, on {holder}; expected a number for each"
        return None

    # --- the others

    async def join(self) -> None:
        """Connect to process 0 until it says that all have arrived."""
        place = self._place
        await self._resolve()
        while True:
            try:
                async with asyncio.timeout(
                    self._left + _SECONDS_TO_SEND
                ):  # process 0 ends first, and says who is missing
                    return await self._attempt()
            except InputError:  # a ValueError too
                raise
            except (OSError, TimeoutError, ValueError) as error:
                problem = getattr(error, "strerror", None) or str(error) or "it does not answer"
            line = f"process {place.number} of {place.count}: no answer from process 0 at {place.address}"
            if not self._left:
                raise InputError(f"{line} within {self._seconds:g} s ({problem})")
            self._report(f"{line} yet, waiting up to {self._seconds:g} s ({problem})")
            await asyncio.sleep(_SECONDS_BETWEEN_ATTEMPTS)

    async def _attempt(self) -> None:
        place, peers = self._place, self._peers
        async with asyncio.timeout(_SECONDS_OF_SILENCE):
            reader, writer = await asyncio.open_connection(place.host, place.port, limit=MOST_BYTES)
        try:
            send(writer, number=place.number, count=place.count, name=place.name, token=place.token)
            while not peers.names:
                async with asyncio.timeout(_SECONDS_OF_SILENCE):
                    reply = message(await reader.readline())
                match reply:
                    case {"error": str(error)}:
                        raise InputError(one_line(error))
                    case {"waiting": str(line)}:
                        self._report(one_line(line))
                    case {"names": [*names]} if len(names) == place.count and all(type(one) is str for one in names):
                        peers.names, peers.writers[0] = names, writer
                    case _:
                        raise ValueError("another program listens there")
        finally:
            if not peers.names:
                writer.close()
        peers.task = peers.loop.create_task(peers.watch(0, reader))


def _listening(place: Place) -> list[socket.socket]:
    """Return sockets that listen for process 0: on this machine only if the address says so, else on all addresses."""
    if not is_loopback(place.host):
        if socket.has_dualstack_ipv6():
            return [socket.create_server(("", place.port), family=socket.AF_INET6, dualstack_ipv6=True)]
        return [socket.create_server(("", place.port))]
    sockets: list[socket.socket] = []
    for family, *_, where in socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM):
        try:
            sockets.append(socket.create_server(where[:2], family=family))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # a machine without IPv6
                raise
    return sockets or [socket.create_server(("127.0.0.1", place.port))]


def _missing(arrived: Iterable[int], count: int) -> str:
    missing = sorted({*range(count)} - {*arrived})
    shown = ", ".join(map(str, missing[:8])) + (", .." if len(missing) > 8 else "")
    return f"waiting for process {shown} of {count}"


def _arrival(line: bytes) -> dict[str, Any] | None:
    """Return the message of an arriving process; None for anything else."""
    content = message(line)
    kinds = {"number": int, "count": int, "name": str, "token": str}
    valid = all(type(content.get(key)) is kind for key, kind in kinds.items())
    return content if valid and content["token"].isascii() else None
