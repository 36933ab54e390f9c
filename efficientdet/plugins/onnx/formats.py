"""ONNX and OpenVINO files."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dataset.files.xml_and_yaml import parse_xml
from dataset.records.record_fields import message_fields
from efficientdet.devices.runtime_environment import kept_signal_stack
from efficientdet.exports.exported_file import IMAGE, NAMES, ArtifactMetadata, ExportedFile, file_content
from efficientdet.inference.calibration import CalibrationImages
from efficientdet.inference.detect import Detect, Detector
from efficientdet.inference.runtimes import ModelContent, Network
from program_support.atomic_files import unfinished_folder, write_bytes

if TYPE_CHECKING:
    import onnx

    from efficientdet.checkpoints.restore import Restored

_METADATA_PROPS = 14  # number of the field in ONNX's ModelProto; each has a key, 1, and a value, 2


class Onnx(ExportedFile):
    """The complete detector."""

    name, file = "onnx", "detector.onnx"
    other_names: tuple[str, ...] = ("tensorrt", "trt", "engine", "onnx-efficientnms")
    suffix, title = ".onnx", "ONNX"
    runtimes: tuple[str, ...] = ("onnxruntime", "openvino")

    def runtime_of(self, path: str, runtime: str, *, asked_by: str) -> str:
        """See `ExportFormat`; for 8 bits the default is OpenVINO, if it is installed. Print where they are slower."""
        has_8_bits = runtime != "openvino" and _has_8_bits(path)
        if runtime == "keras" and has_8_bits and importlib.util.find_spec("openvino"):
            runtime = "openvino"
        chosen = super().runtime_of(path, runtime, asked_by=asked_by)
        if chosen == "onnxruntime" and has_8_bits:
            print(
                f"note: {path}: in ONNX Runtime, 8 bits take about twice the time of float32; use detector.onnx, or "
                "OpenVINO: pip install openvino"
            )
        return chosen

    def read(self, path: Path) -> tuple[ModelContent, Mapping[str, str]]:
        """See `ExportedFile`."""
        model = file_content(path)
        return model, _stored_props(model)

    def model(self, restored: "Restored", calibration: CalibrationImages | None) -> "onnx.ModelProto":
        """Return the model that is written."""
        from efficientdet.plugins.onnx.model import image_model

        return image_model(restored.detector, restored.resize)

    def write(self, restored: "Restored", path: Path, calibration: CalibrationImages | None = None) -> None:
        """See `ExportFormat`."""
        import onnx

        model = self.model(restored, calibration)
        onnx.helper.set_model_props(model, _props(restored, model))
        write_bytes(path, model.SerializeToString(), flush=True)


class OnnxInt8(Onnx):
    """The complete detector with convolutions in int8, for OpenVINO."""

    name, file, other_names = "onnx-int8", "detector-int8.onnx", ("int8",)
    needs, calibrates = "openvino", True

    def model(self, restored: "Restored", calibration: CalibrationImages | None) -> "onnx.ModelProto":
        """Return the quantized model."""
        from efficientdet.plugins.onnx.model import last_convolutions, quantized

        assert calibration is not None
        model = super().model(restored, calibration)
        # 7-bit kernels work on every CPU. The last layers are a small part of the work and sensitive to rounding.
        inputs = ({IMAGE: pixels} for pixels in calibration.read())
        return quantized(model, inputs, narrow=True, exact=last_convolutions(model))


class OnnxRaw(Onnx):
    """The network only: logits and deltas."""

    name, file, other_names = "onnx-raw", "network.onnx", ()

    def model(self, restored: "Restored", calibration: CalibrationImages | None) -> "onnx.ModelProto":
        """Return the network."""
        from efficientdet.plugins.onnx.model import onnx_model

        return onnx_model(restored.detector)

    def open_for(self, restored: "Restored", path: Path) -> Detect:
        """Return the detection with the post-processing of the checkpoint."""
        from efficientdet.inference.predictor import host_predictor

        predict = host_predictor(restored.detector, Network(path.read_bytes(), runtime=self.needs))
        return Detector.resizing(predict, resize=restored.resize, description=restored.description).detect


class OpenVino(Onnx):
    """The complete detector in OpenVINO's format: detector.xml and detector.bin."""

    name, file, needs, other_names = "openvino", "detector.xml", "openvino", ()
    suffix, title, runtimes = ".xml", "OpenVINO", ("openvino",)
    score_tolerance = 1e-2  # one of 50 resized pixels is rounded differently, probably as it divides by a reciprocal

    def read(self, path: Path) -> tuple[ModelContent, Mapping[str, str]]:
        """See `ExportedFile`."""
        network = file_content(path)
        root = parse_xml(network)
        entries = {name: root.find(f"rt_info/{name}") for name in NAMES}
        weights = file_content(path.with_suffix(".bin"))
        return (network, weights), {
            name: entry.get("value", "") for name, entry in entries.items() if entry is not None
        }

    @kept_signal_stack()
    def write(self, restored: "Restored", path: Path, calibration: CalibrationImages | None = None) -> None:
        """Write the weights in float32."""
        import openvino

        model = self.model(restored, None)
        network = openvino.Core().read_model(model.SerializeToString())
        for name, value in _props(restored, model).items():
            network.set_rt_info(value, [name])
        with unfinished_folder(path) as folder:
            try:
                openvino.save_model(network, folder / path.name, compress_to_fp16=False)
            except RuntimeError as error:
                reason, free = str(error).strip().splitlines()[-1], shutil.disk_usage(folder).free
                if free < model.ByteSize():  # OpenVINO says "basic_ios::clear"
                    reason = f"its disk has {free:,} bytes free"
                raise OSError(None, reason, str(path)) from error
            for file in reversed(self.files(path)):  # the .xml last, so that it always has its weights
                os.replace(folder / file.name, file)

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        return [path, path.with_suffix(".bin")]


def _has_8_bits(path: str) -> bool:
    return os.path.isfile(path) and b"DequantizeLinear" in Path(path).read_bytes()


def _props(restored: "Restored", model: "onnx.ModelProto") -> dict[str, str]:
    """Return the metadata of a file of a model in any format."""
    outputs = tuple(output.name for output in model.graph.output)
    return ArtifactMetadata.of(restored, outputs, takes_image=model.graph.input[0].name == IMAGE).to_props()


def _stored_props(model: bytes) -> dict[str, str]:
    """Return `metadata_props` by name without the package onnx.

    Raises:
        ValueError: this is not an ONNX file.
    """
    props = {}
    try:
        for number, start, end in message_fields(model, 0, len(model)):
            if number == _METADATA_PROPS:
                entry = {part: model[first:last].decode() for part, first, last in message_fields(model, start, end)}
                props[entry.get(1, "")] = entry.get(2, "")
    except IndexError as error:
        raise ValueError("ends in the middle of a field") from error
    return props


ONNX, ONNX_RAW, ONNX_INT8, OPENVINO = Onnx(), OnnxRaw(), OnnxInt8(), OpenVino()
