"""Routes of the server: demo page, detection, documentation, health and metrics."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dataset.class_names import ClassNames
from dataset.files.pixel_values import WHITE_LEVEL
from efficientdet.inference.detect import Detect
from efficientdet.serving.batching import Batcher, ImageResult
from efficientdet.serving.limits import MAX_REQUESTS_IN_MEMORY, Limits, MemoryBudget, RequestError
from efficientdet.serving.metrics import Metrics
from efficientdet.serving.middleware import SecurityMiddleware
from efficientdet.serving.pages import api_document, api_page, content_security_policy, detector_page, model_description
from efficientdet.serving.request_body import DetectRequest, read_request

_DETECT = "/v1/detect"


def build_application(
    detect: Detect,
    class_names: ClassNames,
    *,
    model: str,
    limits: Limits,
    white_level: int = WHITE_LEVEL,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
) -> ASGIApp:
    """Build the server as an ASGI application.

    Args:
        detect: Detection function for up to `limits.max_batch` images; called in one thread only.
        class_names: Classes of the model.
        model: Name of the model in replies.
        limits: Limits of a request.
        white_level: Value of images with 16 bits per channel that becomes 255.
        hosts: Allowed host names; empty: all.
        origins: Origins of other pages that may call the server, such as `https://example.org`.
    """
    service = _Service(detect, class_names, model=model, limits=limits, white_level=white_level)
    api = api_document(limits)
    routes = [
        Route("/", _page(detector_page(limits.min_score))),
        Route("/docs", _page(api_page(api))),
        Route("/openapi.json", _json(api)),
        Route("/v1/model", _json(service.model_reply())),
        Route(_DETECT, service.detect, methods=["POST"]),
        Route("/healthz", _json({"status": "ok"})),
        Route("/metrics", service.metrics.reply),
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

    def __init__(self, detect: Detect, class_names: ClassNames, *, model: str, limits: Limits, white_level: int):
        self.metrics = Metrics()
        self._batcher = Batcher(detect, limits, self.metrics, white_level=white_level)
        self._memory = MemoryBudget(MAX_REQUESTS_IN_MEMORY * limits.max_request_bytes)
        self._class_names, self._model, self._limits = class_names, model, limits
        self._name_of = dict(zip(class_names.category_ids, class_names.names, strict=True))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Run the batcher while the server runs."""
        batching = asyncio.create_task(self._batcher.run())
        yield
        batching.cancel()

    def model_reply(self) -> dict:
        """Return the reply of /v1/model."""
        limits = {name: getattr(self._limits, name) for name in ("max_request_bytes", "max_pixels", "max_queue")}
        return {**model_description(self._model, self._class_names, self._limits.min_score), "limits": limits}

    async def detect(self, request: Request) -> Response:
        """Return the reply of /v1/detect."""
        start = time.perf_counter()
        with self._memory.reservation() as reserve:
            parsed = await read_request(request, self._limits, reserve=reserve)
            results = await self._found(parsed, request)
            images = await asyncio.to_thread(self._images, results, parsed.min_score)
        seconds = time.perf_counter() - start
        self.metrics.seconds.observe(seconds)
        self.metrics.images.inc(len(images))
        return JSONResponse(
            {"model": self._model, "min_score": parsed.min_score, "images": images, "time_ms": round(1000 * seconds, 1)}
        )

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

    def _images(self, results: list[ImageResult], min_score: float) -> list[dict]:
        return [image_reply(one, names=self._name_of, min_score=min_score) for one in results]


def image_reply(result: ImageResult, *, names: Mapping[int, str], min_score: float) -> dict[str, Any]:
    """Return the JSON of one image: its upright size, and detections with a score of `min_score` or more, by score."""
    height, width = result.size
    is_shown = (np.asarray(result.rows.scores) >= min_score) & np.isfinite(result.rows.boxes).all(
        axis=-1
    )  # JSON has no NaN
    rows = result.rows.chosen(np.flatnonzero(is_shown))
    boxes = np.clip(np.asarray(rows.boxes, np.float64)[:, [1, 0, 3, 2]], 0, [width, height, width, height]).round(2)
    columns = (boxes, np.asarray(rows.scores, np.float64).round(5), np.asarray(rows.category_ids))
    detections = [
        {"box": box, "score": score, "class_id": class_id, "class_name": names[class_id]}
        for box, score, class_id in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if rows.masks is not None:
        for detection, mask in zip(detections, rows.masks, strict=True):
            detection["mask"] = mask
    return {"width": width, "height": height, "detections": detections}


async def _disconnected(request: Request) -> None:
    """Wait until the client disconnects; the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page(html: str):
    policy = content_security_policy(html)

    def reply(_: Request) -> Response:
        return HTMLResponse(html, headers={"content-security-policy": policy})

    return reply


def _json(content: dict):
    return lambda _: JSONResponse(content)


async def _error_reply(_: Request, error: RequestError) -> Response:
    headers = {"retry-after": str(math.ceil(error.retry_after_s))} if error.retry_after_s else None
    return JSONResponse({"error": error.reason}, error.status, headers=headers)


async def _http_error_reply(request: Request, error: HTTPException) -> Response:
    reason = {
        404: "Not found. See / for the demo page and /docs for the API.",
        405: f"method {request.method} is not allowed; see /docs",
    }.get(error.status_code, error.detail)
    return JSONResponse({"error": reason}, error.status_code, headers=error.headers)


async def _failure_reply(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the detector failed; see the log of the server"}, 500)
