"""A detector as a function of Nuclio for CVAT's automatic annotation, with ONNX Runtime, NumPy and Pillow alone.

`export.py --formats=cvat` writes this file as main.py. CVAT sends {"image": base64, "threshold": number or absent} and
reads a list of shapes (cvat/apps/lambda_manager/views.py in https://github.com/cvat-ai/cvat).
"""

import base64
import io
import json
from pathlib import Path

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
    """Reply with the objects of an image as rectangles; with status 400 for anything else than an image."""
    try:
        image = Image.open(io.BytesIO(base64.b64decode(event.body["image"])))
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB").convert("RGBA"))
        threshold = None if event.body.get("threshold") is None else float(event.body["threshold"])
    except (Image.DecompressionBombError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
        reply = f"expected a JSON object with a base64 image and a number as threshold: {error}"
        return context.Response(body=reply, headers={}, content_type="text/plain", status_code=400)
    shapes = _shapes(context.user_data, pixels, threshold)
    return context.Response(body=json.dumps(shapes), headers={}, content_type="application/json", status_code=200)


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
