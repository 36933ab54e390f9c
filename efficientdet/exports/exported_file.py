"""Exported files that return detections and have metadata, run without importing TensorFlow or Keras.

The metadata has classes, configuration, input and outputs. The values are JSON under the names below: in an ONNX file's
`metadata_props`, in the `rt_info` of an OpenVINO file, in the zip archive at the end of a LiteRT file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.class_names import ClassNames
from dataset.files.bounded_files import open_regular_file
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description, description_of
from efficientdet.exports.export_format import ExportFormat
from efficientdet.inference.detect import Detector, exported_predictor
from efficientdet.inference.runtimes import ModelContent, Network
from object_detection.structures import DETECTIONS
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored

NAMES = ("efficientdet", "efficientdet.input", "efficientdet.outputs", "efficientdet.version")
DESCRIPTION, INPUT, OUTPUTS, VERSION = NAMES
POSTPROCESSING = "efficientdet.postprocessing"  # key in a LiteRT file with the name of its post-processing file
_VERSION = 1  # version of the metadata


def postprocessing_file(path: Path) -> Path:
    """Return the path of the post-processing file beside an int8 network."""
    return path.with_name(f"{path.stem}-postprocessing.tflite")


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
        values = vars(self.description), self.resize.to_dict(), self.outputs, _VERSION
        return dict(zip(NAMES, map(json.dumps, values), strict=True))


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
        metadata = ArtifactMetadata(
            description=description_of(json.loads(props[DESCRIPTION])),
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


class ExportedFile(ExportFormat):
    """A format of files that are recognized by their suffix and return boxes, scores and classes."""

    suffix: str

    def recognizes(self, path: str) -> bool:
        """Return whether the suffix is that of the format."""
        return Path(path).suffix.lower() == self.suffix

    def read(self, path: Path) -> tuple[ModelContent, Mapping[str, str]]:
        """Return content and metadata.

        Raises:
            OSError, ValueError: for another file.
        """
        raise NotImplementedError

    def load(self, path: str | Path) -> tuple[ModelContent, ArtifactMetadata]:
        """Return content and metadata of a user's file.

        Raises:
            InputError: for any other content.
        """
        try:
            content, props = self.read(Path(path))
        except OSError as error:
            raise InputError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(f"{path}: is no {self.title} file ({error})") from error
        return content, metadata_of(props, path=str(path))

    def open(self, path: str, *, runtime: str = "keras") -> Detector:
        """See `ExportFormat`."""
        content, metadata = self.load(path)
        network = Network(content, runtime=runtime, path=path)
        predict = exported_predictor(network, path=path, class_count=len(metadata.class_names))
        return Detector.resizing(predict, resize=metadata.resize, description=metadata.description)


def file_content(path: Path) -> bytes:
    """Return the content of a regular file (reading a pipe could block).

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular_file(path) as file:
        return file.read()
