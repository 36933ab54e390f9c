"""Routes of the server: demo page, detection, documentation, health and metrics."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from efficientdet.checkpoints.stored_thresholds import DEFAULT_THRESHOLD
from efficientdet.options.serve import RequestLimits
from efficientdet.serving.batching import Batcher, ImageResult, Metrics, ServedModel, image_reply
from efficientdet.serving.pages import api_document, content_security_policy, detector_page, model_description
from efficientdet.serving.request_body import (
    MAX_REQUESTS_IN_MEMORY,
    DetectRequest,
    MemoryBudget,
    RequestError,
    read_request,
)


class AddedRoutes(Protocol):
    """Interface of what a plugin of the group `efficientdet.server_routes` adds to a server.

    The plugin is a function of the options of serve.py and of a function that opens a model. It returns an
    object with this interface, or None where the options do not ask for it.
    """

    def routes(self) -> Sequence[Route]:
        """Return the routes."""

    def serving(self, batcher: Batcher) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the server runs; `batcher` detects, and its model may be replaced."""


def build_application(
    model: ServedModel | None,
    *,
    limits: RequestLimits,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    added_routes: Sequence[AddedRoutes] = (),
) -> ASGIApp:
    """Build the server as an ASGI application.

    Args:
        model: The model; None if one of `added_routes` is going to train the first one.
        limits: Limits of a request.
        hosts: Allowed host names; empty: all.
        origins: Origins of other pages that may call the server, such as `https://example.org`.
        added_routes: Further routes of plugins, which use the same model and may replace it.
    """
    service = _Service(model, limits=limits, added_routes=added_routes)
    routes = [
        Route("/", service.page),
        Route("/openapi.json", service.api),
        Route("/v1/model", service.describe),
        Route("/v1/detect", service.detect, methods=["POST"]),
        Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
        Route("/metrics", service.metrics.reply),
        *(route for added in added_routes for route in added.routes()),
    ]
    shared = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"])] if origins else []
    application = Starlette(
        routes=routes,
        lifespan=service.lifespan,
        middleware=shared,
        exception_handlers={
            RequestError: _error_reply,  # type: ignore[dict-item]  # Starlette's type has handlers of any Exception only
            HTTPException: _http_error_reply,  # type: ignore[dict-item]
            Exception: _failure_reply,
        },
    )
    application.router.redirect_slashes = False  # a redirect would go to the Host header's address
    return SecurityMiddleware(
        application, service.metrics, paths=tuple(route.path for route in routes), hosts=hosts, origins=origins
    )


class _Service:
    """Detector with its request queue and metrics."""

    def __init__(self, model: ServedModel | None, *, limits: RequestLimits, added_routes: Sequence[AddedRoutes]):
        self.metrics = Metrics()
        self._batcher = Batcher(model, limits, self.metrics)
        self._memory = MemoryBudget(MAX_REQUESTS_IN_MEMORY * limits.max_request_bytes)
        self._limits, self._added_routes = limits, added_routes

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Run the batcher, and the work of added routes, while the server runs."""
        batching = asyncio.create_task(self._batcher.run())
        with contextlib.ExitStack() as stack:
            for added in self._added_routes:
                stack.enter_context(added.serving(self._batcher))
            yield
        batching.cancel()

    @property
    def _min_score(self) -> float:
        """Score threshold of the present model."""
        model = self._batcher.model
        return model.min_score if model else DEFAULT_THRESHOLD

    async def page(self, _: Request) -> Response:
        """Return the page of the detector."""
        return _page(detector_page(self._min_score))

    async def api(self, _: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(api_document(self._limits, self._min_score))

    async def describe(self, _: Request) -> Response:
        """Return the reply of /v1/model."""
        model, limits = self._batcher.model_or_error(), self._limits
        shown = {name: getattr(limits, name) for name in ("max_request_bytes", "max_pixels", "max_queue")}
        return JSONResponse({**model_description(model.name, model.class_names, model.min_score), "limits": shown})

    async def detect(self, request: Request) -> Response:
        """Return the reply of /v1/detect."""
        start = time.perf_counter()
        with self._memory.reservation() as reserve:
            parsed = await read_request(request, self._limits, reserve=reserve)
            results = await self._found(parsed, request)
            min_score = results[-1].model.min_score if parsed.min_score is None else parsed.min_score
            images = await asyncio.to_thread(lambda: [image_reply(result, min_score=min_score) for result in results])
        seconds = time.perf_counter() - start
        self.metrics.seconds.observe(seconds)
        self.metrics.images.inc(len(images))
        for image in images:
            for detection in image["detections"]:
                self.metrics.scores.observe(detection["score"])
        name, milliseconds = results[-1].model.name, round(1000 * seconds, 1)
        return JSONResponse({"model": name, "min_score": min_score, "images": images, "time_ms": milliseconds})

    async def _found(self, parsed: DetectRequest, request: Request) -> list[ImageResult]:
        """Wait for detections.

        Raises:
            RequestError: on a timeout or if the client disconnects.
        """
        detecting = asyncio.ensure_future(self._batcher.detect(parsed.images))
        disconnected = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                (detecting, disconnected), timeout=self._limits.request_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if detecting.done():
                return detecting.result()
            if disconnected.done():
                raise RequestError(499, "the client disconnected")
            raise RequestError(504, f"detection timed out after {self._limits.request_timeout_s:g} s")
        finally:
            detecting.cancel()
            disconnected.cancel()


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects; the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page(html: str) -> Response:
    return HTMLResponse(html, headers={"content-security-policy": content_security_policy(html)})


async def _error_reply(_: Request, error: RequestError) -> Response:
    headers = {"retry-after": str(math.ceil(error.retry_after_s))} if error.retry_after_s else None
    return JSONResponse({"error": error.reason}, error.status, headers=headers)


async def _http_error_reply(request: Request, error: HTTPException) -> Response:
    reason = {
        404: "Not found. See / for the demo page and /openapi.json for the API.",
        405: f"method {request.method} is not allowed; see /openapi.json",
    }.get(error.status_code, error.detail)
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def _failure_reply(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the detector failed; see the log of the server"}, 500)


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
