"""ASGI middleware: check of Host and Origin, security headers, and request metrics."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from efficientdet.serving.metrics import Metrics

_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "permissions-policy": "camera=(self)",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityMiddleware:
    """ASGI middleware around an application."""

    def __init__(
        self,
        application: ASGIApp,
        metrics: Metrics,
        *,
        paths: tuple[str, ...],
        hosts: tuple[str, ...],
        origins: tuple[str, ...],
    ):
        """Store the paths that metrics count by name, and the hosts and origins of `build_application`."""
        self._application, self._metrics, self._paths = application, metrics, paths
        self._hosts, self._origins = hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
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

        rejection = self._rejection(Headers(scope=scope))
        reply = JSONResponse({"error": rejection[1]}, rejection[0]) if rejection else self._application
        await reply(scope, receive, counted)

    def _rejection(self, headers: Headers) -> tuple[int, str] | None:
        """Return status and reason for a disallowed Host (DNS rebinding) or Origin (cross-site request), or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and host_name(host) not in self._hosts:
            return 400, f"the Host header is not allowed; expected {', '.join(self._hosts)} (--allowed_hosts)"
        if origin and not {origin, "*"} & {*self._origins} and origin.partition("://")[2] != host:
            return 403, "cross-origin requests are not allowed (--allowed_origins)"
        return None


def host_name(host: str) -> str | None:
    """Return the host name of a Host header without the port, in lower case."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # unbalanced brackets
        return None
