"""The folder of `export.py --formats=cvat`: what Nuclio and CVAT read of function.yaml, and the replies of main.py."""

import base64
import dataclasses
import io
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from miniature import miniature_detector
from PIL import Image

from dataset.class_names import ClassNames
from dataset.files.image_files import read_image
from dataset.input.resize import letterbox
from efficientdet.checkpoints.description import Description
from efficientdet.inference.detect import Detector
from efficientdet.inference.runtimes import Predictor
from efficientdet.plugins.small_devices.image_model import write_cvat_function
from model.detection_model import named_variables

CLASSES = ClassNames((5, 7, 9), ("red", "no", 'a "b" {c} Ä'))
DESCRIPTION = Description(
    model_name="EfficientDet-D0",
    hparams={"image_size": 64},
    categories=CLASSES.to_categories(),
    weights="raw",
    score_thresholds={"overall": 0.4, "classes": {"no": 0.6}},
)
# Runs main.py as Nuclio's wrapper does: once init_context, then handler for each request; JSON bodies are parsed.
WRAPPER = """
import json, runpy, sys
from types import SimpleNamespace
main = runpy.run_path("main.py")
context = SimpleNamespace(user_data=SimpleNamespace(), Response=lambda **reply: reply)
main["init_context"](context)
replies = [main["handler"](context, SimpleNamespace(body=body)) for body in json.load(sys.stdin)]
loaded = {"tensorflow", "keras", "efficientdet", "dataset", "program_support", "onnx"} & sys.modules.keys()
print(json.dumps([replies, sorted(loaded)]))
"""

# Runs main.py as cvat-cli does; of cvat_sdk there are the names that it calls, which give back what they are given
COMMAND_LINE = """
import json, runpy, sys
from types import SimpleNamespace
from PIL import Image
sdk = SimpleNamespace(
    rectangle=lambda number, points: [number, points],
    label_spec=lambda name, number, *, type: [name, number, type],
    DetectionFunctionSpec=lambda *, labels: labels,
)
sys.modules["cvat_sdk"] = SimpleNamespace(auto_annotation=sdk)
function = runpy.run_path("main.py")["create"]()
contexts = [SimpleNamespace(conf_threshold=threshold) for threshold in (None, 0.7)]
found = [function.detect(context, Image.open(sys.argv[1])) for context in contexts]
print(json.dumps([function.spec, *found]))
"""


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    """The folder, and the detection of the detector that was written to it."""
    folder, detector = tmp_path_factory.mktemp("exported") / "cvat", miniature_detector()
    for name, variable in named_variables(detector.network).items():
        if name.startswith("class_net/class-predict"):
            variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    rule = letterbox((64, 64))
    write_cvat_function(SimpleNamespace(detector=detector, description=DESCRIPTION, resize=rule), folder)
    predict = Predictor(lambda images, sizes: detector.detections(detector.outputs(images, sizes), sizes))
    return folder, Detector.resizing(predict, resize=rule, description=DESCRIPTION).detect


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """An image that its EXIF orientation rotates by 90 degrees, as file content, and its upright pixels."""
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (50, 121, 3), np.uint8))
    exif, path = Image.Exif(), tmp_path_factory.mktemp("photo") / "photo.jpg"
    exif[0x0112] = 6
    image.save(path, exif=exif)
    return path.read_bytes(), read_image(str(path))


