"""The stages of detection, each by itself and all together: what one run of a benchmark times."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from efficientdet.benchmark.latency import Run, timed
from efficientdet.devices.device import to_device, wait
from efficientdet.inference.image_rows import fetched
from efficientdet.inference.predict import BackendDetector, HostDetector

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

PHOTOGRAPH = (480, 640)  # height, width of what preprocessing gets: COCO's usual size


class Images:
    """Images for each run: random pixels drawn again, or one photograph again and again."""

    def __init__(self, photograph: np.ndarray | None, *, size: tuple[int, int], batch_size: int,
                 resize: "ResizeRule | None" = None):
        """size: of the network's input; resize: how a photograph becomes one."""
        self._photograph, self._size, self._batch_size, self._resize = photograph, size, batch_size, resize
        self._random = np.random.default_rng(0)

    def photographs(self) -> list[np.ndarray]:
        """A batch of [h, w, 3] uint8 as a camera gives them."""
        if self._photograph is not None:
            return [self._photograph] * self._batch_size
        return list(self._noise(PHOTOGRAPH))

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as of a `Batch`."""
        if self._photograph is not None:
            return preprocess(self.photographs(), self._resize)
        return (self._noise(self._size), np.full((self._batch_size, 2), self._size, np.int32),
                np.ones((self._batch_size, 2), np.float32))

    def _noise(self, size: tuple[int, int]) -> np.ndarray:
        return self._random.integers(0, 256, (self._batch_size, *size, 3), np.uint8)


def preprocess(photographs: Iterable[np.ndarray], resize: "ResizeRule") -> tuple[np.ndarray, ...]:
    """Images [h, w, 3] uint8 resized on the host, as infer.py does: a batch as `Images.batch` has it."""
    boxed = [[np.asarray(part) for part in resize(image)] for image in photographs]
    return tuple(np.stack(parts) for parts in zip(*boxed, strict=True))


def measure_detector(predict: BackendDetector | HostDetector, images: Images, *, preprocessing: Callable | None) -> Run:
    """One run of each stage, in turn, so that other load on the machine falls on all of them alike.

    Clipping and scaling of the boxes are in the whole alone. Where the network runs by itself its outputs are copied for the
    stages, as the images of a batch share memory: the whole takes less than its parts.
    """
    seconds = {}
    if preprocessing:
        photographs = images.photographs()
        seconds["preprocessing"], _ = timed(lambda: preprocessing(photographs))
    batch = to_device(*images.batch())
    seconds |= _parts(predict, batch)
    seconds["end_to_end"], found = timed(lambda: predict(*batch))
    return Run(seconds, float(found.valid.sum(axis=1).mean()))


def _parts(predict: BackendDetector | HostDetector, batch: Sequence) -> dict[str, float]:
    """A function of its own, so that the outputs between the parts are freed before the whole is timed."""
    network, outputs = timed(lambda: wait(predict.outputs(*batch[:2])))
    post_processing, _ = timed(lambda: fetched(predict.postprocess(outputs, batch[1])))
    return {"network": network, "post_processing": post_processing}
