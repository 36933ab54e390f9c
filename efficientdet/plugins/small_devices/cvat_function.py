"""Export of a detector to a function of Nuclio, which CVAT calls for automatic annotation.

Fields of function.yaml: https://docs.nuclio.io/en/stable/reference/function-configuration; the annotations are those
that CVAT reads (https://docs.cvat.ai/docs/guides/serverless-tutorial, cvat/apps/lambda_manager/views.py), and the build
is that of its own functions (serverless/onnx).
"""

import json
import re
from importlib import resources
from pathlib import Path

from onnx import helper

from dataset.class_names import ClassNames
from dataset.input.resize import host_resize
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.plugins.small_devices.image_model import MODEL, image_model
from program_support.atomic_files import write_bytes, write_text

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
    classes, thresholds = ClassNames.from_categories(description.categories), ScoreThresholds.stored_in(description)
    lowest = [thresholds.by_category.get(number, thresholds.overall) for number in classes.category_ids]
    model = image_model(restored.detector, host_resize(restored.resize))
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
