"""Files beside the ONNX model of one image, for a browser and for CVAT."""

import json
import re
import tarfile
from importlib import resources
from pathlib import Path

from onnx import helper

from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.families.published_files import PublishedFile
from efficientdet.serving.pages import model_description, static_page
from efficientdet.weights.downloads import cache_folder, cached_file
from program_support.atomic_files import write_bytes, write_text
from program_support.plugins import load_plugin

MODEL = "detector.onnx"  # name of the file in a folder

# Its SHA-512 is the one in npm's registry, which begins with q0y+JrrtukXSzsBW in base64.
RUNTIME = PublishedFile(
    "onnxruntime-web-1.30.0.tgz",
    33_106_585,
    "ONNX Runtime Web",
    "",
    site="https://registry.npmjs.org/onnxruntime-web/-",
    sha256="d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
)
# Name in the folder -> in the package. Some servers do not know the suffix .mjs.
_RUNTIME_FILES = {
    "onnxruntime.js": "package/dist/ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}


def write_web_page(restored: Restored, folder: Path) -> None:
    """Write the page, the model and ONNX Runtime Web, which is downloaded once, to a folder.

    Raises:
        InputError: the runtime cannot be downloaded or the detector has no translation to ONNX; OSError of the
            disk.
    """
    runtime = cached_file(RUNTIME, cache_folder())
    model = load_plugin("efficientdet.onnx", "image_model")(restored.detector, restored.resize, masks=False)
    description = restored.description
    threshold = ScoreThresholds.stored_in(description).overall
    about = model_description(description.model_name, description.class_names, threshold)
    page, worker = static_page(threshold)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / MODEL, model.SerializeToString(), flush=True)
    with tarfile.open(runtime) as package:
        for name, member in _RUNTIME_FILES.items():
            if content := package.extractfile(member):
                write_bytes(folder / name, content.read(), flush=True)
    for name, text in (("model.json", json.dumps(about)), ("worker.js", worker), ("index.html", page)):
        write_bytes(folder / name, text.encode(), flush=True)


_FUNCTION = """\
# Written by export.py for CVAT's automatic annotation.
# nuctl deploy --project-name cvat --path FOLDER --file FOLDER/function.yaml --platform local
metadata:
  name: {identifier}
  namespace: cvat
  annotations:
    name: {title}
    type: detector
    framework: onnx
    spec: |
      [
        {labels}
      ]
spec:
  description: {title}
  runtime: python:3.10
  handler: main:handler
  eventTimeout: 30s
  build:
    image: cvat.{identifier}
    baseImage: ubuntu:22.04
    directives:
      preCopy:
      - kind: USER
        value: root
      - kind: RUN
        value: apt-get update && apt-get install --no-install-recommends -y python3-pip
      - kind: RUN
        value: pip install --no-cache-dir onnxruntime numpy pillow
      - kind: RUN
        value: ln -s /usr/bin/python3 /usr/bin/python
      - kind: WORKDIR
        value: /opt/nuclio
  triggers:
    myHttpTrigger:
      numWorkers: 1
      kind: http
      workerAvailabilityTimeoutMilliseconds: 10000
      attributes:
        maxRequestBodySize: 33554432 # 32 MB
  platform:
    attributes:
      restartPolicy:
        name: always
        maximumRetryCount: 3
      mountMode: volume
"""


def write_cvat_function(restored: Restored, folder: Path) -> None:
    """Write function.yaml, main.py and a model that includes resizing, with its classes and their thresholds.

    Raises:
        InputError: the detector has no translation to ONNX; OSError of the disk.
    """
    description = restored.description
    classes, thresholds = description.class_names, ScoreThresholds.stored_in(description)
    lowest = [thresholds.by_category.get(number, thresholds.overall) for number in classes.category_ids]
    model = load_plugin("efficientdet.onnx", "image_model")(restored.detector, restored.resize, masks=False)
    helper.set_model_props(model, {"classes": json.dumps([*zip(classes.names, lowest, strict=True)])})
    labels = [
        json.dumps({"id": number, "name": name, "type": "rectangle"}) for number, name in enumerate(classes.names)
    ]
    function = _FUNCTION.format(
        identifier=re.sub(r"[^a-z0-9]+", "-", description.model_name.lower()).strip("-"),
        title=json.dumps(description.model_name),
        labels=",\n        ".join(labels),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / MODEL, model.SerializeToString(), flush=True)
    write_text(folder / "main.py", resources.files(__package__).joinpath("cvat_handler.py").read_text("utf-8"))
    write_text(folder / "function.yaml", function)
