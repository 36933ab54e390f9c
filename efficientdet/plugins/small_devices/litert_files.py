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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tensorflow as tf
import yaml
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from dataset.input.host_resize import HostResize
from dataset.input.resize import ResizeRule, host_resize
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.exports.exported_file import POSTPROCESSING, ArtifactMetadata, postprocessing_file
from efficientdet.exports.saved_model import FOR_INFERENCE, without_gradient_warnings
from efficientdet.inference.calibration import CalibrationImages
from model.bifpn import NearestResize
from model.detection_model import DetectionModel
from model.folding import folded
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import DETECTIONS, Tensor
from program_support.atomic_files import write_bytes, write_text

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


# The input is quantized as (pixel - 127) / 128, EfficientDet-Lite's normalization.
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0
OPERATOR_OUTPUTS = ("boxes", "classes", "scores", "count")  # TFLite_Detection_PostProcess's order
LABELS = "labels.txt"  # the names of the classes in the archive at the end of the file; the first line is class 0


def write_full_integer(restored: Restored, path: Path, calibration: CalibrationImages) -> None:
    """Write a file with one input `images` uint8 [1, H, W, 3], quantized on the calibration images.

    Images are padded with the color that the network's normalization converts to its padding, as there is no input
    `sizes`.

    Raises:
        InputError: for detectors that LiteRT or its operator cannot compute; OSError of the disk.
    """
    detector = restored.detector
    rule = integer_resize(detector, restored.resize)

    def inputs() -> Iterator[dict[str, np.ndarray]]:
        for number, one in enumerate(calibration.inputs(rule)):
            pixels = one["images"].astype(np.float32)
            if not number:  # so that the input's range is that of all pixels, whatever is in the images
                pixels[0, 0, 0, :2] = 0, 255
            yield {"images": (pixels - PIXEL_MEAN) / PIXEL_SCALE}

    def quantize(converter: tf.lite.TFLiteConverter) -> None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = inputs
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.allow_custom_ops = True
        converter.inference_input_type = tf.uint8

    metadata = replace(ArtifactMetadata.of(restored, DETECTIONS), resize=rule)
    files = metadata.to_props() | {LABELS: "".join(f"{name}\n" for name in metadata.class_names.names)}
    write_with_files(path, _with_metadata(_model(detector, quantize=quantize), metadata), files)


def integer_resize(detector: DetectionModel, resize: ResizeRule) -> HostResize:
    """Return the resize rule with the padding of a file that has no input `sizes`."""
    scale, shift = _normalization(detector)
    [padding] = _normalized(detector, pixel=0, size=0)
    pixels = PIXEL_MEAN + PIXEL_SCALE * (padding - shift) / scale
    red, green, blue = np.clip(np.rint(pixels), 0, 255).astype(int).tolist()
    return replace(host_resize(resize), padding=(red, green, blue))


def _model(detector: DetectionModel, *, quantize: Callable[[tf.lite.TFLiteConverter], None]) -> bytes:
    run = folded(detector.network, replaced={NearestResize: _nearest_resize})
    scale, shift = _normalization(detector)
    same = np.allclose(scale, 1, atol=1e-5) and np.allclose(shift, 0, atol=1e-5)
    image = tf.TensorSpec([1, *detector.image_size, 3], tf.float32)

    def outputs(images: Tensor) -> tuple[Tensor, Tensor]:
        logits, deltas = run(images if same else images * scale + shift)
        return deltas, detector.postprocessing.probabilities((logits, deltas))

    return converted(outputs, ("images",), (image,), OPERATOR_OUTPUTS, operator=_operator(detector), configure=quantize)


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


def _with_metadata(model: bytes, metadata: ArtifactMetadata) -> bytes:
    """Return a model with `OPERATOR_OUTPUTS` in this order, and with TensorFlow Lite's metadata."""
    tree = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    [graph], [signature] = tree.subgraphs, tree.signatureDefs
    numbers = {output.name.decode(): output.tensorIndex for output in signature.outputs}
    graph.outputs = [numbers[name] for name in OPERATOR_OUTPUTS]  # the converter sorts them otherwise
    # Float operators last, so that all others are one segment for an accelerator
    graph.operators.sort(key=lambda one: graph.tensors[one.outputs[0]].type == schema.TensorType.FLOAT32)
    builder = flatbuffers.Builder()
    builder.Finish(_written(builder, _model_metadata(metadata)), file_identifier=b"M001")
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(bytes(builder.Output()), np.uint8)
    tree.buffers.append(buffer)
    entry.name, entry.buffer = b"TFLITE_METADATA", len(tree.buffers) - 1
    tree.metadata = [*(tree.metadata or []), entry]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(tree))


