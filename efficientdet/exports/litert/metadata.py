"""TensorFlow Lite's metadata of a detection model, which MediaPipe Tasks and the Task Library read.

The metadata is a buffer in the model's flatbuffer, and label files in a zip archive at the end of the file. The schema
is TensorFlow Lite's metadata_schema.fbs; `_FIELDS` has the fields of its tables in their order.
"""

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from dataset.class_names import ClassNames
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.exports.metadata import ArtifactMetadata

OPERATOR_OUTPUTS = ("boxes", "classes", "scores", "count")  # TFLite_Detection_PostProcess's order
LABELS = "labels.txt"
_IDENTIFIER = b"M001"
_PARSER = "1.2.0"  # the oldest version of the metadata parsers that knows these tables

_FIELDS = {
    "ModelMetadata": (
        "name",
        "description",
        "version",
        "subgraph_metadata",
        "author",
        "license",
        "associated_files",
        "min_parser_version",
    ),
    "SubGraphMetadata": (
        "name",
        "description",
        "input_tensor_metadata",
        "output_tensor_metadata",
        "associated_files",
        "input_process_units",
        "output_process_units",
        "input_tensor_groups",
        "output_tensor_groups",
    ),
    "TensorMetadata": (
        "name",
        "description",
        "dimension_names",
        "content",
        "process_units",
        "stats",
        "associated_files",
    ),
    "TensorGroup": ("name", "tensor_names"),
    "Content": ("content_properties_type", "content_properties", "range"),
    "ImageProperties": ("color_space", "default_size"),
    "BoundingBoxProperties": ("index", "type", "coordinate_type"),
    "FeatureProperties": (),
    "ImageSize": ("width", "height"),
    "ValueRange": ("min", "max"),
    "ProcessUnit": ("options_type", "options"),
    "NormalizationOptions": ("mean", "std"),
    "ScoreThresholdingOptions": ("global_score_threshold",),
    "Stats": ("max", "min"),
    "AssociatedFile": ("name", "description", "type"),
}
# Members of the unions ContentProperties and ProcessUnitOptions, and values of enumerations
_FEATURE, _IMAGE, _BOUNDING_BOX = np.uint8(1), np.uint8(2), np.uint8(3)
_NORMALIZATION, _THRESHOLDING = np.uint8(1), np.uint8(3)
_RGB, _BOUNDARIES, _RATIO, _VALUE_LABELS = np.int8(1), np.int8(1), np.int8(0), np.int8(3)
_SLOT_WRITERS = {"int8": "Int8", "uint8": "Uint8", "int32": "Int32", "uint32": "Uint32", "float32": "Float32"}


def labels_file(names: ClassNames) -> str:
    """Return the names of the classes, one per line: the first line is class 0."""
    return "".join(f"{name}\n" for name in names.names)


def with_metadata(model: bytes, metadata: ArtifactMetadata, *, mean: float, scale: float) -> bytes:
    """Return a model of `OPERATOR_OUTPUTS` with the outputs in this order, and TensorFlow Lite's metadata.

    mean, scale: the normalization of the input, (pixel - mean) / scale.
    """
    tree = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    [graph], [signature] = tree.subgraphs, tree.signatureDefs
    numbers = {output.name.decode(): output.tensorIndex for output in signature.outputs}
    graph.outputs = [numbers[name] for name in OPERATOR_OUTPUTS]  # the converter sorts them otherwise
    # Float operators last, so that all others are one segment for an accelerator
    graph.operators.sort(key=lambda operator: _is_float(graph.tensors[operator.outputs[0]]))
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(_encoded(metadata, mean=mean, scale=scale), np.uint8)
    tree.buffers.append(buffer)
    entry.name, entry.buffer = b"TFLITE_METADATA", len(tree.buffers) - 1
    tree.metadata = [*(tree.metadata or []), entry]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(tree))


def _is_float(tensor: schema.TensorT) -> bool:
    return tensor.type == schema.TensorType.FLOAT32


