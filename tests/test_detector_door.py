"""`efficientdet.load_detector` finds what infer.py finds, in all kinds of images; importing it imports nothing more."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from miniature import build_miniature, miniature_detector
from PIL import Image
from stored_miniature import store_miniature

import efficientdet
from dataset.class_names import ClassNames
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.detect import Detector
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs
from model.detection_model import named_variables
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import run_lengths

ROOT = Path(__file__).resolve().parent.parent
SLOW = {"tensorflow", "keras", "jax", "numpy", "PIL", "cv2", "absl"}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Folder with a checkpoint, its SavedModel, images of several sizes, and detections.json of infer.py for each."""
    folder = tmp_path_factory.mktemp("stored")
    images = store_miniature(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", build_miniature)
        for name, model in (
            ("of_ckpt", {"ckpt_path": f"{folder}/ckpt", "saved_model_dir": None}),
            ("of_both", {"ckpt_path": f"{folder}/ckpt", "saved_model_dir": f"{folder}/saved"}),
            ("of_saved", {"ckpt_path": None, "saved_model_dir": f"{folder}/saved"}),
        ):
            (folder / name).mkdir()
            annotate(
                AnnotationConfig(
                    inputs=Inputs(images=tuple(map(str, images))),
                    output_dir=str(folder / name),
                    model_config=ModelConfig(ckpt_path=model["ckpt_path"], precision="float32"),
                    saved_model_dir=model["saved_model_dir"],
                )
            )
        yield folder, images


def assert_found(found, folder, number, images, *, atol=0.011):
    """`found` is what detections.json in `folder` says of an image: xywh to a hundredth of a pixel."""
    rows = [
        row for row in json.loads((folder / "detections.json").read_text()) if row["file_name"] == images[number].name
    ]
    assert len(found) == len(rows) == 20
    wanted = np.array([row["bbox"] for row in rows])
    np.testing.assert_allclose(found.boxes[:, :2], wanted[:, :2], atol=atol)
    np.testing.assert_allclose(found.boxes[:, 2:] - found.boxes[:, :2], wanted[:, 2:], atol=2 * atol)
    np.testing.assert_allclose(found.scores, [row["score"] for row in rows], atol=1e-5)
    assert found.category_ids.tolist() == [row["category_id"] for row in rows]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_files_arrays_and_pillow_images_give_the_boxes_of_infer(stored, batch_size):
    folder, images = stored
    detector = efficientdet.load_detector(folder / "ckpt", batch_size=batch_size, precision="float32")
    with Image.open(images[1]) as opened:
        found = detector.predict([str(images[0]), opened, np.asarray(Image.open(images[2]))], min_score=0)
    for number, one in enumerate(found):
        assert_found(one, folder / "of_ckpt", number, images)
        assert one.boxes.dtype == one.scores.dtype == np.float32
        assert one.names == tuple(
            detector.class_names.names[detector.class_names.category_ids.index(number)] for number in one.category_ids
        )
        assert one.masks is None


def test_a_saved_model_gives_the_boxes_of_infer(stored):
    folder, images = stored
    found = efficientdet.load_detector(folder / "saved").predict(images, min_score=0)
    for number, one in enumerate(found):
        assert_found(one, folder / "of_saved", number, images)


def test_a_checkpoint_that_names_no_classes_is_told_them(stored):
    folder, images = stored
    arrays = {name: np.asarray(variable) for name, variable in named_variables(miniature_detector(2).network).items()}
    write_arrays(
        str(folder / "nameless" / "ckpt"),
        arrays,
        Description(model_name="efficientdet-d0", hparams={"image_size": 64}, categories=[], weights="raw"),
    )
    (folder / "nameless" / "ckpt.json").unlink()
    numbered = efficientdet.load_detector(folder / "nameless", hparams={"image_size": 64})
    assert numbered.class_names.names == ("class 1", "class 2")
    detector = efficientdet.load_detector(folder / "nameless", class_names=["cat", "dog"], hparams={"image_size": 64})
    [found] = detector.predict(images[0], min_score=0)
    assert {*zip(found.category_ids.tolist(), found.names, strict=True)} == {(1, "cat"), (2, "dog")}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_folders_patterns_and_file_objects(tmp_path, batch_size):
    """The result of each image is its mean gray level as a score, in 1/256."""
    for level, name in enumerate(("a.png", "b.png", "c.jpg"), start=1):
        Image.new("RGB", (8, 8), (level * 10,) * 3).save(tmp_path / name)
    (tmp_path / "notes.txt").touch()
    detector = Detector(
        lambda images: [
            DetectionRows.of_image(
                np.zeros((1, 4), np.float32), np.float32([image.mean() / 256]), np.array([1], np.int64)
            )
            for image in images
        ],
        ClassNames((1,), ("cat",)),
        batch_size=batch_size,
    )

    def levels(images):
        return [round(float(one.scores[0]) * 256) for one in detector.predict(images, min_score=0)]

    assert levels(tmp_path) == [10, 20, 30]
    assert levels(f"{tmp_path}/*.png") == [10, 20]
    assert levels([f"{tmp_path}/c.jpg", f"{tmp_path}/*.png", tmp_path / "a.png"]) == [30, 10, 20, 10]
    with (tmp_path / "b.png").open("rb") as file:
        [found] = detector.predict(file, min_score=0)
    assert found.draw().size == (8, 8)  # the file is closed
    assert levels([io.BytesIO((tmp_path / name).read_bytes()) for name in ("b.png", "a.png")]) == [20, 10]
    gray = np.full((8, 8), 7, np.uint8)
    transparent = np.dstack([gray, gray, gray, np.zeros_like(gray)])
    assert levels([gray, gray[..., None], transparent]) == [7, 7, 7]
    assert levels(np.stack([transparent, transparent])) == [7, 7]


def cut_short():
    """An image of Pillow's whose file ends too early, which it says when it is asked for pixels."""
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(whole, "JPEG")
    return Image.open(io.BytesIO(whole.getvalue()[:1500]))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (cut_short(), r"image 0 cannot be decoded \(.*truncated"),
        (Image.new("L", (0, 5)), r"image 0 is uint8 \[5, 0, 3\]; expected uint8 \[height, width, 3\]"),
        (None, "image 0 is of type NoneType; expected a file name, a file object, a PIL image or an array"),
        (b"\xff\xd8", "image 0 is of type bytes; expected"),
        (5, "image 0 is of type int; expected"),
        ("nosuch.jpg", "nosuch.jpg: there is no such file"),
        (np.zeros((4, 5, 3)), r"image 0 is float64 \[4, 5, 3\]; expected uint8 \[height, width, 3\]"),
        (np.zeros((4, 5, 2), np.uint8), r"image 0 is uint8 \[4, 5, 2\]; expected"),
        (io.BytesIO(b""), r"image 0: cannot be decoded \(it is empty\)"),
        (io.StringIO("text"), r"image 0 cannot be read \(.*\); expected a binary file"),
        ("nosuch/*.jpg", r"nosuch/\*.jpg: no such file; expected an image, a folder or a glob"),
        ([3], "image 0 is of type int; expected"),
    ],
)
def test_what_is_no_image_is_one_line(image, message):
    detector = Detector(lambda images: pytest.fail("it was detected in"), ClassNames((1,), ("cat",)), batch_size=1)
    with pytest.raises(efficientdet.InputError, match=f"^{message}"):
        detector.predict(image)


