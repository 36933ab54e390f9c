"""What export.py writes: names of formats, and of their files."""

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
