"""Files that detect by themselves against the detectors that they were made of, in every way of reading outputs."""

import numpy as np
import onnxruntime
import pytest
from miniature import miniature_detector

from efficientdet.plugins.onnx.model import onnx_model
from model.detection_model import named_variables
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.structures import DETECTIONS
from object_detection.suppression.tensor_suppression import SuppressionConfig

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3)).astype(np.uint8)
SIZES = np.int32([[64, 64], [40, 64], [64, 10]])
WAYS = {
    "gaussian, per class": {},
    "gaussian, all classes": {"per_class": False, "score_threshold": 0.3},
    "hard, per class": {"method": "hard", "iou_threshold": 0.3},
    "hard, all classes": {"method": "hard", "per_class": False, "iou_threshold": 0.4},
    "of each level": {
        "method": "hard",
        "candidates_per_level": 20,
        "clip": True,
        "box_coder": FasterRcnnBoxCoder(log_size_limit=1.0),
    },
    "clipped": {"clip": True},
    "none suppressed": {"method": "none", "score_threshold": 0.3},
    "of each class": {
        "method": "hard",
        "candidates_per_class": 15,
        "scores": "softmax",
        "score_threshold": 0.05,
        "box_coder": FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0)),
    },
    "fewer candidates than slots": {"method": "hard", "candidates": 4},
    "few and soft": {"candidates": 4},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_an_image_and_a_batch(options):
    detector = miniature_detector(suppression=SuppressionConfig(**{"candidates": 60, "max_detections": 8, **options}))
    for name, variable in named_variables(detector.network).items():
        if name.startswith("class_net/class-predict"):  # scores that differ
            variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    model = onnx_model(detector, detects=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = detector.detections(detector.outputs(IMAGES, SIZES), SIZES)
    boxes = np.clip(np.asarray(wanted.boxes), 0, np.tile(SIZES, 2)[:, None].astype(np.float32))
    boxes[~np.asarray(wanted.valid)] = 0
    assert np.asarray(wanted.valid).sum() > 3
    for images in (slice(0, 1), slice(1, 2), slice(0, 3)):
        found = session.run(list(DETECTIONS), {"images": IMAGES[images], "sizes": SIZES[images]})
        np.testing.assert_allclose(found[1], np.asarray(wanted.scores)[images], atol=1e-5)
        np.testing.assert_array_equal(found[2], np.asarray(wanted.classes)[images])
        np.testing.assert_allclose(found[0], boxes[images], atol=1e-2)