def spoilt(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "no weights": lambda folder: (folder / "variables/variables.data-00000-of-00001").unlink(),
    "half the weights": lambda folder: spoilt(folder, "variables/variables.data-00000-of-00001"),
    "half the graph": lambda folder: spoilt(folder, "saved_model.pb"),
    "half the description": lambda folder: spoilt(folder, "description.json"),
    "no description": lambda folder: (folder / "description.json").unlink(),
    "another description": lambda folder: (folder / "description.json").write_text(
        '{"model_name": "", "hparams": 5, "categories": [{"id": 1, "name": "cat"}], "weights": ""}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_part_of_a_saved_model_is_one_line(stored, tmp_path, damage):
    copy = tmp_path / "copy"
    shutil.copytree(stored[0] / "saved", copy)
    DAMAGE[damage](copy)
    with pytest.raises(efficientdet.InputError, match="copy: is not a complete SavedModel of this project") as error:
        efficientdet.load_detector(copy)
    assert "\n" not in str(error.value)


def test_a_saved_model_of_somebody_else_is_one_line(stored, tmp_path):
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None], tf.float32)])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.double})
    shutil.copy(stored[0] / "saved/description.json", tmp_path)
    with pytest.raises(efficientdet.InputError, match="serving_default takes x and returns output_0"):
        efficientdet.load_detector(tmp_path)


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("nosuch", {}, "nosuch: there is no checkpoint of that name"),
        ("drawn", {}, "drawn: no checkpoint in this folder; it holds "),
        ("ckpt", {"runtime": "tensorrt"}, "runtime='tensorrt': expected one of keras, onnxruntime, openvino"),
        ("ckpt", {"int8_images": ["a.jpg"]}, "int8_images requires runtime='openvino'"),
        ("ckpt", {"batch_size": 0}, "batch_size=0: expected at least 1"),
        ("ckpt", {"model_name": "efficientdet-d1"}, "ckpt: is a checkpoint of efficientdet-d0, not of --model_name="),
        ("saved", {"runtime": "onnxruntime"}, "saved: is a SavedModel, which runs as it is"),
    ],
)
def test_a_wrong_path_or_setting_is_one_line(stored, path, settings, message):
    with pytest.raises(efficientdet.InputError, match=message) as error:
        efficientdet.load_detector(stored[0] / path, **settings)
    assert "\n" not in str(error.value)


def test_importing_the_door_imports_nothing_heavy():
    program = (
        "import sys, efficientdet\nfrom efficientdet import load_detector\n"
        "assert efficientdet.__version__[0].isdigit()\nassert 'load_detector' in dir(efficientdet)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not SLOW & {*done.stdout.split()}


def test_masks_are_of_the_pixels_of_the_image():
    """Two detections of different scores, of which the worse is left out; and none at all."""
    wanted = np.zeros((2, 6, 9), bool)
    wanted[0, 1:4, 2:7], wanted[1, :, 0] = True, True
    rows = DetectionRows.of_image(
        np.float32([[1, 2, 4, 7], [0, 0, 6, 1]]),
        np.float32([0.9, 0.3]),
        np.int64([7, 7]),
        masks=[run_lengths(mask) for mask in wanted],
    )
    detector = Detector(lambda images: [rows], ClassNames((7,), ("cell",)), batch_size=1)
    for min_score, count in ((0.0, 2), (0.5, 1), (1.0, 0)):
        [found] = detector.predict(np.zeros((6, 9, 3), np.uint8), min_score=min_score)
        np.testing.assert_array_equal(found.masks, wanted[:count])
        assert (found.masks.dtype, len(found), found.names) == (bool, count, ("cell",) * count)
