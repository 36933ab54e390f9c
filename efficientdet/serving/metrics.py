"""Prometheus metrics of a server."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import Response

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Metrics of a server since its start, and the process metrics of the Prometheus client."""

    def __init__(self) -> None:
        disable_created_metrics()  # otherwise every counter gets a second series
        self._registry = registry = CollectorRegistry()
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
        self.batch_images = Histogram(
            "efficientdet_batch_images", "Images per call of the detector.", registry=registry, buckets=_IMAGES
        )
        self.queue_images = Gauge("efficientdet_queue_images", "Images waiting for the detector.", registry=registry)

    def reply(self, _: Request) -> Response:
        """Return the reply of /metrics."""
        return Response(generate_latest(self._registry), headers={"content-type": _CONTENT_TYPE})
