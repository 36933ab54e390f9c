"""Dynamic batching: images of concurrent requests form a batch, which runs in one thread beside the event loop.

There is no delay for filling a batch: an idle detector starts immediately, and images that arrive meanwhile form the
next batch.
"""

import asyncio
import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import Response

from dataset.class_names import ClassNames
from dataset.files.image_files import decode_image
from dataset.files.pixel_values import FULL_RANGE, ValueRange
from efficientdet.checkpoints.stored_thresholds import DEFAULT_THRESHOLD
from efficientdet.inference.detect import Detect
from efficientdet.options.serve import RequestLimits
from efficientdet.serving.request_body import EncodedImage, RequestError, image_label
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Metrics of a server since its start, and the process metrics of the Prometheus client."""

    def __init__(self) -> None:
        disable_created_metrics()  # otherwise every counter gets a second series
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "efficientdet_requests", "Answered requests by path and status.", ("path", "status"), registry=registry
        )
        self.images = Counter("efficientdet_images", "Images of answered requests.", registry=registry)
        self.seconds = Histogram(
            "efficientdet_request_seconds",
            "Time from the first byte of a body to its detections.",
            registry=registry,
            buckets=_SECONDS,
        )
        self.scores = Summary("efficientdet_score", "Scores of the returned detections.", registry=registry)
        self.batch_images = Histogram(
            "efficientdet_batch_images", "Images per call of the detector.", registry=registry, buckets=_IMAGES
        )
        self.queue_images = Gauge("efficientdet_queue_images", "Images waiting for the detector.", registry=registry)

    def reply(self, _: Request) -> Response:
        """Return the reply of /metrics."""
        return Response(generate_latest(self.registry), headers={"content-type": _CONTENT_TYPE})


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model in a server.

    Attributes:
        detect: detection function for up to `RequestLimits.max_batch` images; called in one thread only.
        class_names: its classes.
        name: its name in replies.
        min_score: its own score threshold.
        value_range: values of images with more than 8 bits per channel that become 0 and 255.
        version: what tells it from another model of the same name.
    """

    detect: Detect
    class_names: ClassNames
    name: str
    min_score: float = DEFAULT_THRESHOLD
    value_range: ValueRange = FULL_RANGE
    version: str = ""

    @property
    def title(self) -> str:
        """The name with the version, if it has one."""
        return f"{self.name} {self.version}".strip()


class ImageResult(NamedTuple):
    """Detections in one image, in the coordinate system of the image after EXIF orientation."""

    size: tuple[int, int]  # height, width
    rows: DetectionRows
    model: ServedModel


class _QueuedImage(NamedTuple):
    image: EncodedImage
    label: str  # name in messages
    outcome: asyncio.Future[ImageResult]


class Batcher:
    """Queue of a detector, and the one thread in which the detector runs.

    Attributes:
        model: may be replaced at any time; a batch that runs keeps its own. None: there is none yet.
        metrics: those of the server.
    """

    def __init__(self, model: ServedModel | None, limits: RequestLimits, metrics: Metrics):
        self.model = model
        self._limits, self.metrics = limits, metrics
        self._queue: deque[_QueuedImage] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detector")
        metrics.queue_images.set_function(lambda: len(self._queue))

    def model_or_error(self) -> ServedModel:
        """Return the model.

        Raises:
            RequestError: There is none yet (503).
        """
        if self.model is None:
            raise RequestError(503, "no model has been trained yet", retry_after_s=60)
        return self.model

    async def detect(self, images: Sequence[EncodedImage]) -> list[ImageResult]:
        """Return the detections in the images of a request.

        Cancelling this removes the images that still wait from the queue.

        Raises:
            RequestError: There is no model or the queue is full (503), or an image cannot be decoded (400).
        """
        self.model_or_error()
        waiting = len(self._queue)
        if waiting + len(images) > self._limits.max_queue:
            raise RequestError(
                503, f"the queue is full ({waiting} of {self._limits.max_queue} images); retry later", retry_after_s=1
            )
        loop = asyncio.get_running_loop()
        entries = [
            _QueuedImage(image, image_label(number, len(images)), loop.create_future())
            for number, image in enumerate(images)
        ]
        self._queue.extend(entries)
        self._arrived.set()
        try:
            await asyncio.gather(*(entry.outcome for entry in entries), return_exceptions=True)
        finally:
            self._queue = deque(entry for entry in self._queue if not entry.outcome.done())
        return [entry.outcome.result() for entry in entries]

    async def run(self) -> None:
        """Hand batches to the detector until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            self.metrics.batch_images.observe(len(batch))
            assert self.model is not None
            outcomes = await loop.run_in_executor(self._thread, _outcomes, batch, self.model)
            for entry, outcome in zip(batch, outcomes, strict=True):
                if entry.outcome.done():  # the request was cancelled
                    continue
                if isinstance(outcome, Exception):
                    entry.outcome.set_exception(outcome)
                else:
                    entry.outcome.set_result(outcome)

    def _next_batch(self) -> list[_QueuedImage]:
        """Return up to `max_batch` images with at most `max_pixels` in total, since all are decoded at once."""
        batch: list[_QueuedImage] = []
        pixels = 0
        while self._queue and len(batch) < self._limits.max_batch:
            pixels += self._queue[0].image.pixels
            if batch and pixels > self._limits.max_pixels:
                break
            batch.append(self._queue.popleft())
        return batch


def _outcomes(batch: Sequence[_QueuedImage], model: ServedModel) -> list[ImageResult | Exception]:
    """Return detections or an error for each image; an image that fails does not affect the others."""
    decoded = [_upright_pixels(entry, model.value_range) for entry in batch]
    results = iter(_found([pixels for pixels in decoded if isinstance(pixels, np.ndarray)], model))
    return [next(results) if isinstance(pixels, np.ndarray) else pixels for pixels in decoded]


def _found(images: list[np.ndarray], model: ServedModel) -> list[ImageResult | Exception]:
    if not images:
        return []
    try:
        return [
            ImageResult(image.shape[:2], rows, model) for image, rows in zip(images, model.detect(images), strict=True)
        ]
    except Exception as error:
        if len(images) == 1:
            return [error]
        return [outcome for image in images for outcome in _found([image], model)]


def _upright_pixels(entry: _QueuedImage, value_range: ValueRange) -> np.ndarray | Exception:
    """Decode an image after EXIF orientation: uint8 [h, w, 3]."""
    try:
        return decode_image(io.BytesIO(entry.image.encoded), name=entry.label, value_range=value_range).upright()
    except InputError as error:
        return RequestError(400, str(error))
    except Exception as error:  # a decoder can raise any type of exception
        return error


def image_reply(result: ImageResult, *, min_score: float) -> dict[str, Any]:
    """Return the upright size of an image, and its detections with a score of `min_score` or more, by score."""
    names = dict(zip(result.model.class_names.category_ids, result.model.class_names.names, strict=True))
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
