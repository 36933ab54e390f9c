"""Detection with the network of an exported file, without importing TensorFlow or Keras."""

import numpy as np

from efficientdet.inference.exported_network import ExportedNetwork, Outputs, copied
from efficientdet.inference.image_rows import BatchDetector
from object_detection.structures import Detections, Tensor, stacked
from program_support.errors import InputError


class ArtifactDetector(BatchDetector):
    """Detector of an exported file that outputs detections, with the weights and NMS of the export."""

    def __init__(self, network: ExportedNetwork, *, path: str, class_count: int):
        """Wrap a network; path: the name of the file in messages."""
        self._network, self._path, self._class_count = network, path, class_count

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """See `BatchDetector`. Raises InputError for a file with other outputs."""
        return stacked(self._network(np.asarray(images), np.asarray(sizes), self._detections))

    def _detections(self, outputs: Outputs, size: np.ndarray) -> Detections:
        """Return the detections of one image, copied because the next outputs overwrite them."""
        shapes = [values.shape for values in outputs]
        if len(shapes) < 3 or shapes[:3] != [(*shapes[1][:1], 4), shapes[1][:1], shapes[1][:1]]:
            raise InputError(
                f"{self._path}: returns {', '.join(map(str, map(list, shapes)))} for an image; expected boxes "
                "[D, 4], scores [D] and classes [D]"
            )
        boxes, scores, classes, *masks = copied(outputs, size)
        found = classes[scores > 0]
        if found.size and not 0 <= found.min() <= found.max() < self._class_count:
            raise InputError(
                f"{self._path}: returns classes {found.min()} to {found.max()}; expected 0 to {self._class_count - 1}"
            )
        valid = (scores > 0) & np.isfinite(boxes).all(axis=-1)  # before they are clipped to the image
        return Detections(boxes, scores, classes, valid, masks[0] if masks else None)
