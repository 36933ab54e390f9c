import numpy as np
import pytest
from miniature import miniature_detector

from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.inference.predictor import keras_predictor
from model.detection_model import DetectionModel, named_variables
from object_detection.structures import Detections


def inputs():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    return images, np.int32([[64, 64], [40, 64]]), np.float32([[1.0, 1.0], [2.5, 3.0]])


def arrays(detections):
    return Detections(*map(np.asarray, detections))


@pytest.mark.parametrize("compiled", [False, True])
def test_clips_then_scales_what_the_detector_finds(compiled):
    detector = miniature_detector()
    images, sizes, scales = inputs()
    found = arrays(build_predict(detector, compiled=compiled)(images, sizes, scales))
    plain = arrays(detector.detections(detector.outputs(images, sizes), sizes))
    np.testing.assert_allclose(found.scores, plain.scores, atol=1e-5)
    for i in range(2):
        bounds = np.tile(sizes[i], 2).astype(np.float32)
        wanted = np.clip(plain.boxes[i], 0, bounds) * np.tile(scales[i], 2)
        np.testing.assert_allclose(found.boxes[i][found.valid[i]], wanted[plain.valid[i]], rtol=1e-4, atol=1e-2)
    assert found.valid.any(axis=1).all()
    assert found.boxes[1].max() <= 64 * 3.0


def test_one_program_finds_what_is_found_on_the_host(monkeypatch):
    detector = miniature_detector()
    on_host = build_predict(detector, compiled=False)(*inputs())
    monkeypatch.setattr("efficientdet.inference.predictor.accelerator_count", lambda: 1)
    predict = build_predict(detector, compiled=False)
    assert not isinstance(predict.detect(*inputs()[:2]).boxes, np.ndarray)
    for one, other in zip(predict(*inputs())[:4], on_host[:4], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_uses_the_weights_of_the_moment_or_those_of_its_start(compiled, constant):
    detector = miniature_detector()
    predict = keras_predictor(detector, compiled=compiled, constant_weights=constant)
    before = arrays(predict(*inputs()))
    bias = named_variables(detector.network)["class_net/class-predict/bias"]
    bias.assign(np.full(bias.shape, 3.0, np.float32))
    after = arrays(predict(*inputs()))
    assert before.scores.max() < 0.2
    if constant:
        np.testing.assert_array_equal(after.scores, before.scores)
    else:
        assert after.scores[:, 0].min() > 0.9


def test_no_detection_above_the_threshold():
    detector = miniature_detector()
    bias = named_variables(detector.network)["class_net/class-predict/bias"]
    bias.assign(np.full(bias.shape, -30.0, np.float32))
    found = arrays(build_predict(detector, compiled=False)(*inputs()))
    assert not found.valid.any()
    assert not found.scores.any()


def test_a_detector_may_define_the_postprocessing_itself():
    dense = miniature_detector()

    class Own(DetectionModel):
        network, image_size, detects_on_host = dense.network, dense.image_size, True
        outputs = staticmethod(dense.outputs)
        host_outputs = staticmethod(dense.postprocessing.host_outputs)
        detections_on_host = staticmethod(dense.postprocessing.detections_on_host)

    wanted, found = (build_predict(detector, compiled=False)(*inputs()) for detector in (dense, Own()))
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
    assert found.valid.any()
