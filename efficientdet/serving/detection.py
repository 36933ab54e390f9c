"""Open the detector of a server and warm it up with every batch size."""

from dataclasses import replace
from typing import Any

import numpy as np

from efficientdet.inference.detect import Detect, Detector
from efficientdet.inference.export_formats import format_of
from efficientdet.inference.open_model import Runtime, load_detector


def open_for_serving(path: str, *, runtime: Runtime, max_batch: int, **settings: Any) -> Detector:
    """Load a model to detect in up to `max_batch` images at a time.

    settings: Arguments of `load_detector`, whose errors are raised. The model is warmed up with empty images of every
    batch size, so that the first request does not wait for compilation.
    """
    detector = load_detector(path, runtime=runtime, **settings)
    detect = detector.detect
    if runtime == "keras" and format_of(path) is None:
        detect = _padded_to_few_sizes(detect, max_batch)
    blank = np.zeros((64, 64, 3), np.uint8)
    for size in _batch_sizes(max_batch):
        detect([blank] * size)
    return replace(detector, detect=detect)


def _batch_sizes(max_batch: int) -> list[int]:
    """Return the powers of two below `max_batch`, and `max_batch`."""
    return [*(2**power for power in range((max_batch - 1).bit_length())), max_batch]


def _padded_to_few_sizes(detect: Detect, max_batch: int) -> Detect:
    """Pad batches with their last image to a few sizes, since compiling the network takes seconds per size."""

    def padded(images):
        size = next(size for size in _batch_sizes(max_batch) if size >= len(images))
        return detect([*images, *images[-1:] * (size - len(images))])[: len(images)]

    return padded
