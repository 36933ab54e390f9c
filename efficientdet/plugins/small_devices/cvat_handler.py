"""A detector for CVAT's automatic annotation, with ONNX Runtime, NumPy and Pillow alone.

`export.py --formats=cvat` writes this file as main.py. It is a function of Nuclio: CVAT sends {"image": base64,
"threshold": number or absent} and reads a list of shapes (cvat/apps/lambda_manager/views.py in
https://github.com/cvat-ai/cvat). It is also a function of cvat-cli (cvat-sdk/cvat_sdk/auto_annotation/interface.py).
"""

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def init_context(context):
    """Open the model, once for each worker of Nuclio."""
    path = Path(__file__).with_name("detector.onnx")
    session = onnxruntime.InferenceSession(path, providers=onnxruntime.get_available_providers())
    context.user_data.session = session
    context.user_data.classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])


def handler(context, event):
    """Reply to a request of CVAT to Nuclio: the shapes, or status 400 for anything else than an image."""
    try:
        pixels = _pixels(Image.open(io.BytesIO(base64.b64decode(event.body["image"]))))
        threshold = None if event.body.get("threshold") is None else float(event.body["threshold"])
    except (Image.DecompressionBombError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        reply = f"expected a JSON object with a base64 image and a number as threshold: {error}"
        return context.Response(body=reply, headers={}, content_type="text/plain", status_code=400)
    shapes = _shapes(context.user_data, pixels, threshold)
    return context.Response(body=json.dumps(shapes), headers={}, content_type="application/json", status_code=200)


def create():
    """Return the function that `cvat-cli task auto-annotate --function-file=main.py` runs on this machine."""
    from cvat_sdk import auto_annotation

    context = SimpleNamespace(user_data=SimpleNamespace())
    init_context(context)
    numbers = {name: number for number, (name, _) in enumerate(context.user_data.classes)}

    def detect(request, image):
        shapes = _shapes(context.user_data, _pixels(image), request.conf_threshold)
        return [auto_annotation.rectangle(numbers[shape["label"]], shape["points"]) for shape in shapes]

    labels = [auto_annotation.label_spec(name, number, type="rectangle") for name, number in numbers.items()]
    return SimpleNamespace(spec=auto_annotation.DetectionFunctionSpec(labels=labels), detect=detect)


def _pixels(image):
    """Return an image as CVAT shows it, [h, w, 3] uint8."""
    return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def _shapes(model, pixels, threshold):
    """Return the shapes with at least the threshold, by default the threshold of their class."""
    found = model.session.run(["boxes", "scores", "classes"], {"image": pixels})
    shapes = []
    for (y_min, x_min, y_max, x_max), score, number in zip(*(values[0].tolist() for values in found), strict=True):
        name, own_threshold = model.classes[number]
        if score > 0 and score >= (own_threshold if threshold is None else threshold):
            corners = [round(side, 2) for side in (x_min, y_min, x_max, y_max)]
            shapes.append({"confidence": str(round(score, 4)), "label": name, "points": corners, "type": "rectangle"})
    return shapes
