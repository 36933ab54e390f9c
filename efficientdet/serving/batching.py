"""Images of requests that come together go through the detector together, in one thread beside the event loop.

Nothing is waited for: an image that finds the detector idle starts at once, and those that come meanwhile are the next batch.
"""

import asyncio
import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dataset.files.image_files import decode_image
from efficientdet.inference.image_rows import Detect
from efficientdet.serving.limits import Limits, Refusal
from efficientdet.serving.metrics import Metrics
from efficientdet.serving.request_body import Picture, place_of
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError


class Found(NamedTuple):
    """What was found in one image, in the frame of the upright image."""

    size: tuple[int, int]  # height, width
    rows: DetectionRows


class _Waiting(NamedTuple):
    picture: Picture
    place: str  # how messages call it
    outcome: asyncio.Future


class Batcher:
    """The queue before a detector, and the one thread in which it runs."""

    def __init__(self, detect: Detect, limits: Limits, metrics: Metrics):
        """detect: takes up to `limits.max_batch` images at a time."""
        self._detect, self._limits, self._metrics = detect, limits, metrics
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="detector")
        metrics.queue_images.set_function(lambda: len(self._queue))

    async def detect(self, pictures: Sequence[Picture]) -> list[Found]:
        """What is found in the images of a request. Raises Refusal where the queue has no place for them (503) or one of them
        cannot be decoded (400); whoever cancels this takes what still waits out of the queue."""
        waiting = len(self._queue)
        if waiting + len(pictures) > self._limits.max_queue:
            raise Refusal(503, f"{waiting} images wait, of {self._limits.max_queue} at most; come again", retry_after_s=1)
        loop = asyncio.get_running_loop()
        mine = [_Waiting(picture, place_of(number, len(pictures)), loop.create_future())
                for number, picture in enumerate(pictures)]
        self._queue.extend(mine)
        self._arrived.set()
        try:
            outcomes = await asyncio.gather(*(entry.outcome for entry in mine), return_exceptions=True)
        finally:
            self._queue = deque(entry for entry in self._queue if not entry.outcome.done())
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    async def run(self) -> None:
        """Hand batches to the detector until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            self._metrics.batch_images.observe(len(batch))
            outcomes = await loop.run_in_executor(self._thread, self._outcomes, batch)
            for entry, outcome in zip(batch, outcomes, strict=True):
                if entry.outcome.done():  # no one waits for it any more
                    continue
                if isinstance(outcome, Exception):
                    entry.outcome.set_exception(outcome)
                else:
                    entry.outcome.set_result(outcome)

    def _next_batch(self) -> list[_Waiting]:
        """As many as the detector takes, and of no more pixels than one image may have: they are all decoded at one time."""
        batch, pixels = [], 0
        while self._queue and len(batch) < self._limits.max_batch:
            pixels += self._queue[0].picture.pixels
            if batch and pixels > self._limits.max_pixels:
                break
            batch.append(self._queue.popleft())
        return batch

    def _outcomes(self, batch: Sequence[_Waiting]) -> list[Found | Exception]:
        """Of each image what was found in it, or what was wrong with it; one that breaks does no harm to the others."""
        outcomes = [_upright_pixels(entry) for entry in batch]
        whole = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, np.ndarray)]
        for number, found in zip(whole, self._found([outcomes[number] for number in whole]), strict=True):
            outcomes[number] = found
        return outcomes

    def _found(self, images: list[np.ndarray]) -> list[Found | Exception]:
        if not images:
            return []
        try:
            return [Found(image.shape[:2], rows) for image, rows in zip(images, self._detect(images), strict=True)]
        except Exception as error:
            if len(images) == 1:
                return [error]
            return [outcome for image in images for outcome in self._found([image])]


def _upright_pixels(entry: _Waiting) -> np.ndarray | Exception:
    """[h, w, 3] uint8, as a viewer shows the image."""
    try:
        return decode_image(io.BytesIO(entry.picture.encoded), name=entry.place).upright()
    except InputError as error:
        return Refusal(400, str(error))
    except Exception as error:  # of a decoder that gave up in a way of its own
        return error
