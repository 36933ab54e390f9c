"""Detections and label assignment on whichever Keras backend is loaded; run by test_backends.

    python backend_probe.py given.npz found.npz ROOT

The first file has the weights of each family. Training steps of the families are compared in test_mesh_families.
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[3])

import keras
import numpy as np
from keras import ops
from small_families import SMALL, batch_of, drawn_weights, small_detector

from efficientdet.devices.device import compiled, present_weights
from object_detection.assignment.anchor_assignment import assign_anchors
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid
from object_detection.geometry.box_coding import PLAIN_BOX_CODER
from object_detection.structures import Objects


def given_arrays() -> dict[str, np.ndarray]:
    """Return the weights of each family."""
    return {f"{name}:{key}": array for name in SMALL for key, array in drawn_weights(name).items()}


def found_arrays(given) -> dict[str, np.ndarray]:
    """Return everything that the two backends must agree on, by name."""
    found = _assigned()
    for name in SMALL:
        weights = {key.partition(":")[2]: given[key] for key in given if key.startswith(f"{name}:")}
        detector, _ = small_detector(name, weights)
        batch = batch_of(0, detector, size=2)

        def detect(images, sizes, detector=detector):
            outputs = detector.outputs(images, sizes)
            return outputs, detector.detections(outputs, sizes)

        outputs, detections = compiled(
            detect, detector.network, use_xla=False, constants=present_weights(detector.network)
        )(batch.images, batch.sizes)
        found |= {f"{name} output {number}": value for number, value in enumerate(outputs)}
        found |= _named(f"{name} detections", detections)
    return {name: ops.convert_to_numpy(value) for name, value in found.items()}


def _named(prefix: str, bundle) -> dict:
    return {f"{prefix}.{name}": value for name, value in bundle._asdict().items() if value is not None}


def _assigned() -> dict:
    """Targets by overlap and by task alignment, of boxes in whole cells, so that many overlaps are equal."""
    rng, grid = np.random.default_rng(0), anchor_grid(AnchorConfig(), (256, 256))
    corner = rng.integers(0, 60, (2, 40, 2)) * 4.0
    boxes = np.concatenate([corner, corner + rng.integers(1, 30, (2, 40, 2)) * 4], axis=-1).astype(np.float32)
    numbers = np.tile(np.arange(40, dtype=np.int32), (2, 1))
    objects = Objects.of_boxes(boxes, numbers % 3, numbers >= 0, numbers % 7 == 6)
    outputs = (rng.normal(size=(2, len(grid), width)).astype(np.float32) for width in (3, 4))
    logits, deltas = map(ops.convert_to_tensor, outputs)
    objects = Objects(*map(ops.convert_to_tensor, objects))
    aligned = TaskAlignedAssigner().assign(objects, grid, box_coder=PLAIN_BOX_CODER, outputs=(logits, deltas))
    return _named("by overlap", assign_anchors(objects, grid)) | _named("task aligned", aligned)


if __name__ == "__main__":
    assert keras.backend.backend() == "jax"
    np.savez(sys.argv[2], **found_arrays(np.load(sys.argv[1])))
