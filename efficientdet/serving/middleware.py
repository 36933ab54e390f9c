"""Stands before the application: who may call, headers that every reply carries, and counting."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from efficientdet.serving.metrics import Metrics

_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'", "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer", "cache-control": "no-store", "permissions-policy": "camera=(self)",
    "cross-origin-resource-policy": "same-origin"}


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

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._metrics.requests.labels(path, message["status"]).inc()
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        answer = JSONResponse({"error": refusal[1]}, refusal[0]) if refusal else self._application
        await answer(scope, receive, counted)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        """A page elsewhere may neither call this server under a name of its own (DNS rebinding) nor in its visitor's name."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and _name_in(host) not in self._hosts:
            return 400, f"this server is not called so; it answers to {', '.join(self._hosts)} (--allowed_hosts)"
        if origin and not {origin, "*"} & {*self._origins} and origin.partition("://")[2] != host:
            return 403, "pages elsewhere may not call this server (--allowed_origins)"
        return None


def _name_in(host: str) -> str | None:
    """The Host of a request without its port, in small letters."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # of brackets that do not belong together
        return None
