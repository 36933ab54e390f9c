"""A meeting of the processes of a job before they connect: each waits for all, and learns the others' names.

JAX's own connection aborts the process without an exception if a peer is missing.
"""

import contextlib
import json
import socket
import sys
import time
from collections.abc import Iterable, Sequence

from program_support.errors import InputError

_SECONDS_BETWEEN_ATTEMPTS = 0.2
_SECONDS_UNTIL_REPORT = 10.0
_SECONDS_TO_SEND = 5.0
_MOST_BYTES = 1 << 20


def meet(address: str, count: int, number: int, *, name: str, seconds: float) -> list[str]:
    """Wait until all processes have arrived, and return their names by number.

    Args:
      address: host:port of process 0, which listens there meanwhile.
      count: number of processes.
      number: number of this process, 0 .. count - 1.
      name: name of this process for the others.
      seconds: time limit.

    Raises:
      InputError: a process has not arrived in time, or the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 <= number < count:
        raise InputError(f"process {number} of {count} at {address}: expected a number below {count} and host:port")
    ends = time.monotonic() + seconds
    if number == 0:
        return _names_received(address, int(port), count, name=name, ends=ends, seconds=seconds)
    place = host.strip("[]"), int(port)
    while True:
        limit = _left(ends) + _SECONDS_TO_SEND  # longer than process 0 waits, which reports who is missing
        try:
            with socket.create_connection(place, timeout=limit) as connection:
                connection.sendall(f"{json.dumps([number, name])}\n".encode())
                reply = json.loads(connection.makefile().readline(_MOST_BYTES))
        except (OSError, ValueError) as error:
            if not _left(ends):
                raise InputError(
                    f"process {number} of {count}: no answer from process 0 at {address} within {seconds:g} s ({error})"
                ) from error
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)
            continue
        if isinstance(reply, str):
            raise InputError(reply)
        return reply


def rank_on_host(hosts: Sequence[str], number: int) -> tuple[int, int]:
    """Return the rank of a process among those of its host, and their number. hosts: the host of each process."""
    neighbors = [other for other, host in enumerate(hosts) if host == hosts[number]]
    return neighbors.index(number), len(neighbors)


def _names_received(address: str, port: int, count: int, *, name: str, ends: float, seconds: float) -> list[str]:
    names, connections, reported = {0: name}, {}, False
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(_listening(port))
        except OSError as error:
            raise InputError(f"process 0 cannot listen at {address}: {error.strerror}") from error
        while len(names) < count and (left := _left(ends)):
            server.settimeout(left if reported else min(left, _SECONDS_UNTIL_REPORT))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(_SECONDS_TO_SEND)
                number, names[number] = json.loads(connection.makefile().readline(_MOST_BYTES))
            except (OSError, ValueError):
                if not reported:
                    reported = True
                    print(f"{_missing(names, count)} at {address}, up to {seconds:g} s", file=sys.stderr, flush=True)
                continue
            connections[number] = connection
        missing = None if len(names) == count else f"{_missing(names, count)} at {address} ended after {seconds:g} s"
        reply = json.dumps(missing or [names[number] for number in range(count)])
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(f"{reply}\n".encode())
    if missing:
        raise InputError(missing)
    return json.loads(reply)


def _missing(arrived: Iterable[int], count: int) -> str:
    missing = sorted({*range(count)} - {*arrived})
    shown = ", ".join(map(str, missing[:8])) + (", .." if len(missing) > 8 else "")
    return f"waiting for process {shown} of {count}"


def _left(ends: float) -> float:
    return max(ends - time.monotonic(), 0.0)


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
