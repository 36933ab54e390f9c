"""The stages of detection, each by itself and all together: what one run of a benchmark times."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from efficientdet.benchmark.latency import Run, timed
from efficientdet.devices.device import compiled, to_device, wait
from efficientdet.inference.predict import (
    Network,
    Predict,
    build_predict,
    copied,
    detect_in_outputs,
    network_read_on_host,
    predict_on_host,
)
from model.detector import Detector
from object_detection.structures import Detections

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

PHOTOGRAPH = (480, 640)  # height, width of what preprocessing gets: COCO's usual size


class Programs(NamedTuple):
    """A detector whole and in its two parts, each compiled."""

    predict: Predict  # images, sizes, scales -> Detections
    network: Callable  # images, sizes -> outputs; normalisation included
    post_processing: Callable  # outputs, sizes -> Detections


def detector_programs(
    detector: Detector, *, use_xla: bool, runtime: str = "keras", int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> Programs:
    """Compiled on first use. Clipping and scaling of the boxes are in `predict` alone. int8_images and resize: see
    `build_predict`."""
    network = network_read_on_host(detector, compiled=use_xla, runtime=runtime, int8_images=int8_images, resize=resize)
    if network is not None:
        return _programs_on_host(detector, network)
    return Programs(
        predict=build_predict(detector, compiled=use_xla),
        network=compiled(detector.outputs, detector.network, use_xla=use_xla),
        post_processing=compiled(detector.detections, detector.network, use_xla=use_xla))


def _programs_on_host(detector: Detector, network: Network) -> Programs:
    """Outputs are copied, as the images of a batch share memory: the whole takes less than its parts."""
    return Programs(
        predict=predict_on_host(detector, network),
        network=lambda images, sizes: network(np.asarray(images), np.asarray(sizes), copied),
        post_processing=detect_in_outputs(detector))


class Images:
    """Images for each run: random pixels drawn anew, or one photograph again and again."""

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
        """Images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as `Predict` wants them."""
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


def measure_detector(programs: Programs, images: Images, *, preprocessing: Callable | None) -> Run:
    """One run of each stage, in turn, so that other load on the machine falls on all of them alike."""
    seconds = {}
    if preprocessing:
        photographs = images.photographs()
        seconds["preprocessing"], _ = timed(lambda: preprocessing(photographs))
    batch = to_device(*images.batch())
    seconds |= _parts(programs, batch)
    seconds["end_to_end"], found = timed(lambda: _fetched(programs.predict(*batch)))
    return Run(seconds, float(found.valid.sum(axis=1).mean()))


def _parts(programs: Programs, batch: Sequence) -> dict[str, float]:
    """A function of its own, so that the outputs between the parts are freed before the whole is timed."""
    network, outputs = timed(lambda: wait(programs.network(*batch[:2])))
    post_processing, _ = timed(lambda: _fetched(programs.post_processing(outputs, batch[1])))
    return {"network": network, "post_processing": post_processing}


def _fetched(found: Detections) -> Detections:
    """Detections as arrays on the host."""
    return found._replace(**{name: np.asarray(values) for name, values in found._asdict().items() if values is not None})
