"""Outputs of a detector for unlabeled images: detections, also in the mirror image, and features of the backbone."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from dataset.files.image_files import read_stored_image
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices import device
from efficientdet.families.family import Family
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from efficientdet.inference.detect import Detector
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError
from program_support.progress import Progress

BATCH = 8  # images at a time; the last one of a pool is padded to it, so that the network is compiled once


class ImageViews(NamedTuple):
    """An image as a detector sees it."""

    path: str
    rows: DetectionRows  # of the upright image
    mirrored: DetectionRows  # of its mirror image, with boxes in pixels of the image
    features: np.ndarray  # [F] float32


class Viewer:
    """A restored detector that looks at images, with calibrated scores if it stores their maps."""

    def __init__(self, config: ModelConfig):
        restored, runtime = load_model(config)
        detector = checkpoint_detector(restored, batch_size=BATCH, compiled=runtime.use_xla)
        self.detector: Detector = detector.with_calibrated_scores() if detector.score_maps else detector
        self._features = _feature_function(restored, compiled=runtime.use_xla)
        self._resize = restored.resize

    def features(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean of the backbone's last features over the area, [n, F], of up to 8 images [h, w, 3] uint8."""
        inputs = [[np.asarray(part) for part in self._resize(image)] for image in images]
        pixels, sizes, _ = map(np.stack, zip(*(inputs + [inputs[-1]] * (BATCH - len(inputs))), strict=True))
        return np.asarray(self._features(pixels, sizes))[: len(images)]

    def views(self, paths: Sequence[str], failures: list[str]) -> Iterator[ImageViews]:
        """Yield the views of the readable images; append the others to `failures`, a line each."""
        with Progress("next_images", total=len(paths), noun="image") as progress:
            for start in range(0, len(paths), BATCH):
                names, images = [], []
                for path in paths[start : start + BATCH]:
                    try:
                        images.append(read_stored_image(path, value_range=self.detector.value_range).upright())
                        names.append(path)
                    except InputError as error:
                        failures.append(str(error))
                if images:
                    yield from self._views(names, images)
                progress.advance(len(paths[start : start + BATCH]), images=len(images))

    def _views(self, names: list[str], images: list[np.ndarray]) -> Iterator[ImageViews]:
        found = self.detector.detect(images)
        in_mirror = self.detector.detect([np.ascontiguousarray(image[:, ::-1]) for image in images])
        features = self.features(images)
        for name, image, rows, mirrored, vector in zip(names, images, found, in_mirror, features, strict=True):
            y_min, x_min, y_max, x_max = mirrored.boxes.T
            boxes = np.stack([y_min, image.shape[1] - x_max, y_max, image.shape[1] - x_min], axis=1)
            yield ImageViews(name, rows, mirrored._replace(boxes=boxes), vector)


def _feature_function(restored: Restored, *, compiled: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function from images uint8 [B, H, W, 3] and sizes [B, 2] to features [B, F]."""
    detector, family = restored.detector, restored.hparams.family
    found = _backbone_end(detector.network, family)
    assert found is not None  # every family has a backbone
    images, end = found
    network = keras.Model(images, ops.mean(ops.cast(end, "float32"), axis=(1, 2)))
    return device.compiled(lambda images, sizes: network(detector.normalize(images, sizes)), network, use_xla=compiled)


def _backbone_end(network: keras.Model, family: Family) -> tuple[keras.KerasTensor, keras.KerasTensor] | None:
    """Return the images and the backbone's last features, tensors of the network or of one nested in it."""
    end = None
    for layer in network.layers:
        if isinstance(layer, keras.Model):
            end = None
            if found := _backbone_end(layer, family):
                return found
        elif layer.variables and family.is_backbone(f"{layer.name.replace('.', '/')}/"):
            end = layer.output
    return None if end is None else (network.inputs[0], end)
