"""What export.py writes: names of formats, and of their files."""

FORMATS = {
    "onnx": "detector.onnx",  # detects by itself
    "onnx-raw": "network.onnx",  # logits and deltas
    "savedmodel": "saved_model",  # a folder; detects in images of any size
}
