"""What an ONNX file of a detector says about itself, read without the package onnx: classes, configuration, input.

The values are JSON under the names below, in the file's `metadata_props`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description
from object_detection.errors import InputError

DESCRIPTION, INPUT, OUTPUTS = "efficientdet", "efficientdet.input", "efficientdet.outputs"
DETECTIONS = ("boxes", "scores", "classes")  # and perhaps masks: what a file that detects puts out
_METADATA_PROPS = 14  # number of the field in ONNX's ModelProto
_KEY, _VALUE = 1, 2  # in a StringStringEntryProto
_BYTES, _VARINT, _WIDTHS = 2, 0, {1: 8, 5: 4}  # kinds of fields on the wire, and lengths of fixed ones


@dataclass(frozen=True, kw_only=True)
class ArtefactMetadata:
    """What whoever runs the file needs to know."""

    description: Description
    resize: HostResize
    outputs: tuple[str, ...]

    @property
    def class_names(self) -> ClassNames:
        """Of the classes that the file counts from 0."""
        return ClassNames.from_categories(self.description.categories)

    def to_props(self) -> dict[str, str]:
        """As the file holds it."""
        return {DESCRIPTION: json.dumps(vars(self.description)), INPUT: json.dumps(self.resize.to_dict()),
                OUTPUTS: json.dumps(self.outputs)}


def read_artefact(path: str | Path) -> tuple[bytes, ArtefactMetadata]:
    """An ONNX file that detects, and what it says. Raises InputError, one line, for any other file."""
    try:
        model = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        props = dict(_props(model))
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is no ONNX file ({error})") from error
    if missing := [name for name in (DESCRIPTION, INPUT, OUTPUTS) if name not in props]:
        raise InputError(f"{path}: is no ONNX file of this project that detects, it lacks {missing[0]}; export.py writes them")
    try:
        description = Description(**json.loads(props[DESCRIPTION]))
        metadata = ArtefactMetadata(description=description, resize=HostResize.of(json.loads(props[INPUT])),
                                    outputs=tuple(json.loads(props[OUTPUTS])))
        metadata.class_names  # noqa: B018 - what is wrong with them is told here
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: what it says of itself is damaged ({error})") from error
    if metadata.outputs[:len(DETECTIONS)] != DETECTIONS:
        raise InputError(f"{path}: puts out {', '.join(map(str, metadata.outputs))}; wanted {', '.join(DETECTIONS)}")
    return model, metadata


def _props(model: bytes) -> Iterator[tuple[str, str]]:
    for number, value in _fields(memoryview(model)):
        if number == _METADATA_PROPS:
            entry = {key: bytes(part).decode() for key, part in _fields(value)}
            yield entry.get(_KEY, ""), entry.get(_VALUE, "")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and content of the fields of a protobuf message that have a length. Raises ValueError, IndexError."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, place = _varint(message, place)
            if place + length > len(message):
                raise ValueError(f"field {number} ends behind the file's end")
            yield number, message[place : place + length]
            place += length
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in _WIDTHS:
            place += _WIDTHS[kind]
        else:
            raise ValueError(f"field {number} has kind {kind}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number is too long")