def _encoded(metadata: ArtifactMetadata, *, mean: float, scale: float) -> bytes:
    builder = flatbuffers.Builder()
    builder.Finish(_written(builder, _model(metadata, mean=mean, scale=scale)), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


class _Table:
    """A table of the schema with the values of its fields."""

    def __init__(self, kind: str, **values: Any):
        self.values = {_FIELDS[kind].index(name): value for name, value in values.items()}


def _model(metadata: ArtifactMetadata, *, mean: float, scale: float) -> _Table:
    image = _Table(
        "TensorMetadata",
        name="image",
        description="RGB image; a photo of another shape is resized and padded at the right and bottom",
        content=_content(_IMAGE, _Table("ImageProperties", color_space=_RGB, default_size=_size(metadata))),
        process_units=[_unit(_NORMALIZATION, _Table("NormalizationOptions", mean=[mean], std=[scale]))],
        stats=_Table("Stats", max=[(255 - mean) / scale], min=[-mean / scale]),
    )
    graph = _Table(
        "SubGraphMetadata",
        input_tensor_metadata=[image],
        output_tensor_metadata=_outputs(metadata),
        output_tensor_groups=[
            _Table("TensorGroup", name="detection_result", tensor_names=["location", "category", "score"])
        ],
    )
    return _Table(
        "ModelMetadata",
        name=metadata.description.model_name,
        description="Object detector",
        subgraph_metadata=[graph],
        min_parser_version=_PARSER,
    )


def _outputs(metadata: ArtifactMetadata) -> list[_Table]:
    """Return the metadata of the outputs, with the names by which the readers find them."""
    boxes = _Table(
        "BoundingBoxProperties",
        index=np.array([1, 0, 3, 2], np.uint32),  # order: x_min, y_min, x_max, y_max
        type=_BOUNDARIES,
        coordinate_type=_RATIO,
    )
    per_box = _Table("ValueRange", min=np.int32(2), max=np.int32(2))  # values belong to entries of dimension 2
    labels = _Table("AssociatedFile", name=LABELS, description="Names of the classes", type=_VALUE_LABELS)
    stored = ScoreThresholds.stored_in(metadata.description)
    limit = _Table("ScoreThresholdingOptions", global_score_threshold=np.float32(stored.overall))
    feature = _Table("FeatureProperties")
    return [
        _Table("TensorMetadata", name="location", content=_content(_BOUNDING_BOX, boxes, range=per_box)),
        _Table(
            "TensorMetadata",
            name="category",
            content=_content(_FEATURE, feature, range=per_box),
            associated_files=[labels],
        ),
        _Table(
            "TensorMetadata",
            name="score",
            content=_content(_FEATURE, feature, range=per_box),
            process_units=[_unit(_THRESHOLDING, limit)],
        ),
        _Table("TensorMetadata", name="number of detections", content=_content(_FEATURE, feature)),
    ]


def _size(metadata: ArtifactMetadata) -> _Table:
    height, width = metadata.resize.size
    return _Table("ImageSize", width=np.uint32(width), height=np.uint32(height))


def _content(kind: np.uint8, properties: _Table, **others: _Table) -> _Table:
    return _Table("Content", content_properties_type=kind, content_properties=properties, **others)


def _unit(kind: np.uint8, options: _Table) -> _Table:
    return _Table("ProcessUnit", options_type=kind, options=options)


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
        slot: entry if isinstance(entry, np.generic) else _written(builder, entry)
        for slot, entry in value.values.items()
    }
    builder.StartObject(max(slots, default=-1) + 1)
    for slot, entry in slots.items():
        kind = _SLOT_WRITERS[entry.dtype.name] if isinstance(entry, np.generic) else "UOffsetTRelative"
        getattr(builder, f"Prepend{kind}Slot")(slot, entry.item() if isinstance(entry, np.generic) else entry, 0)
    return builder.EndObject()
