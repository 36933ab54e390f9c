"""Metadata of exported files: classes, configuration, input and outputs.

The values are JSON under the names below: in an ONNX file's `metadata_props`, in the `rt_info` of an OpenVINO file, in
the zip archive at the end of a LiteRT file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description, description_of
from object_detection.structures import DETECTIONS
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored

NAMES = ("efficientdet", "efficientdet.input", "efficientdet.outputs", "efficientdet.version")
DESCRIPTION, INPUT, OUTPUTS, VERSION = NAMES
POSTPROCESSING = "efficientdet.postprocessing"  # key in a LiteRT file with the name of its post-processing file
_VERSION = 1  # version of the metadata


def postprocessing_file(path: str | Path) -> Path:
    """Return the path of the post-processing file beside an int8 network."""
    return Path(path).with_name(f"{Path(path).stem}-postprocessing.tflite")


@dataclass(frozen=True, kw_only=True)
class ArtifactMetadata:
    """Metadata that is needed to run an exported file."""

    description: Description
    resize: HostResize
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, restored: "Restored", outputs: tuple[str, ...]) -> "ArtifactMetadata":
        """Return the metadata of a file with these outputs."""
        from dataset.input.resize import host_resize

        return cls(description=restored.description, resize=host_resize(restored.resize), outputs=outputs)

    @property
    def class_names(self) -> ClassNames:
        """Names of the classes, which are numbered from 0 in the file."""
        return ClassNames.from_categories(self.description.categories)

    def to_props(self) -> dict[str, str]:
        """Return the metadata as key-value pairs of the file."""
        return {
            DESCRIPTION: json.dumps(vars(self.description)),
            INPUT: json.dumps(self.resize.to_dict()),
            OUTPUTS: json.dumps(self.outputs),
            VERSION: json.dumps(_VERSION),
        }


def metadata_of(props: Mapping[str, str], *, path: str) -> ArtifactMetadata:
    """Return the metadata of an exported detector.

    Raises:
        InputError: for any other file.
    """
    if missing := [name for name in NAMES if name not in props]:
        raise InputError(f"{path}: is not a detector exported by this project (no {missing[0]}); use export.py")
    try:
        if (version := json.loads(props[VERSION])) != _VERSION:
            raise InputError(f"has version {version!r} of the metadata; expected {_VERSION}")
        description = description_of(json.loads(props[DESCRIPTION]))
        metadata = ArtifactMetadata(
            description=description,
            resize=HostResize.from_dict(json.loads(props[INPUT])),
            outputs=tuple(json.loads(props[OUTPUTS])),
        )
        metadata.class_names  # noqa: B018 - reports invalid names
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: the metadata is damaged ({error})") from error
    if metadata.outputs[: len(DETECTIONS)] != DETECTIONS:
        raise InputError(
            f"{path}: has the outputs {', '.join(map(str, metadata.outputs))}; expected {', '.join(DETECTIONS)}"
        )
    return metadata
