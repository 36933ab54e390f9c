"""Export of a dense detector to a full-integer LiteRT file, for Edge TPU, Frigate and MediaPipe.

The file has one uint8 input, and 8-bit weights and activations. Suppression is LiteRT's custom operator
`TFLite_Detection_PostProcess`, which is part of every LiteRT runtime and computes in float32. The outputs are those of
the operator, which the named programs expect: boxes (y_min, x_min, y_max, x_max in 0 .. 1), classes, scores, count.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from dataset.input.host_resize import HostResize
from dataset.input.resize import ResizeRule, host_resize
from efficientdet.checkpoints.restore import Restored
from efficientdet.exports.litert.metadata import LABELS, OPERATOR_OUTPUTS, labels_file, with_metadata
from efficientdet.exports.litert.model_file import converted, write_with_files
from efficientdet.exports.metadata import ArtifactMetadata
from efficientdet.onnx_translation.calibration import CalibrationImages
from model.bifpn import NearestResize
from model.detection_model import DetectionModel
from model.folding import folded
from object_detection.structures import DETECTIONS, Tensor

# The input is quantized as (pixel - 127) / 128, EfficientDet-Lite's normalization.
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0
_RAW_OUTPUTS = ("class_logits", "box_deltas")


def write_full_integer(restored: Restored, path: Path, calibration: CalibrationImages, *, detects: bool = True) -> None:
    """Write a file with one input `images` uint8 [1, H, W, 3], quantized on the calibration images.

    detects: the outputs are those of the operator; else `class_logits` [1, A, K] and `box_deltas` [1, A, 4] in int8.
    Images are padded with the color that the network's normalization converts to its padding, as there is no input
    `sizes`.

    Raises:
        InputError: for detectors that LiteRT or its operator cannot compute; OSError of the disk.
    """
    detector = restored.detector
    rule = integer_resize(detector, restored.resize)
    model = _model(detector, quantize=_quantizer(calibration, rule, raw=not detects), detects=detects)
    outputs = DETECTIONS if detects else detector.output_names or _RAW_OUTPUTS
    metadata = replace(ArtifactMetadata.of(restored, outputs), resize=rule)
    files = metadata.to_props()
    if detects:
        files[LABELS] = labels_file(metadata.class_names)
        model = with_metadata(model, metadata, mean=PIXEL_MEAN, scale=PIXEL_SCALE)
    write_with_files(path, model, files)


def integer_resize(detector: DetectionModel, resize: ResizeRule) -> HostResize:
    """Return the resize rule with the padding of a file that has no input `sizes`."""
    scale, shift = _normalization(detector)
    [padding] = _normalized(detector, pixel=0, size=0)
    pixels = PIXEL_MEAN + PIXEL_SCALE * (padding - shift) / scale
    red, green, blue = np.clip(np.rint(pixels), 0, 255).astype(int).tolist()
    return replace(host_resize(resize), padding=(red, green, blue))


def _model(detector: DetectionModel, *, quantize: Callable[[tf.lite.TFLiteConverter], None], detects: bool) -> bytes:
    run = folded(detector.network, replaced={NearestResize: _nearest_resize})
    scale, shift = _normalization(detector)
    same = np.allclose(scale, 1, atol=1e-5) and np.allclose(shift, 0, atol=1e-5)
    image = tf.TensorSpec([1, *detector.image_size, 3], tf.float32)

    def outputs(images: Tensor) -> tuple[Tensor, Tensor]:
        logits, deltas = run(images if same else images * scale + shift)
        return (deltas, detector.postprocessing.probabilities((logits, deltas))) if detects else (logits, deltas)

    names = OPERATOR_OUTPUTS if detects else _RAW_OUTPUTS
    return converted(
        outputs, ("images",), (image,), names, operator=_operator(detector) if detects else None, configure=quantize
    )


def _normalization(detector: DetectionModel) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift [3] from the input's quantization to the detector's normalization."""
    [shift], [largest] = (_normalized(detector, pixel=pixel, size=1) for pixel in (PIXEL_MEAN, 255))
    return largest - shift, shift


def _normalized(detector: DetectionModel, *, pixel: float, size: int) -> np.ndarray:
    """Return the normalized value of a pixel, [1, 3]; of the padding for size 0."""
    image = tf.fill([1, 1, 1, 3], tf.cast(pixel, tf.uint8))
    return np.asarray(detector.normalize(image, tf.fill([1, 2], size)))[0, 0]


def _nearest_resize(layer: NearestResize) -> Callable[[Tensor], Tensor]:
    """Return the layer as TensorFlow's operation, as Edge TPUs have neither tiling nor gathering."""

    def resize(features: Tensor) -> Tensor:
        multiple = all(target % source == 0 for source, target in zip(features.shape[1:3], layer.size, strict=True))
        half = layer.half_pixel_centers and not multiple  # both rules select the same rows for multiples
        return tf.raw_ops.ResizeNearestNeighbor(images=features, size=tf.constant(layer.size), half_pixel_centers=half)

    return resize


def _operator(detector: DetectionModel) -> Callable:
    """Return a function that the converter replaces by `TFLite_Detection_PostProcess`; only its shapes matter."""
    anchors, attributes = detector.postprocessing.litert_operator()
    slots = attributes["max_detections"]
    entries = [f'attr {{ key: "{key}" value {{ {_attribute(value)} }} }}' for key, value in attributes.items()]

    @tf.function(experimental_implements=" ".join(['name: "TFLite_Detection_PostProcess"', *entries]), autograph=False)
    def operator(deltas: Tensor, scores: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        return tf.zeros([1, slots, 4]), tf.zeros([1, slots]), tf.zeros([1, slots]), tf.zeros([1])

    return lambda deltas, scores: operator(deltas, scores, tf.constant(anchors))


def _attribute(value: Any) -> str:
    if isinstance(value, bool):
        return f"b: {str(value).lower()}"
    return f"f: {value!r}" if isinstance(value, float) else f"i: {int(value)}"


def _quantizer(
    calibration: CalibrationImages, rule: HostResize, *, raw: bool
) -> Callable[[tf.lite.TFLiteConverter], None]:
    """Return a function that configures the converter for 8-bit integers."""

    def values() -> Iterator[dict[str, np.ndarray]]:
        for number, one in enumerate(calibration.inputs(rule)):
            pixels = one["images"].astype(np.float32)
            if not number:  # so that the input's range is that of all pixels, whatever is in the images
                pixels[0, 0, 0, :2] = 0, 255
            yield {"images": (pixels - PIXEL_MEAN) / PIXEL_SCALE}

    def configure(converter: tf.lite.TFLiteConverter) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = values
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.allow_custom_ops = not raw
        converter.inference_input_type = tf.uint8
        if raw:
            converter.inference_output_type = tf.int8

    return configure