def _model_metadata(metadata: ArtifactMetadata) -> dict[int, Any]:
    """Return the metadata of a detection model, which MediaPipe Tasks and the Task Library read.

    The keys are the numbers of the fields of each table in TensorFlow Lite's metadata_schema.fbs.
    """
    height, width = metadata.resize.size
    per_box = {0: np.int32(2), 1: np.int32(2)}  # ValueRange: values belong to entries of dimension 2
    feature = {0: np.uint8(1), 1: {}, 2: per_box}  # Content: FeatureProperties
    image = {
        0: "image",
        1: "RGB image; a photo of another shape is resized and padded at the right and bottom",
        3: {0: np.uint8(2), 1: {0: np.int8(1), 1: {0: np.uint32(width), 1: np.uint32(height)}}},  # ImageProperties: RGB
        4: [{0: np.uint8(1), 1: {0: [PIXEL_MEAN], 1: [PIXEL_SCALE]}}],  # NormalizationOptions
        5: {0: [(255 - PIXEL_MEAN) / PIXEL_SCALE], 1: [-PIXEL_MEAN / PIXEL_SCALE]},  # Stats: max, min
    }
    # BoundingBoxProperties: order x_min, y_min, x_max, y_max; boundaries, in fractions
    boxes = {0: np.uint8(3), 1: {0: np.array([1, 0, 3, 2], np.uint32), 1: np.int8(1)}, 2: per_box}
    labels = {0: LABELS, 1: "Names of the classes", 2: np.int8(3)}  # AssociatedFile: labels of values
    threshold = {0: np.float32(ScoreThresholds.stored_in(metadata.description).overall)}  # ScoreThresholdingOptions
    outputs = [  # TensorMetadata, with the names by which the readers find them
        {0: "location", 3: boxes},
        {0: "category", 3: feature, 6: [labels]},
        {0: "score", 3: feature, 4: [{0: np.uint8(3), 1: threshold}]},
        {0: "number of detections", 3: {0: np.uint8(1), 1: {}}},
    ]
    group = {0: "detection_result", 1: ["location", "category", "score"]}
    graph = {2: [image], 3: outputs, 8: [group]}
    return {
        0: metadata.description.model_name,
        1: "Object detector",
        3: [graph],
        7: "1.2.0",  # the oldest version of the metadata parsers that knows these tables
    }


def _written(builder: flatbuffers.Builder, value: Any) -> int:
    """Write a string, a vector or a table and return its offset. Scalars of tables are NumPy's, for their type."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, np.ndarray):
        return builder.CreateNumpyVector(value)
    if isinstance(value, list) and isinstance(value[0], float):
        return builder.CreateNumpyVector(np.array(value, np.float32))
    if isinstance(value, list):
        offsets = [_written(builder, entry) for entry in value]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector()
    slots = {
        slot: entry if isinstance(entry, np.generic) else _written(builder, entry) for slot, entry in value.items()
    }
    builder.StartObject(max(slots, default=-1) + 1)
    for slot, entry in slots.items():
        if isinstance(entry, np.generic):
            getattr(builder, f"Prepend{entry.dtype.name.capitalize()}Slot")(slot, entry.item(), 0)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, entry, 0)
    return builder.EndObject()


_CONFIG = """\
# Frigate's configuration for {file}. Copy that file and {labels} to Frigate's
# folder /config, and these sections to its config.yml. For a Coral, compile the file with edgetpu_compiler, name the
# result in model.path, and write detectors: {{coral: {{type: edgetpu, device: usb}}}}.
{comments}
detectors:
  cpu:
    type: cpu
model:
  path: /config/{file}
  labelmap_path: /config/{labels}
  model_type: ssd
  width: {width}
  height: {height}
  input_tensor: nhwc
  input_pixel_format: rgb
"""


def write_frigate_files(restored: Restored, path: Path, *, config_file: Path, labels_file: Path) -> None:
    """Write Frigate's configuration for an exported file, and the numbered labels.

    Frigate takes the score of a detection from `min_score`, and of an object, the median of its last detections, from
    `threshold`. Both are the class's stored threshold: an object counts if most of its detections would be shown.

    Raises:
        OSError: a file cannot be written.
    """
    description = restored.description
    classes, thresholds = description.class_names, ScoreThresholds.stored_in(description)
    height, width = restored.detector.image_size
    objects: dict[str, Any] = {"track": [*classes.names]}
    comments = [
        "# The model stores no score thresholds, so Frigate's own apply; eval.py --store_thresholds stores them."
    ]
    if description.score_thresholds:
        comments = [f"# min_score and threshold: {thresholds.source}.", "# Frigate reads no score below 0.4."]
        lowest = {
            name: round(thresholds.by_category.get(number, thresholds.overall), 4)
            for number, name in classes.by_id().items()
        }
        objects["filters"] = {name: {"min_score": score, "threshold": score} for name, score in lowest.items()}
    if width != height:
        comments.append("# Frigate stretches its square regions to this input: train with a square one for it.")
    config = _CONFIG.format(
        file=path.name, labels=labels_file.name, width=width, height=height, comments="\n".join(comments)
    )
    write_text(labels_file, "".join(f"{number} {name}\n" for number, name in enumerate(classes.names)))
    write_text(config_file, config + yaml.safe_dump({"objects": objects}, sort_keys=False, allow_unicode=True))
