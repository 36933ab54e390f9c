"""LiteRT files in float32, int8 and full-integer; a web page that detects in the browser; a function for CVAT."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientdet.exports.exported_file import (
    NAMES,
    POSTPROCESSING,
    ExportedFile,
    ExportFormat,
    file_content,
    postprocessing_file,
)
from efficientdet.inference.calibration import CalibrationImages
from efficientdet.inference.detect import Detect, Detector
from efficientdet.inference.runtimes import ModelContent, Network
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from model.detection_model import DetectionModel

_MARK = b"TFL3"  # the file's bytes 4 to 8
_MAX_BYTES = 1 << 28  # limit of an entry of the archive in a file


class Litert(ExportedFile):
    """The complete detector, batch size 1."""

    name, file = "litert", "detector.tflite"
    other_names: tuple[str, ...] = ("tflite",)
    needs, needs_tensorflow = "litert", True
    suffix, title, runtimes = ".tflite", "LiteRT", ("litert",)

    def check(self, detector: "DetectionModel") -> None:
        """See `ExportFormat`."""
        super().check(detector)
        if detector.litert_obstacle:
            raise InputError(f"--formats={self.name}: {detector.litert_obstacle}; use --formats=onnx,openvino")

    def read(self, path: Path) -> tuple[ModelContent, Mapping[str, str]]:
        """See `ExportedFile`."""
        model = file_content(path)
        if model[4:8] != _MARK:
            raise ValueError("no TFL3 identifier")
        if not zipfile.is_zipfile(io.BytesIO(model)):
            return model, {}  # a third-party file
        try:
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                entries = {
                    entry.filename: archive.read(entry)
                    for entry in archive.infolist()
                    if entry.filename in (*NAMES, POSTPROCESSING) and entry.file_size <= _MAX_BYTES
                }
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        content = (model, file_content(postprocessing_file(path))) if POSTPROCESSING in entries else model
        return content, {name: entry.decode() for name, entry in entries.items()}

    def write(self, restored: "Restored", path: Path, calibration: CalibrationImages | None = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.plugins.small_devices.litert_files import write_litert

        write_litert(restored, path, calibration if self.calibrates else None)


class LitertInt8(Litert):
    """The network in int8, and a file for post-processing."""

    name, file, other_names = "litert-int8", "detector-int8.tflite", ("tflite-int8",)
    calibrates = True

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        return [path, postprocessing_file(path)]


class LitertFullInt8(Litert):
    """The complete detector with uint8 input and in 8 bits, for Edge TPU and Frigate, with Frigate's configuration."""

    name, file, other_names = "litert-full-int8", "detector-full-int8.tflite", ("edgetpu", "coral")
    calibrates = True

    def write(self, restored: "Restored", path: Path, calibration: CalibrationImages | None = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.plugins.small_devices.litert_files import write_frigate_files, write_full_integer

        assert calibration is not None
        write_full_integer(restored, path, calibration)
        _, config_file, labels_file = self.files(path)
        write_frigate_files(restored, path, config_file=config_file, labels_file=labels_file)

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        return [path, path.with_name("frigate.yaml"), path.with_name("numbered_labels.txt")]


class Web(ExportFormat):
    """A page that detects in the browser."""

    name, file = "web", "web"
    other_names: tuple[str, ...] = ("tfjs",)
    runs_in = "a browser"

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.plugins.small_devices.image_model import write_web_page

        write_web_page(restored, path)

    def open_for(self, restored: "Restored", path: Path) -> Detect:
        """Return the detection of the folder's model, run by ONNX Runtime."""
        from efficientdet.plugins.small_devices.image_model import MODEL

        network = Network((path / MODEL).read_bytes(), runtime="onnxruntime")
        return Detector.of_images(network, path=str(path), description=restored.description).detect


class Cvat(Web):
    """A function of Nuclio and of cvat-cli for CVAT's automatic annotation."""

    name, file, other_names = "cvat", "cvat", ("nuclio",)
    runs_in = "CVAT"

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.plugins.small_devices.image_model import write_cvat_function

        write_cvat_function(restored, path)


LITERT, LITERT_INT8, LITERT_FULL_INT8, WEB, CVAT = Litert(), LitertInt8(), LitertFullInt8(), Web(), Cvat()