def replies(folder, *bodies):
    done = subprocess.run(
        [sys.executable, "-I", "-c", WRAPPER], cwd=folder, input=json.dumps(bodies), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers, loaded = json.loads(done.stdout)
    assert loaded == []  # so that ONNX Runtime, NumPy and Pillow suffice
    return answers


def encoded(content):
    return base64.b64encode(content).decode()


def test_rectangles_in_the_upright_image_from_the_threshold_on(function, photo):
    folder, detect = function
    content, upright = photo
    [rows] = detect([upright])
    own = {5: 0.4, 7: 0.6, 9: 0.4}
    names = dict(zip(CLASSES.category_ids, CLASSES.names, strict=True))
    answers = replies(folder, {"image": encoded(content)}, {"image": encoded(content), "threshold": 0.7})
    counts = []
    for answer, threshold in zip(answers, (None, 0.7), strict=True):
        assert (answer["status_code"], answer["content_type"]) == (200, "application/json")
        shapes = json.loads(answer["body"])
        lowest = [threshold or own[number] for number in rows.category_ids.tolist()]
        expected = rows.chosen(np.flatnonzero(rows.scores >= lowest))
        assert [shape["label"] for shape in shapes] == [names[number] for number in expected.category_ids.tolist()]
        corners = np.array([shape["points"] for shape in shapes])
        np.testing.assert_allclose(corners, expected.boxes[:, [1, 0, 3, 2]], atol=0.02)
        assert [float(shape["confidence"]) for shape in shapes] == pytest.approx(expected.scores.tolist(), abs=1e-3)
        assert {shape["type"] for shape in shapes} == {"rectangle"}
        assert corners[:, 2].max() <= 50 < corners[:, 3].max() <= 121
        counts.append(len(shapes))
    assert len(rows.scores) > counts[0] > counts[1] > 0


def test_the_function_of_the_command_line_finds_the_same(function, photo, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(photo[0])
    done = subprocess.run(
        [sys.executable, "-I", "-c", COMMAND_LINE, tmp_path / "photo.jpg"],
        cwd=function[0],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    labels, *found = json.loads(done.stdout)
    assert labels == [[name, number, "rectangle"] for number, name in enumerate(CLASSES.names)]
    image = encoded(photo[0])
    for rectangles, answer in zip(
        found, replies(function[0], {"image": image}, {"image": image, "threshold": 0.7}), strict=True
    ):
        shapes = json.loads(answer["body"])
        assert rectangles == [[CLASSES.names.index(shape["label"]), shape["points"]] for shape in shapes]


def test_other_bodies_are_refused(function, photo):
    content, _ = photo
    bodies = (
        {},
        [],
        "x",
        {"image": 1},
        {"image": encoded(b"GIF89a")},
        {"image": encoded(content), "threshold": "high"},
    )
    for answer in replies(function[0], *bodies):
        assert answer["status_code"] == 400
        assert answer["body"].startswith("expected a JSON object with a base64 image and a number as threshold: ")


def test_nuclio_and_cvat_read_the_function(function):
    folder, _ = function
    config = yaml.safe_load((folder / "function.yaml").read_text())
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", config["metadata"]["name"])  # of a Kubernetes resource
    for directive in config["spec"]["build"]["directives"]["preCopy"]:
        assert directive["kind"] in ("ADD", "COPY", "ENV", "RUN", "USER", "WORKDIR")
    [trigger] = config["spec"]["triggers"].values()
    assert trigger["kind"] == "http"
    module, entry = config["spec"]["handler"].split(":")
    assert f"def {entry}(context, event):" in (folder / f"{module}.py").read_text()
    annotations = config["metadata"]["annotations"]  # as LambdaFunction.__init__ of CVAT reads them
    assert all(isinstance(value, str) for value in annotations.values())  # a map of strings in Nuclio
    assert annotations["type"] == "detector"
    assert annotations["name"] == "EfficientDet-D0"
    assert json.loads(annotations["spec"]) == [
        {"id": number, "name": name, "type": "rectangle"} for number, name in enumerate(CLASSES.names)
    ]


def test_without_stored_thresholds_the_default_applies(tmp_path, photo):
    description = dataclasses.replace(DESCRIPTION, score_thresholds={})
    restored = SimpleNamespace(detector=miniature_detector(), description=description, resize=letterbox((64, 64)))
    write_cvat_function(restored, tmp_path)
    buffer = io.BytesIO()
    Image.fromarray(photo[1]).convert("L").save(buffer, "PNG")  # gray
    every, shown = replies(
        tmp_path, {"image": encoded(buffer.getvalue()), "threshold": 0.0}, {"image": encoded(buffer.getvalue())}
    )
    scores = [float(shape["confidence"]) for shape in json.loads(every["body"])]
    assert len(json.loads(shown["body"])) == sum(score >= 0.4 for score in scores)
