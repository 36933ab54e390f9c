"""Stands before the application: who may call, headers that every reply carries, and counting."""

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from efficientdet.serving.metrics import Metrics

_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer", "cache-control": "no-store", "permissions-policy": "camera=(self)",
    "cross-origin-resource-policy": "same-origin"}
_LINGER_S, _QUIET_S = 2.0, 0.3  # in all, and since something came


class Guard:
    """An ASGI application around another."""

    def __init__(self, application: ASGIApp, metrics: Metrics, *, paths: tuple[str, ...], hosts: tuple[str, ...],
                 origins: tuple[str, ...]):
        """paths: that are counted by name; hosts, origins: as `build_application` has them."""
        self._application, self._metrics, self._paths = application, metrics, paths
        self._hosts, self._origins = hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI wants it."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._count)
        if refusal := self._refusal(Headers(scope=scope)):
            await exchange.refuse(*refusal)
        else:
            await self._application(scope, exchange.receive, exchange.send)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        """A page elsewhere may neither call this server under a name of its own (DNS rebinding) nor in its visitor's name."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and _name_in(host) not in self._hosts:
            return 400, f"this server is not called so; it answers to {', '.join(self._hosts)} (--allowed_hosts)"
        if origin and not {origin, "*"} & {*self._origins} and origin.partition("://")[2] != host:
            return 403, "pages elsewhere may not call this server (--allowed_origins)"
        return None

    def _count(self, path: str, status: int) -> None:
        self._metrics.requests[path if path in self._paths else "other", status] += 1


def _name_in(host: str) -> str | None:
    """The Host of a request without its port, in small letters."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # of brackets that do not belong together
        return None


class _Exchange:
    """A request and its reply, seen from outside."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, count):
        self._scope, self._receive, self._send, self._count = scope, receive, send, count
        self._complete = False  # the request was read to its end
        self._asks_before = "100-continue" in Headers(scope=scope).get("expect", "").lower()

    async def receive(self) -> Message:
        message = await self._receive()
        self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._count(self._scope["path"], message["status"])
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if message["status"] >= 400 and not self._complete and not self._asks_before:
                await self._linger()
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        body = json.dumps({"error": reason}).encode()
        await self.send({"type": "http.response.start", "status": status, "headers": [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})

    async def _linger(self) -> None:
        """Let a client that reads only when it has sent everything send on for a moment: what comes is dropped. A socket that
        is closed on unread data takes the reply with it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while not self._complete:
                    await asyncio.wait_for(self.receive(), _QUIET_S)
