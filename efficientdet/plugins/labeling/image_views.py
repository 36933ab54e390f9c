"""Outputs of a detector for images: detections, also in the mirror image, and features of the backbone."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from dataset.files.image_files import read_stored_image
from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices import device
from efficientdet.families.family import Family
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from efficientdet.inference.detect import Detector
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

BATCH = 8  # images at a time; the last one of a pool is padded to it, so that the network is compiled once


class ImageViews(NamedTuple):
    """An image as a detector sees it."""

    path: str
    rows: DetectionRows  # of the upright image
    mirrored: DetectionRows  # of its mirror image, with boxes in pixels of the image
    features: np.ndarray  # [F] float32
    digest: bytes  # of the pixels


class Viewer:
    """A restored detector that looks at images, with calibrated scores if it stores their maps."""

    def __init__(self, config: ModelConfig):
        restored, runtime = load_model(config)
        detector = checkpoint_detector(restored, batch_size=BATCH, compiled=runtime.use_xla)
        self.detector: Detector = detector.with_calibrated_scores() if detector.score_maps else detector
        self._features = _feature_function(restored, compiled=runtime.use_xla)
        self._resize = restored.resize

    def views(self, paths: Sequence[str]) -> Iterator[ImageViews | InputError]:
        """Yield the views of each image, or why it cannot be decoded; no path twice."""
        for start in range(0, len(paths), BATCH):
            batch = {path: self._read(path) for path in paths[start : start + BATCH]}
            images = {path: image for path, image in batch.items() if isinstance(image, np.ndarray)}
            views = self._views([*images], [*images.values()])
            for image in batch.values():
                yield image if isinstance(image, InputError) else next(views)

    def features(self, index: RecordIndex) -> np.ndarray:
        """Return the features of the images in records, [n, F]."""
        images = (image.pixels for image in original_images(index, range(len(index))))
        return np.concatenate([self._features_of(batch) for batch in iter(lambda: list(islice(images, BATCH)), [])])

    def _read(self, path: str) -> np.ndarray | InputError:
        try:
            return read_stored_image(path, value_range=self.detector.value_range).upright()
        except InputError as error:
            return error

    def _views(self, names: Sequence[str], images: list[np.ndarray]) -> Iterator[ImageViews]:
        if not images:
            return
        found = self.detector.detect(images)
        in_mirror = self.detector.detect([np.ascontiguousarray(image[:, ::-1]) for image in images])
        features = self._features_of(images)
        for name, image, rows, mirrored, vector in zip(names, images, found, in_mirror, features, strict=True):
            y_min, x_min, y_max, x_max = mirrored.boxes.T
            boxes = np.stack([y_min, image.shape[1] - x_max, y_max, image.shape[1] - x_min], axis=1)
            digest = hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).digest()
            yield ImageViews(name, rows, mirrored._replace(boxes=boxes), vector, digest)

    def _features_of(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean of the backbone's last features over the area, [n, F], of up to 8 images [h, w, 3] uint8."""
        inputs = [[np.asarray(part) for part in self._resize(image)] for image in images]
        pixels, sizes, _ = map(np.stack, zip(*(inputs + [inputs[-1]] * (BATCH - len(inputs))), strict=True))
        return np.asarray(self._features(pixels, sizes))[: len(images)]


def _feature_function(restored: Restored, *, compiled: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function from images uint8 [B, H, W, 3] and sizes [B, 2] to features [B, F]."""
    detector, family = restored.detector, restored.hparams.family
    if (found := _backbone_end(detector.network, family)) is None:
        raise InputError(
            f"the family {family.name} names no backbone (`Family.is_backbone`), whose features are needed"
        )
    images, end = found
    network = keras.Model(images, ops.mean(ops.cast(end, "float32"), axis=(1, 2)))
    return device.compiled(
        lambda images, sizes: network(detector.normalize(images, sizes)),
        network,
        use_xla=compiled,
        constant_weights=True,
    )


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
