"""Socket, uvicorn server and graceful shutdown."""

import asyncio
import contextlib
import json
import logging
import socket
import warnings
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from efficientdet.options.serve import RequestLimits
from program_support.errors import InputError
from program_support.signals import Listener

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_HEAD_S = 5.0  # time limit for the head of a connection's first request
_STALL_S = 20.0  # interval of the check for stalled connections, which are closed after at most twice this time
_BACKLOG = 128
_MAX_CONNECTIONS = 256  # uvicorn answers a complete request with 503 beyond
_MAX_OPEN = 3 * _MAX_CONNECTIONS  # each takes a file descriptor, and a process often has 1,024


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening.

    Raises:
        InputError: the address is in use or not an address of this machine.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with contextlib.ExitStack() as unless_bound:
            bound = unless_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a previous server may linger
            bound.bind(address)
            unless_bound.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host={host} --port={port}: cannot listen on this address ({reason})") from error
    return bound


def _address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(application: ASGIApp, bound: socket.socket, limits: RequestLimits) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish the running requests; a second signal exits immediately.

    Raises:
        InputError: Another process started to listen on the address first.
    """
    warnings.simplefilter("ignore")  # Pillow's warnings about image metadata
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # malformed forms of clients
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise InputError(f"{_address_of(bound)}: cannot listen on this address ({error.strerror})") from error
    print(f"serving at {_address_of(bound)}", flush=True)
    server = _Server(
        uvicorn.Config(
            application,
            http=_Connection,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(2 * limits.request_timeout_s) + 1,
        )
    )

    def on_signal(number: int) -> None:
        if server.should_exit:
            listener.end(number, "exited immediately; running requests were aborted")
        server.should_exit = True

    listener = Listener(on_signal)
    listener.start()
    try:
        server.run(sockets=[bound])
    finally:
        listener.stop()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: uvicorn's would raise the signal again after shutdown and end the process."""
        yield


class _Connection(H11Protocol):
    """HTTP connection with a timeout for incomplete request headers and unread replies, which uvicorn does not have."""

    _seen: tuple | None = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        if len(self.connections) > _MAX_OPEN:
            transport.abort()
            return
        self._watch = self.loop.call_later(_HEAD_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._watch:
            self._watch.cancel()

    def _check(self) -> None:
        """Close the connection without a request.

        Close it also if no request or reply has started since the last check and none is being processed.
        """
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_started
        now = (cycle, cycle is not None and cycle.response_started)
        if cycle is None or (now == self._seen and not answering):
            self.transport.abort()
        else:
            self._seen, self._watch = now, self.loop.call_later(_STALL_S, self._check)

    def send_400_response(self, msg: str) -> None:
        """Reply to malformed HTTP."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps({"error": msg}).encode()
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()
