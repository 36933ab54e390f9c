"""The file for TensorRT: its plugin node follows NVIDIA's README of EfficientNMS_TRT and gets what Keras computes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from miniature import miniature_detector
from onnx.defs import OpSchema

from efficientdet.onnx_translation.efficientnms import efficientnms_model, without_plugin
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.suppression.tensor_suppression import SuppressionConfig
from program_support.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3)).astype(np.uint8)
SIZES = np.int32([[64, 64], [40, 64], [64, 10]])


@pytest.fixture(scope="module")
def plugin_schema():
    """What TensorRT's README says of inputs, outputs and parameters; the checker then demands it."""
    kind, kinds = OpSchema.FormalParameter, OpSchema.AttrType
    attributes = {
        "plugin_version": kinds.STRING,
        "score_threshold": kinds.FLOAT,
        "iou_threshold": kinds.FLOAT,
        "max_output_boxes": kinds.INT,
        "background_class": kinds.INT,
        "score_activation": kinds.INT,
        "class_agnostic": kinds.INT,
        "box_coding": kinds.INT,
    }
    schema = OpSchema(
        "EfficientNMS_TRT",
        "TRT",
        1,
        inputs=[kind("boxes", "tensor(float)"), kind("scores", "tensor(float)")],
        outputs=[
            kind("num_detections", "tensor(int32)"),
            kind("detection_boxes", "tensor(float)"),
            kind("detection_scores", "tensor(float)"),
            kind("detection_classes", "tensor(int32)"),
        ],
        attributes=[OpSchema.Attribute(name, type_, "", required=True) for name, type_ in attributes.items()],
    )
    onnx.defs.register_schema(schema)
    yield
    onnx.defs.deregister_schema("EfficientNMS_TRT", 1, "TRT")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"iou_threshold": 0.4}, {"score_activation": 1, "class_agnostic": 0, "iou_threshold": 0.4}),
        (
            {
                "per_class": False,
                "clip": True,
                "box_coder": FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0), log_size_limit=1.0),
            },
            {"score_activation": 1, "class_agnostic": 1},
        ),
        ({"scores": "softmax", "method": "hard"}, {"score_activation": 0}),
        ({"scores": "softmax", "method": "none"}, {"score_activation": 0, "iou_threshold": 1.0}),
    ],
)
def test_the_plugin_gets_what_keras_computes(plugin_schema, options, wanted):
    config = SuppressionConfig(**{"candidates": 60, "max_detections": 8, "score_threshold": 0.05, **options})
    detector = miniature_detector(suppression=config)
    model = efficientnms_model(detector)
    onnx.checker.check_model(model)
    [node] = [node for node in model.graph.node if node.domain == "TRT"]
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    expected = {"plugin_version": b"1", "max_output_boxes": 8, "background_class": -1, "box_coding": 0, **wanted}
    assert {name: given[name] for name in expected} == pytest.approx(expected)
    assert [output.name for output in model.graph.output] == list(node.output)
    session = onnxruntime.InferenceSession(
        without_plugin(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    boxes, scores = session.run(None, {"images": IMAGES, "sizes": SIZES})
    logits, deltas = map(np.asarray, detector.outputs(IMAGES, SIZES))
    decoded = np.asarray(config.box_coder.decode(deltas, detector.anchors))
    if config.clip:
        decoded = np.clip(decoded, 0, np.tile(SIZES, 2)[:, None])
    seen = np.clip(decoded, 0, np.tile(SIZES, 2)[:, None])
    has_area = (seen[..., 2:] > seen[..., :2]).all(axis=-1, keepdims=True)
    assert 0 < has_area.mean() < 1
    np.testing.assert_allclose(boxes, np.where(has_area, decoded, 0), atol=1e-3)
    if config.scores == "sigmoid":
        np.testing.assert_allclose(scores, np.where(has_area, logits, -1e4), atol=1e-4)
    else:
        shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(scores, np.where(has_area, shares[..., 1:], 0), atol=1e-5)


def test_boxes_that_the_plugin_would_measure_otherwise_are_refused():
    last_pixel = FasterRcnnBoxCoder(last_pixel=True)
    with pytest.raises(InputError, match="measures boxes from corner to corner"):
        efficientnms_model(miniature_detector(suppression=SuppressionConfig(box_coder=last_pixel)))


def test_a_file_with_another_attribute_is_no_plugin(plugin_schema):
    model = efficientnms_model(miniature_detector())
    [node] = [node for node in model.graph.node if node.domain == "TRT"]
    node.attribute.append(onnx.helper.make_attribute("soft_nms_sigma", 0.5))
    with pytest.raises(onnx.checker.ValidationError, match="soft_nms_sigma"):
        onnx.checker.check_model(model)
