"""Counts of a server in Prometheus's text form (version 0.0.4)."""

import bisect
import os
from collections import Counter
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """How many values were at most each bound."""

    def __init__(self, bounds: tuple[float, ...]):
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        """Its samples; each bucket counts those below, too."""
        lines, total = [], 0
        for bound, count in zip((*map("{:g}".format, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {total}"]


class Metrics:
    """What a server has done since it started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.seconds = Histogram(_SECONDS)  # of detections that were answered
        self.batch_images = Histogram(_IMAGES)
        self.images = 0  # answered

    def text(self, *, waiting: int) -> str:
        """All of it, with how many images wait."""
        requests = [f'efficientdet_requests_total{{path="{path}",status="{status}"}} {count}'
                    for (path, status), count in sorted(self.requests.items())]
        return "\n".join([
            *_head("efficientdet_requests_total", "counter", "Requests that were answered, by path and status."), *requests,
            *_head("efficientdet_images_total", "counter", "Images in which was detected."),
            f"efficientdet_images_total {self.images}",
            *_head("efficientdet_request_seconds", "histogram", "From a request's first byte of the body to its detections."),
            *self.seconds.lines("efficientdet_request_seconds"),
            *_head("efficientdet_batch_images", "histogram", "Images that the detector was handed at a time."),
            *self.batch_images.lines("efficientdet_batch_images"),
            *_head("efficientdet_queue_images", "gauge", "Images that wait for the detector."),
            f"efficientdet_queue_images {waiting}",
            *_head("process_resident_memory_bytes", "gauge", "Resident memory."),
            f"process_resident_memory_bytes {_resident_bytes()}"]) + "\n"


def _resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _head(name: str, kind: str, told: str) -> list[str]:
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
