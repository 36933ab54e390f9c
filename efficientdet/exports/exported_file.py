"""Exported files that return detections and have metadata, run without importing TensorFlow or Keras.

The metadata has classes, configuration, input and outputs. The values are JSON under the names below: in an ONNX file's
`metadata_props`, in the `rt_info` of an OpenVINO file, in the zip archive at the end of a LiteRT file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataset.class_names import ClassNames
from dataset.files.bounded_files import open_regular_file
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description, description_of
from efficientdet.configuration.model_config import require_package
from efficientdet.inference.detect import Detector, exported_predictor
from efficientdet.inference.runtimes import ModelContent, Network
from object_detection.structures import DETECTIONS
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detect, Detector
    from model.detection_model import DetectionModel


class ExportFormat:
    """A format of export.py: writes a detector, opens what it wrote, and describes it.

    Attributes:
        name: value of `--formats`.
        file: name of the written file or folder.
        other_names: names of the format in other projects, for which it is suggested.
        needs: package that runs the file here.
        needs_tensorflow: whether it is written by TensorFlow.
        calibrates: whether it has 8 bits, whose ranges are determined on calibration images.
        score_tolerance: largest difference of scores from the checkpoint.
        runs_in: program that runs the file if it is not timed here.
        title: name of the file type in messages.
        runtimes: runtimes of a user's file, the default first; () for a SavedModel, which TensorFlow runs.
    """

    name: str
    file: str
    other_names: tuple[str, ...] = ()
    needs = "onnxruntime"
    needs_tensorflow = False
    calibrates = False
    score_tolerance = 1e-3
    runs_in: str | None = None
    title = ""
    runtimes: tuple[str, ...] = ()

    def recognizes(self, path: str) -> bool:
        """Return whether a user's file or folder, which may not exist, is of this type. Default: no."""
        return False

    def check(self, detector: "DetectionModel") -> None:
        """Raise InputError if the backend or the format cannot express the detector."""
        from efficientdet.devices.device import backend_name

        if self.needs_tensorflow and (backend := backend_name()) != "tensorflow":
            raise InputError(f"--formats={self.name}: needs the TensorFlow backend; KERAS_BACKEND is {backend}")

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """Write the file or folder. calibration: `CalibrationImages` for 8 bits.

        Raises:
            OSError, InputError: the detector cannot be expressed.
        """
        raise NotImplementedError

    def files(self, path: Path) -> list[Path]:
        """Return all files that `write` wrote. Default: the file, or the files in the folder."""
        return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]

    def runtime_of(self, path: str, runtime: str, *, asked_by: str) -> str:
        """Return the chosen runtime of a user's file, or for "keras" the file's default.

        Raises:
            InputError: the runtime cannot run the file or is not installed.
        """
        runtime = self.runtimes[0] if runtime == "keras" else runtime
        if runtime not in self.runtimes:
            raise InputError(
                f"{asked_by}: {path} is a file of {self.title}; {runtime} cannot run it, {self.runtimes[0]} can"
            )
        require_package(runtime, asked_by=asked_by)
        return runtime

    def open(self, path: str, *, runtime: str = "keras") -> "Detector":
        """Open a file with the result of `runtime_of`.

        Raises:
            InputError: for other files.
        """
        raise NotImplementedError

    def open_for(self, restored: "Restored", path: Path) -> "Detect | None":
        """Return the detection of a written file, with the post-processing of its checkpoint if it has none.

        None if the file cannot be run here. Default: `open`, or None with `runs_in`.
        """
        return None if self.runs_in else self.open(str(path), runtime=self.needs).detect


NAMES = ("efficientdet", "efficientdet.input", "efficientdet.outputs", "efficientdet.version")
DESCRIPTION, INPUT, OUTPUTS, VERSION = NAMES
POSTPROCESSING = "efficientdet.postprocessing"  # key in a LiteRT file with the name of its post-processing file
IMAGE = "image"  # the input of a file that takes an image as it is
_VERSION, _VERSION_OF_IMAGE = 1, 2  # versions of the metadata; 2: the file takes an image


def postprocessing_file(path: Path) -> Path:
    """Return the path of the post-processing file beside an int8 network."""
    return path.with_name(f"{path.stem}-postprocessing.tflite")


@dataclass(frozen=True, kw_only=True)
class ArtifactMetadata:
    """Metadata that is needed to run an exported file."""

    description: Description
    resize: HostResize
    outputs: tuple[str, ...]
    takes_image: bool = False  # the input is `IMAGE` [h, w, 3 or 4] uint8, and boxes are in its pixels

    @classmethod
    def of(cls, restored: "Restored", outputs: tuple[str, ...], *, takes_image: bool = False) -> "ArtifactMetadata":
        """Return the metadata of a file with these outputs."""
        from dataset.input.resize import host_resize

        return cls(
            description=restored.description,
            resize=host_resize(restored.resize),
            outputs=outputs,
            takes_image=takes_image,
        )

    @property
    def class_names(self) -> ClassNames:
        """Names of the classes, which are numbered from 0 in the file."""
        return self.description.class_names

    def to_props(self) -> dict[str, str]:
        """Return the metadata as key-value pairs of the file."""
        version = _VERSION_OF_IMAGE if self.takes_image else _VERSION
        values = vars(self.description), self.resize.to_dict(), self.outputs, version
        return dict(zip(NAMES, map(json.dumps, values), strict=True))


def metadata_of(props: Mapping[str, str], *, path: str) -> ArtifactMetadata:
    """Return the metadata of an exported detector.

    Raises:
        InputError: for any other file.
    """
    if missing := [name for name in NAMES if name not in props]:
        raise InputError(f"{path}: is not a detector exported by this project (no {missing[0]}); use export.py")
    try:
        if (version := json.loads(props[VERSION])) not in (_VERSION, _VERSION_OF_IMAGE):
            raise InputError(f"has version {version!r} of the metadata; expected at most {_VERSION_OF_IMAGE}")
        metadata = ArtifactMetadata(
            description=description_of(json.loads(props[DESCRIPTION])),
            resize=HostResize.from_dict(json.loads(props[INPUT])),
            outputs=tuple(json.loads(props[OUTPUTS])),
            takes_image=version == _VERSION_OF_IMAGE,
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
        if metadata.takes_image:
            return Detector.of_images(network, path=path, description=metadata.description)
        predict = exported_predictor(network, path=path, class_count=len(metadata.class_names))
        return Detector.resizing(predict, resize=metadata.resize, description=metadata.description)


def file_content(path: Path) -> bytes:
    """Return the content of a regular file (reading a pipe could block).

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular_file(path) as file:
        return file.read()
