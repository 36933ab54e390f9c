"""LiteRT files: in float32, in int8 with a second file, and in 8 bits from the input to the output."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientdet.exports.export_format import NetworkInputs, Runs
from efficientdet.exports.exported_file import ExportedFile, detect_with_postprocessing, file_content
from efficientdet.exports.metadata import NAMES, POSTPROCESSING, postprocessing_file
from efficientdet.inference.runtimes import ModelContent, Network, copied
from efficientdet.onnx_translation.calibration import CalibrationImages
from program_support.errors import InputError
from program_support.processor import available_cores
from program_support.silenced_stderr import silenced_stderr

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detect
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
        from efficientdet.exports.litert.model_file import write_litert

        write_litert(restored, path, calibration if self.calibrates else None)

    def parts(self, restored: "Restored", path: Path, inputs: NetworkInputs) -> Runs:
        """Run int8's second file, which is float32, as the post-processing of both formats."""
        from ai_edge_litert.interpreter import Interpreter

        from efficientdet.exports.litert.model_file import litert_postprocessing, network_output_names

        content, _ = self.load(path)
        second = content[1] if isinstance(content, tuple) else litert_postprocessing(restored.detector)
        interpreter = Interpreter(model_content=second, num_threads=available_cores())
        with silenced_stderr():  # LiteRT prints its delegate there
            interpreter.allocate_tensors()
        tensors = map(np.asarray, restored.detector.outputs(*inputs))
        outputs = dict(zip(network_output_names(restored.detector), tensors, strict=True))
        return {
            "complete": partial(Network(content, runtime=self.needs), *inputs, copied),
            "postprocessing": partial(interpreter.get_signature_runner(), **outputs, sizes=inputs[1]),
        }


class LitertInt8(Litert):
    """The network in int8, and a file for post-processing."""

    name, file, other_names = "litert-int8", "detector-int8.tflite", ("tflite-int8",)
    calibrates, float32 = True, "litert"

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        return [path, postprocessing_file(path)]


class LitertFullInt8(Litert):
    """The complete detector with uint8 input and in 8 bits, for Edge TPU and Frigate, with Frigate's configuration."""

    name, file = "litert-full-int8", "detector-full-int8.tflite"
    other_names: tuple[str, ...] = ("edgetpu", "coral")
    calibrates, _detects = True, True
    float32: str | None = "litert"

    def write(self, restored: "Restored", path: Path, calibration: CalibrationImages | None = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.exports.litert.frigate import write_frigate_files
        from efficientdet.exports.litert.integer import write_full_integer

        assert calibration is not None
        write_full_integer(restored, path, calibration, detects=self._detects)
        if self._detects:
            write_frigate_files(restored, path)

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        from efficientdet.exports.litert.frigate import frigate_files

        return [path, *(frigate_files(path) if self._detects else ())]

    def parts(self, *_: Any) -> Runs:
        """Return nothing: the file cannot be divided."""
        return {}

    def describe(self, path: Path) -> list[str]:
        """Return the report of the operators of an Edge TPU."""
        from efficientdet.exports.litert.edgetpu_operators import check_edgetpu
        from efficientdet.exports.litert.graph import litert_graph

        return check_edgetpu(litert_graph(path.read_bytes())).lines()


class LitertFullInt8Raw(LitertFullInt8):
    """The network only, with int8 logits and deltas."""

    name, file, other_names = "litert-full-int8-raw", "network-full-int8.tflite", ()
    float32, _detects = None, False

    def open_for(self, restored: "Restored", path: Path) -> "Detect":
        """Return the detection with the post-processing of the checkpoint."""
        from efficientdet.exports.litert.integer import integer_resize

        rule = integer_resize(restored.detector, restored.resize)
        return detect_with_postprocessing(restored, path, runtime=self.needs, resize=rule)
