"""What export.py writes: names of formats, and of their files."""

FORMATS = {
    "onnx": "detector.onnx",  # detects by itself
    "onnx-raw": "network.onnx",  # logits and deltas
    "onnx-int8": "detector-int8.onnx",  # detects by itself, convolutions in 8 bits
    "openvino": "detector.xml",  # with detector.bin: detects by itself
    "savedmodel": "saved_model",  # a folder; detects in images of any size
}
DEFAULT_FORMATS = ("onnx", "onnx-raw", "savedmodel")
IN_8_BITS = ("onnx-int8",)  # these are calibrated, and lose some AP
PACKAGES = {"openvino": ("openvino",)}  # that a format takes beside ONNX and ONNX Runtime
