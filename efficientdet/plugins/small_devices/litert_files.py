"""Export of a dense detector to a LiteRT (.tflite) file, or two files in int8, by TensorFlow's converter.

The metadata is a zip archive after the model, as TensorFlow Lite's own metadata is; readers of models ignore it. The
float32 model includes suppression, whose loop is LiteRT's WHILE. The converter's quantizer aborts on that loop, and
boxes decoded in int8 would be rounded to several pixels. So the int8 model returns logits and deltas, and a second
float32 file computes the detections.
"""

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from efficientdet.checkpoints.restore import Restored
from efficientdet.exports.exported_file import POSTPROCESSING, ArtifactMetadata, postprocessing_file
from efficientdet.exports.saved_model import FOR_INFERENCE, without_gradient_warnings
from efficientdet.inference.calibration import CalibrationImages
from model.detection_model import DetectionModel
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import DETECTIONS
from program_support.atomic_files import write_bytes

_SIZES = tf.TensorSpec([1, 2], tf.int32)


def write_litert(restored: Restored, path: Path, calibration: CalibrationImages | None = None) -> None:
    """Write one file, or with `calibration` an int8 file and its `postprocessing_file`.

    The model computes `DETECTIONS` of one image, as `onnx_model` does, from `images` [1, H, W, 3] uint8 and `sizes` [1,
    2] int32. Not for two-stage detectors or other backends than TensorFlow.

    Raises:
        OSError: the file cannot be written.
    """
    detector = restored.detector
    image = tf.TensorSpec([1, *detector.image_size, 3], tf.uint8), _SIZES
    files = ArtifactMetadata.of(restored, DETECTIONS).to_props()
    if calibration is None:
        model = converted(
            lambda images, sizes: _detections(detector, detector.outputs(images, sizes), sizes),
            ("images", "sizes"),
            image,
            DETECTIONS,
        )
    else:

        def quantize(converter: tf.lite.TFLiteConverter) -> None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: calibration.inputs(restored.resize)

        names = tuple(detector.output_names or detector.network.output_names)
        model = converted(detector.outputs, ("images", "sizes"), image, names, configure=quantize)
        shapes = [tf.TensorSpec([1, *output.shape[1:]], tf.float32) for output in detector.network.outputs]
        second = converted(
            lambda *tensors: _detections(detector, tensors[:-1], tensors[-1]),
            (*names, "sizes"),
            (*shapes, _SIZES),
            DETECTIONS,
        )
        write_bytes(postprocessing_file(path), second, flush=True)
        files[POSTPROCESSING] = json.dumps(postprocessing_file(path).name)
    write_with_files(path, model, files)


def write_with_files(path: Path, model: bytes, files: Mapping[str, str]) -> None:
    """Write a model followed by a zip archive of files by name.

    Raises:
        OSError: the file cannot be written.
    """
    content = io.BytesIO(model)
    with zipfile.ZipFile(content, "a") as archive:
        for name, entry in files.items():
            archive.writestr(name, entry)
    write_bytes(path, content.getvalue(), flush=True)


def _detections(detector: DetectionModel, outputs: Sequence, sizes: tf.Tensor) -> tuple:
    detections = detector.detections(outputs, sizes)
    return clip_boxes(detections.boxes, sizes), detections.scores, detections.classes


@without_gradient_warnings()
def converted(
    function: Callable,
    inputs: Sequence[str],
    shapes: Sequence[tf.TensorSpec],
    outputs: Sequence[str],
    *,
    operator: Callable | None = None,
    configure: Callable[[tf.lite.TFLiteConverter], None] | None = None,
) -> bytes:
    """Convert a function to a model with constant weights and these names in its signature.

    operator: a `tf.function` that is called with the results and becomes a custom operator, so it must not be inlined.
    configure: sets options of the converter.
    """
    traced = tf.function(function, autograph=False).get_concrete_function(*shapes)
    frozen = convert_variables_to_constants_v2(traced)
    named = [tf.TensorSpec(shape.shape, shape.dtype, name=name) for name, shape in zip(inputs, shapes, strict=True)]

    def results(*tensors) -> dict:
        tensors_out = frozen(*tensors)
        return dict(zip(outputs, operator(*tensors_out) if operator else tensors_out, strict=True))

    run = tf.function(results, input_signature=named, autograph=False)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing ranges: the images determine them
        try:
            # Only conversion from a SavedModel keeps the names.
            tf.saved_model.save(tf.Module(), folder, signatures=run, options=FOR_INFERENCE)
        except tf.errors.OpError as error:
            raise OSError(None, str(error.message).splitlines()[0], folder) from error
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if configure:
            configure(converter)
        return converter.convert()
