"""What export.py writes: names of formats, and of their files."""

from collections.abc import Sequence

from efficientdet.configuration.inference_runtimes import require_package, require_runtime
from program_support.errors import InputError

FORMATS = {
    "onnx": "detector.onnx",  # detects by itself
    "onnx-raw": "network.onnx",  # logits and deltas
    "onnx-int8": "detector-int8.onnx",  # detects by itself, convolutions in 8 bits
    "onnx-efficientnms": "detector-tensorrt.onnx",  # for TensorRT, by its plugin
    "openvino": "detector.xml",  # with detector.bin: detects by itself
    "litert": "detector.tflite",  # detects by itself, one image at a time
    "litert-int8": "detector-int8.tflite",  # the network in 8 bits, with detector-int8-postprocessing.tflite
    "savedmodel": "saved_model",  # a folder; detects in images of any size
}
DEFAULT_FORMATS = ("onnx", "onnx-raw", "savedmodel")
IN_8_BITS = ("onnx-int8", "litert-int8")  # these are calibrated, and lose some AP
RUNTIMES_OF = {"openvino": "openvino", "litert": "litert", "litert-int8": "litert"}  # what runs it, if not ONNX Runtime


def wanted_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Each once. Raises InputError for an unknown one, and where what writes or runs one is not installed."""
    formats = tuple(dict.fromkeys(names))
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"--formats={unknown[0]}: expected some of {', '.join(FORMATS)}")
    if not formats:
        raise InputError(f"--formats is empty; expected some of {', '.join(FORMATS)}")
    require_runtime("onnxruntime", asked_by="an export")
    for name in formats:
        require_package(RUNTIMES_OF.get(name, "onnxruntime"), asked_by=f"--formats={name}")
    return formats
