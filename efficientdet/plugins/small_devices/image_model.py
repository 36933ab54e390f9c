"""An ONNX model that detects in one image of any size: it includes resizing, with the pixels of `host_resize`."""

import json
import re
import tarfile
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from dataset.input.resize import host_resize
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.families.published_files import PublishedFile
from efficientdet.inference.detect import Detect, rows_of_image
from efficientdet.serving.pages import model_description, static_page
from efficientdet.weights.downloads import cache_folder, cached_file
from model.detection_model import DetectionModel
from object_detection.coco.results import DetectionRows
from object_detection.onnx_nodes import Graph
from object_detection.structures import DETECTIONS
from program_support.atomic_files import write_bytes, write_text
from program_support.plugins import load_plugin

MODEL = "detector.onnx"  # name of the file in a folder
_CHANNELS = 3


def image_model(detector: DetectionModel, resize: HostResize) -> Any:
    """Return the ONNX model that detects in one image of any size, `image` [h, w, 4] uint8; see `onnx_model`.

    Raises:
        InputError: as `onnx_model` does.
    """
    add = partial(add_resize, rule=resize, image="image", images="images", sizes="sizes")
    return load_plugin("efficientdet.onnx", "model")(detector, add_resize=add)


def image_model_detector(folder: Path, description: Description) -> Detect:
    """Return the detection function of a folder's model, run by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / MODEL, providers=["CPUExecutionProvider"])
    category_ids = np.array(ClassNames.from_categories(description.categories).category_ids)

    def rows(image: np.ndarray) -> DetectionRows:
        opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
        outputs = session.run(DETECTIONS, {"image": np.concatenate([image, opaque], axis=-1)})
        boxes, scores, classes = (values[0] for values in outputs)
        valid = scores > 0
        ids = category_ids[classes[valid]]
        return rows_of_image(boxes[valid], scores[valid], ids, image=image, masks=None, description=description)

    return lambda images: [rows(image) for image in images]


def add_resize(graph: Graph, *, rule: HostResize, image: str, images: str, sizes: str) -> str:
    """Add the rule for `image` [h, w, 3 or more] uint8, of any size; channels after the third are dropped.

    It defines the tensors `images` [1, H, W, 3] uint8 and `sizes` [1, 2] int32, the valid area. Return the scales [2]
    float32, pixels of the image per pixel of the input.
    """
    source = graph.cast(graph.add("Shape", [image], end=2), "float32")
    scaled = _scaled_size(graph, rule, source)
    scales = graph.add("Div", [source, graph.cast(scaled, "float32")])
    resample = _antialiased if rule.antialias else _interpolated
    pixels = graph.add("Add", [resample(graph, image, source, scaled, scales, rule), np.float32(0.5)])
    pixels = graph.add("Slice", [pixels, np.array([0]), np.array([_CHANNELS]), np.array([2])])
    missing = graph.add("Sub", [np.array(rule.size, np.int32), scaled])
    after = graph.add("Concat", [np.array([0, 0, 0]), graph.cast(missing, "int64"), np.array([0])], axis=0)
    padded = graph.add("Pad", [graph.cast(pixels, "uint8"), after])
    # The runtime fuses more layers if it knows the shape
    graph.add("Reshape", [padded, np.array([1, *rule.size, _CHANNELS])], name=images)
    graph.add("Reshape", [scaled, np.array([1, 2])], name=sizes)
    return scales


def _scaled_size(graph: Graph, rule: HostResize, source: str) -> str:
    """Add `HostResize.scaled_size` of [2] float32: [2] int32."""
    if rule.kind == "stretch":
        return graph.add("Identity", [np.array(rule.size, np.int32)])
    if rule.kind == "letterbox":
        ratios, limits = graph.add("Div", [np.array(rule.size, np.float32), source]), rule.size
    else:
        sides = [graph.add(kind, [source]) for kind in ("ReduceMin", "ReduceMax")]
        ratios = graph.add(
            "Div", [np.array([rule.shorter, rule.longer], np.float32), graph.add("Concat", sides, axis=0)]
        )
        limits = (rule.longer, rule.longer)
    size = graph.cast(graph.add("Mul", [source, graph.add("ReduceMin", [ratios])]), "int32")
    return graph.add("Min", [graph.add("Max", [size, np.int32(1)]), np.array(limits, np.int32)])


def _interpolated(graph: Graph, image: str, source: str, scaled: str, scales: str, rule: HostResize) -> str:
    """Interpolate bilinearly, first along rows: float32 [h', w', C]. Only the pixels that are needed become floats."""
    places = [_neighbors(graph, rule, *_elements(graph, axis, scaled, source, scales)) for axis in (0, 1)]
    (top, bottom, down), (left, right, across) = places

    def row(numbers: str) -> str:
        rows = graph.add("Gather", [image, numbers], axis=0)
        first, second = (
            graph.cast(graph.add("Gather", [rows, numbers], axis=1), "float32") for numbers in (left, right)
        )
        return _between(graph, first, second, graph.add("Reshape", [across, np.array([1, -1, 1])]))

    return _between(graph, row(top), row(bottom), graph.add("Reshape", [down, np.array([-1, 1, 1])]))


def _elements(graph: Graph, axis: int, *tensors: str) -> list[str]:
    """Return the element of each tensor [2] as float32 []."""
    return [graph.cast(graph.add("Gather", [tensor, np.array(axis)]), "float32") for tensor in tensors]


def _neighbors(graph: Graph, rule: HostResize, count: str, source: str, scale: str) -> tuple[str, str, str]:
    """Return the pixels before and after each position, int64, and the distance from the one before: [count] each."""
    places = graph.add("Range", [np.float32(0), count, np.float32(1)])
    if rule.half_pixel_centers:
        places = graph.add("Mul", [graph.add("Add", [places, np.float32(0.5)]), scale])
        places = graph.add("Sub", [places, np.float32(0.5)])
    else:
        places = graph.add("Mul", [places, scale])
    lower = graph.add("Floor", [places])
    last = graph.add("Sub", [source, np.float32(1)])
    first, second = (
        graph.cast(graph.add("Clip", [number, np.float32(0), last]), "int64")
        for number in (lower, graph.add("Add", [lower, np.float32(1)]))
    )
    return first, second, graph.add("Sub", [places, lower])


def _between(graph: Graph, first: str, second: str, distance: str) -> str:
    return graph.add("Add", [first, graph.add("Mul", [graph.add("Sub", [second, first]), distance])])


def _antialiased(graph: Graph, image: str, source: str, scaled: str, scales: str, rule: HostResize) -> str:
    """Resample with a triangle filter as wide as an output pixel: float32 [h', w', C]."""
    channels = graph.add("Shape", [image], start=2)
    floats = graph.add("Unsqueeze", [graph.cast(image, "float32"), np.array([0])])
    size = graph.add("Concat", [np.array([1]), graph.cast(scaled, "int64"), channels], axis=0)
    resized = graph.add(
        "Resize",
        [floats, "", "", size],
        mode="linear",
        antialias=1,
        exclude_outside=1,  # the weights are normalized over the pixels of the image
        coordinate_transformation_mode="half_pixel" if rule.half_pixel_centers else "asymmetric",
    )
    return graph.add("Squeeze", [resized, np.array([0])])


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
    model = image_model(restored.detector, host_resize(restored.resize))
    description = restored.description
    threshold = ScoreThresholds.stored_in(description).overall
    about = model_description(description.model_name, ClassNames.from_categories(description.categories), threshold)
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
