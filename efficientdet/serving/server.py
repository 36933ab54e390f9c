"""A socket, uvicorn around the application, and an end that loses no request."""

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

from efficientdet.serving.limits import MOST_CONNECTIONS, Limits
from program_support.errors import InputError
from program_support.signals import Listener

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_HEAD_S = 20.0  # within twice this a request must have begun in full, and a reply must have been taken
_BACKLOG = 128


def bind(host: str, port: int) -> socket.socket:
    """A socket that no one can connect to yet. Raises InputError where the address is taken or none of this machine's."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as unless_bound:
            bound = unless_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a server before may linger
            bound.bind(address)
            unless_bound.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"--host={host} --port={port}: cannot be listened at ({reason})") from error
    return bound


def _address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(application: ASGIApp, bound: socket.socket, limits: Limits) -> None:
    """Answer until SIGTERM or Ctrl-C, upon which requests that have begun are answered; a second one ends it at once.

    Raises InputError where a user else began to listen there first.
    """
    warnings.simplefilter("ignore")  # about the metadata of images
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # about forms of strangers
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise InputError(f"{_address_of(bound)}: cannot be listened at ({error.strerror})") from error
    print(f"serving at {_address_of(bound)}", flush=True)
    server = _Server(uvicorn.Config(
        application, http=_Connection, ws="none", loop="asyncio", lifespan="on", log_level="error", access_log=False,
        server_header=False, proxy_headers=False, backlog=_BACKLOG,
        timeout_graceful_shutdown=int(2 * limits.request_timeout_s) + 1))

    def heard(number: int) -> None:
        if server.should_exit:
            listener.end(number, "ended at once; requests that had begun are lost")
        server.should_exit = True

    listener = Listener(heard)
    listener.start()
    try:
        server.run(sockets=[bound])
    finally:
        listener.stop()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None; uvicorn's own would raise them again when all is done, and end the process by one."""
        yield


class _Connection(H11Protocol):
    """Uvicorn's, which waits for ever for the head of a request and for who does not read a reply; this one does not."""

    _seen: tuple | None = None
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        else:
            self._watch = self.loop.call_later(_HEAD_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._watch:
            self._watch.cancel()

    def _look(self) -> None:
        """End a connection on which no request and no reply has begun since the last time, unless one is being answered."""
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_started
        now = (cycle, cycle is not None and cycle.response_started)
        if now == self._seen and not answering:
            self.transport.abort()
        else:
            self._seen, self._watch = now, self.loop.call_later(_HEAD_S, self._look)

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps({"error": msg}).encode()
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                                 b"connection: close\r\n\r\n%b" % (len(body), body))
        self.transport.close()
