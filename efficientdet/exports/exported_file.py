"""Exported files that return detections and have metadata, run without importing TensorFlow or Keras."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.files.bounded_files import open_regular_file
from efficientdet.exports.export_format import ExportFormat
from efficientdet.exports.metadata import ArtifactMetadata, metadata_of
from efficientdet.inference.detect import Detect, Detector, exported_predictor
from efficientdet.inference.runtimes import ModelContent, Network
from program_support.errors import InputError

if TYPE_CHECKING:
    from dataset.input.host_resize import HostResize
    from dataset.input.resize import ResizeRule
    from efficientdet.checkpoints.restore import Restored


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


def detect_with_postprocessing(
    restored: "Restored", path: Path, *, runtime: str, resize: "ResizeRule | HostResize"
) -> Detect:
    """Return the detection of a written file without post-processing, with that of its checkpoint."""
    from efficientdet.inference.predictor import host_predictor

    predict = host_predictor(restored.detector, Network(path.read_bytes(), runtime=runtime))
    return Detector.resizing(predict, resize=resize, description=restored.description).detect


def file_content(path: Path) -> bytes:
    """Return the content of a regular file (reading a pipe could block).

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular_file(path) as file:
        return file.read()
