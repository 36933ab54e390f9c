"""The routes of the server: the page, the detection, and what others ask about a service."""

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
from efficientdet.inference.image_rows import Detect
from efficientdet.reports.drawing import class_color
from efficientdet.serving.api_description import api_document
from efficientdet.serving.batching import Batcher, Found
from efficientdet.serving.limits import REQUESTS_HELD, Limits, MemoryBudget, Refusal
from efficientdet.serving.metrics import Metrics
from efficientdet.serving.middleware import Guard
from efficientdet.serving.pages import api_page, content_security_policy, detector_page
from efficientdet.serving.request_body import Asked, read_request

_DETECT = "/v1/detect"


def build_application(detect: Detect, class_names: ClassNames, *, model: str, limits: Limits,
                      hosts: tuple[str, ...] = (), origins: tuple[str, ...] = ()) -> ASGIApp:
    """The server as an ASGI application.

    detect: takes up to `limits.max_batch` images at a time; called in one thread alone. model: what replies call it.
    hosts: names by which it may be called (none: by any); origins: of other pages that may use it (`https://example.org`).
    """
    service = _Service(detect, class_names, model=model, limits=limits)
    api = api_document(limits)
    routes = [
        Route("/", _page(detector_page(limits.min_score))), Route("/docs", _page(api_page(api))),
        Route("/openapi.json", _json(api)), Route("/v1/model", _json(service.about())),
        Route(_DETECT, service.detect, methods=["POST"]), Route("/healthz", _json({"status": "ok"})),
        Route("/metrics", service.metrics.reply)]
    shared = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"])] if origins else []
    application = Starlette(routes=routes, lifespan=service.lifespan, middleware=shared, exception_handlers={
        Refusal: _refused, HTTPException: _no_such_route, Exception: _failed})
    application.router.redirect_slashes = False  # to an address that the caller's Host makes up
    return Guard(application, service.metrics, paths=tuple(route.path for route in routes), hosts=hosts, origins=origins)


class _Service:
    """A detector behind its queue, and what is counted of it."""

    def __init__(self, detect: Detect, class_names: ClassNames, *, model: str, limits: Limits):
        self.metrics = Metrics()
        self._batcher = Batcher(detect, limits, self.metrics)
        self._memory = MemoryBudget(REQUESTS_HELD * limits.max_request_bytes)
        self._class_names, self._model, self._limits = class_names, model, limits
        self._name_of = dict(zip(class_names.category_ids, class_names.names, strict=True))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """The detector's thread is fed as long as the server stands."""
        feeding = asyncio.create_task(self._batcher.run())
        yield
        feeding.cancel()

    def about(self) -> dict:
        """The reply of /v1/model."""
        limits = {name: getattr(self._limits, name) for name in ("max_request_bytes", "max_pixels", "max_queue")}
        return {"model": self._model, "classes": _classes_reply(self._class_names), "min_score": self._limits.min_score,
                "limits": limits}

    async def detect(self, request: Request) -> Response:
        """The reply of /v1/detect."""
        start = time.perf_counter()
        with self._memory.reservation() as take:
            asked = await read_request(request, self._limits, take=take)
            found = await self._found(asked, request)
            images = await asyncio.to_thread(self._images, found, asked.min_score)
        seconds = time.perf_counter() - start
        self.metrics.seconds.observe(seconds)
        self.metrics.images.inc(len(images))
        return JSONResponse({"model": self._model, "min_score": asked.min_score, "images": images,
                             "time_ms": round(1000 * seconds, 1)})

    async def _found(self, asked: Asked, request: Request) -> list[Found]:
        """Detections in time. Raises Refusal; also for a client that has gone, whose images leave the queue."""
        detecting, gone = (asyncio.ensure_future(each) for each in (self._batcher.detect(asked.pictures), _gone(request)))
        try:
            await asyncio.wait((detecting, gone), timeout=self._limits.request_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if detecting.done():
                return detecting.result()
            if gone.done():
                raise Refusal(499, "the client has gone")
            raise Refusal(504, f"nothing was detected within {self._limits.request_timeout_s:g} s")
        finally:
            detecting.cancel()
            gone.cancel()

    def _images(self, found: list[Found], min_score: float) -> list[dict]:
        return [image_reply(one, names=self._name_of, min_score=min_score) for one in found]


def image_reply(found: Found, *, names: Mapping[int, str], min_score: float) -> dict[str, Any]:
    """Return the JSON of one image: its upright size, and its detections from `min_score` on, best first."""
    height, width = found.size
    kept = (np.asarray(found.rows.scores) >= min_score) & np.isfinite(found.rows.boxes).all(axis=-1)  # JSON knows no NaN
    rows = found.rows.chosen(np.flatnonzero(kept))
    boxes = np.clip(np.asarray(rows.boxes, np.float64)[:, [1, 0, 3, 2]], 0, [width, height, width, height]).round(2)
    columns = (boxes, np.asarray(rows.scores, np.float64).round(5), np.asarray(rows.category_ids))
    detections = [{"box": box, "score": score, "class_id": class_id, "class_name": names[class_id]}
                  for box, score, class_id in zip(*(column.tolist() for column in columns), strict=True)]
    if rows.masks is not None:
        for detection, mask in zip(detections, rows.masks, strict=True):
            detection["mask"] = mask
    return {"width": width, "height": height, "detections": detections}


def _classes_reply(class_names: ClassNames) -> list[dict[str, Any]]:
    """Return every class with its color in infer.py's drawings."""
    return [{"id": number, "name": name, "color": "#{:02x}{:02x}{:02x}".format(*class_color(index))}
            for index, (number, name) in enumerate(zip(class_names.category_ids, class_names.names, strict=True))]


async def _gone(request: Request) -> None:
    """Returns when the client of a request that was read has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page(html: str):
    policy = content_security_policy(html)

    def reply(_: Request) -> Response:
        return HTMLResponse(html, headers={"content-security-policy": policy})

    return reply


def _json(content: dict):
    return lambda _: JSONResponse(content)


async def _refused(_: Request, error: Refusal) -> Response:
    headers = {"retry-after": str(math.ceil(error.retry_after_s))} if error.retry_after_s else None
    return JSONResponse({"error": error.reason}, error.status, headers=headers)


async def _no_such_route(request: Request, error: HTTPException) -> Response:
    told = {404: "there is no such page; / is one, and /docs tells the others",
            405: f"{request.method} is not for this address"}.get(error.status_code, error.detail)
    return JSONResponse({"error": told}, error.status_code, headers=error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the detector failed; the log of the server says why"}, 500)
