"""The stages of detection, timed separately and end to end in each run of a benchmark."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from efficientdet.benchmark.latency import Run, timed
from efficientdet.devices.device import to_device, wait
from efficientdet.inference.runtimes import Predictor, fetched

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

PHOTOGRAPH = (480, 640)  # height, width of the input of preprocessing: the usual size in COCO


class Images:
    """Images for each run: new random pixels, or the same photograph."""

    def __init__(
        self,
        photograph: np.ndarray | None,
        *,
        size: tuple[int, int],
        batch_size: int,
        resize: "ResizeRule | None" = None,
    ):
        """Prepare images; size: of the network's input; resize: the resize rule for a photograph."""
        self._photograph, self._size, self._batch_size, self._resize = photograph, size, batch_size, resize
        self._random = np.random.default_rng(0)

    def photographs(self) -> list[np.ndarray]:
        """Return a batch of images [h, w, 3] uint8 in camera size."""
        if self._photograph is not None:
            return [self._photograph] * self._batch_size
        return list(self._noise(PHOTOGRAPH))

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as in a `Batch`."""
        if self._photograph is not None:
            assert self._resize is not None
            return preprocess(self.photographs(), self._resize)
        return (
            self._noise(self._size),
            np.full((self._batch_size, 2), self._size, np.int32),
            np.ones((self._batch_size, 2), np.float32),
        )

    def _noise(self, size: tuple[int, int]) -> np.ndarray:
        return self._random.integers(0, 256, (self._batch_size, *size, 3), np.uint8)


def preprocess(photographs: Iterable[np.ndarray], resize: "ResizeRule") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Resize images [h, w, 3] uint8 on the host as infer.py does; return a batch as `Images.batch` does."""
    boxed = [[np.asarray(part) for part in resize(image)] for image in photographs]
    images, sizes, scales = (np.stack(parts) for parts in zip(*boxed, strict=True))
    return images, sizes, scales


def measure_detector(predict: Predictor, images: Images, *, preprocessing: Callable | None) -> Run:
    """Time one run of each stage in turn, so that other load on the machine affects all of them equally.

    Clipping and scaling of the boxes are timed only end to end. If the network runs separately, its outputs are copied
    for the stages, because the images of a batch share memory: end to end takes less than the sum of the stages.
    """
    seconds = {}
    if preprocessing:
        photographs = images.photographs()
        seconds["preprocessing"], _ = timed(lambda: preprocessing(photographs))
    batch = to_device(*images.batch())
    seconds |= _parts(predict, batch)
    seconds["end_to_end"], detections = timed(lambda: predict(*batch))
    return Run(seconds, float(detections.valid.sum(axis=1).mean()))


def _parts(predict: Predictor, batch: Sequence) -> dict[str, float]:
    """Time the stages; a separate function, so that their outputs are freed before the end-to-end run."""
    network, outputs = timed(lambda: wait(predict.outputs(*batch[:2])))
    post_processing, _ = timed(lambda: fetched(predict.postprocess(outputs, batch[1])))
    return {"network": network, "post_processing": post_processing}
