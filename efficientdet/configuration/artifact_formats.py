"""Formats of export.py and the names of their files."""

from collections.abc import Sequence

from efficientdet.configuration.inference_runtimes import require_package, require_runtime
from program_support.errors import InputError, nearest_name

FORMATS = {
    "onnx": "detector.onnx",  # complete detector
    "onnx-raw": "network.onnx",  # network only: logits and deltas
    "onnx-int8": "detector-int8.onnx",  # complete detector, int8 convolutions, for OpenVINO
    "onnx-efficientnms": "detector-tensorrt.onnx",  # for TensorRT, with its NMS plugin
    "openvino": "detector.xml",  # complete detector, with detector.bin
    "litert": "detector.tflite",  # complete detector, batch size 1
    "litert-int8": "detector-int8.tflite",  # int8 network, and a file for post-processing
    "litert-full-int8": "detector-full-int8.tflite",  # complete detector, uint8 input, 8 bits: for Edge TPU, Frigate
    "litert-full-int8-raw": "network-full-int8.tflite",  # its network only: int8 logits and deltas
    "savedmodel": "saved_model",  # a folder; complete detector for images of any size
    "web": "web",  # a folder; page that detects in the browser
}
DEFAULT_FORMATS = ("onnx", "onnx-raw", "savedmodel")
FULL_INTEGER = ("litert-full-int8", "litert-full-int8-raw")
IN_8_BITS = ("onnx-int8", "litert-int8", *FULL_INTEGER)  # These need calibration.
# The same in float32, for the same runtime
FLOAT32_OF = {"onnx-int8": "openvino", "litert-int8": "litert", "litert-full-int8": "litert"}
# Others: ONNX Runtime
RUNTIMES_OF = {
    **dict.fromkeys(("openvino", "onnx-int8"), "openvino"),
    **dict.fromkeys(("litert", "litert-int8", *FULL_INTEGER), "litert"),
}

_OTHER_NAMES = {  # names of formats in other projects, and of what runs them
    "tflite": "litert",
    "tflite-int8": "litert-int8",
    "edgetpu": "litert-full-int8",
    "coral": "litert-full-int8",
    "tensorrt": "onnx-efficientnms",
    "trt": "onnx-efficientnms",
    "engine": "onnx-efficientnms",
    "saved_model": "savedmodel",
    "tf": "savedmodel",
    "int8": "onnx-int8",
    "tfjs": "web",
}


def checked_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Return the formats without duplicates. Raise InputError for an unknown format or a missing package."""
    formats = tuple(dict.fromkeys(names))
    if unknown := [name for name in formats if name not in FORMATS]:
        nearest = _OTHER_NAMES.get(unknown[0].casefold()) or nearest_name(unknown[0].replace("_", "-"), FORMATS)
        hint = f"; did you mean {nearest}?" if nearest else ""
        raise InputError(f"--formats={unknown[0]}: expected some of {', '.join(FORMATS)}{hint}")
    if not formats:
        raise InputError(f"--formats is empty; expected some of {', '.join(FORMATS)}")
    require_runtime("onnxruntime", asked_by="an export")
    for name in formats:
        require_package(RUNTIMES_OF.get(name, "onnxruntime"), asked_by=f"--formats={name}")
    return formats
