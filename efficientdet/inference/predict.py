"""Detection with a detector in memory whose network runs in Keras or, exported, in another runtime."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from efficientdet.inference.predictor import host_predictor, keras_predictor
from efficientdet.inference.runtimes import Network, Predictor
from efficientdet.onnx_translation.calibration import calibration_of_files
from model.detection_model import DetectionModel
from program_support.processor import sums_of_bytes_saturate

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


def build_predict(
    detector: DetectionModel,
    *,
    compiled: bool,
    runtime: str = "keras",
    int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> Predictor:
    """Return `keras_predictor`, or a detector in another runtime with the current weights.

    They are quantized to int8 if there are `int8_images`, which `resize` converts to inputs.
    """
    if runtime == "keras":
        return keras_predictor(detector, compiled=compiled)
    return host_predictor(detector, exported_network(detector, runtime=runtime, int8_images=int8_images, resize=resize))


def exported_network(
    detector: DetectionModel, *, runtime: str, int8_images: Sequence[str] = (), resize: "ResizeRule | None" = None
) -> Network:
    """Export the detector's current network to another runtime; in int8 if there are calibration images."""
    from efficientdet.onnx_translation.model import onnx_model

    model = onnx_model(detector, for_onnxruntime=runtime == "onnxruntime" and not int8_images)
    if int8_images:
        from efficientdet.onnx_translation.quantization import quantized

        assert resize is not None
        model = quantized(model, calibration_of_files(int8_images).inputs(resize), narrow=sums_of_bytes_saturate())
    return Network(model.SerializeToString(), runtime=runtime)
