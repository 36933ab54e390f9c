"""Images that are labeled for some classes only: their records, and a loss that ignores what is not labeled."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from labeled import jpeg
from miniature import miniature_detector
from PIL import Image

from dataset.conversion.conversion_options import ConvertOptions
from dataset.create_tfrecord import convert_labels
from efficientdet.families.efficientdet.build import detector_config
from efficientdet.families.registry import build_detector, hyperparameters_of
from model.dense_detector import DenseDetector, LossConfig
from object_detection.assignment.anchor_assignment import classes_in_crowds
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.structures import Objects
from program_support.errors import InputError

CLASSES = 3
LOSSES = {
    "focal": LossConfig(),
    "smoothed": LossConfig(label_smoothing=0.1),
    "quality": LossConfig(class_loss="quality focal", box_loss="giou"),
}


def objects(*entries, slots=5):
    """Objects of one image: (box, class, is_crowd)."""
    boxes, classes, crowd = (np.zeros((1, slots, *shape), kind) for shape, kind in (((4,), "f"), ((), "i"), ((), bool)))
    for place, (box, index, is_crowd) in enumerate(entries):
        boxes[0, place], classes[0, place], crowd[0, place] = box, index, is_crowd
    valid = np.arange(slots)[None] < len(entries)
    return Objects.of_boxes(boxes, classes, valid, crowd)


def detector(losses, *, ignores=True, task_aligned=False):
    built = miniature_detector(CLASSES, losses=losses)
    changes = {"assigner": TaskAlignedAssigner()} if task_aligned else {}
    return DenseDetector(built.network, dataclasses.replace(built.config, ignore_in_crowds=ignores, **changes))


def class_loss(built, labels, logits, deltas):
    """Return the class loss and its gradient by the logits."""
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        outputs = logits, tf.constant(deltas)
        targets = built.targets(Objects(*map(tf.constant, labels)), outputs if built.learns_from_outputs else None)
        loss = built.loss_sums(outputs, targets)["cls_loss"]
    assigned = getattr(targets, "assigned", targets)
    return float(loss), tape.gradient(loss, logits).numpy(), assigned.positive.numpy()


def random_outputs(count):
    random = np.random.default_rng(2)
    return random.normal(size=(1, count, CLASSES)).astype("f"), 0.1 * random.normal(size=(1, count, 4)).astype("f")


WHOLE = (0, 0, 64, 64)
BALL = ((10, 12, 34, 40), 0, False)


def test_crowds_are_those_that_contain_the_center():
    anchors = np.float32([[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 90, 90], [-20, -20, 8, 8]])
    labels = objects(((0, 0, 30, 31), 1, True), (WHOLE, 2, True), (WHOLE, 0, False), ((4, 4, 6, 6), 0, True))
    expected = np.zeros((1, 4, CLASSES), bool)
    for row, (top, left, bottom, right) in enumerate(anchors):
        y, x = (top + bottom) / 2, (left + right) / 2
        for box, index, is_crowd in (((0, 0, 30, 31), 1, True), (WHOLE, 2, True), ((4, 4, 6, 6), 0, True)):
            expected[0, row, index] |= is_crowd and box[0] <= y < box[2] and box[1] <= x < box[3]
    found = classes_in_crowds(Objects(*map(tf.constant, labels)), tf.constant(anchors), num_classes=CLASSES)
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() == 4  # padding is no crowd


@pytest.mark.parametrize(
    ("losses", "task_aligned"), [(LOSSES["focal"], False), (LOSSES["smoothed"], False), (LOSSES["quality"], True)]
)
def test_nothing_is_learned_about_a_class_without_labels(losses, task_aligned):
    built = detector(losses, task_aligned=task_aligned)
    logits, deltas = random_outputs(len(built.anchors))
    labels = objects(BALL, (WHOLE, 1, True))
    loss, gradient, positive = class_loss(built, labels, logits, deltas)
    centers = (built.anchors[:, :2] + built.anchors[:, 2:]) / 2
    inside = ((centers >= 0) & (centers < 64)).all(axis=1)
    assert positive.any()
    unlabeled = inside & ~positive[0]
    assert not gradient[0, unlabeled, 1].any()
    assert (gradient[0, positive[0], 1] > 0).all()  # a ball is labeled there, which is none of the class
    assert gradient[0, :, 0].any()
    other = logits.copy()
    other[0, unlabeled, 1] = 9  # a confident detection of an unlabeled object
    assert class_loss(built, labels, other, deltas)[0] == pytest.approx(loss, rel=1e-5)
    # The same as the loss without crowd, less its terms of that class
    without, slopes, _ = class_loss(detector(losses, ignores=False, task_aligned=task_aligned), labels, logits, deltas)
    assert without > loss
    kept = np.ones_like(slopes, bool)
    kept[0, unlabeled, 1] = False
    np.testing.assert_allclose(gradient, np.where(kept, slopes, 0), rtol=1e-4, atol=1e-6)


def test_a_detected_object_of_an_unlabeled_class_is_learned():
    built = detector(LOSSES["focal"])
    logits, deltas = random_outputs(len(built.anchors))
    labels = objects(BALL, ((20, 20, 44, 44), 1, False), (WHOLE, 1, True))
    _, gradient, positive = class_loss(built, labels, logits, deltas)
    assert (gradient[0, :, 1] < 0).sum() > 0  # towards the class
    assert not gradient[0, ~positive[0], 1].any()


def test_families_have_the_hyperparameter():
    for ignores in (False, True):
        hparams = hyperparameters_of("efficientdet-d0", {"ignore_in_crowds": ignores})
        assert detector_config(hparams).ignore_in_crowds == ignores
    hparams = hyperparameters_of("retinanet-resnet18", {"image_size": 64, "ignore_in_crowds": True})
    assert build_detector(hparams, num_classes=CLASSES).config.ignore_in_crowds


@pytest.fixture
def folder(tmp_path):
    """Two images of stars in YOLO's format, and a label map of three classes."""
    images = tmp_path / "images"
    images.mkdir()
    random = np.random.default_rng(1)
    for name in ("a", "b"):
        (images / f"{name}.jpg").write_bytes(jpeg(Image.fromarray(random.integers(0, 255, (60, 80, 3), np.uint8))))
        (images / f"{name}.txt").write_text("0 0.5 0.5 0.25 0.5\n")
    (images / "classes.txt").write_text("star\n")
    (tmp_path / "classes.json").write_text('{"ball": 1, "fish": 2, "star": 3}')
    return tmp_path


def convert(folder, **changes):
    given = {
        "images": str(folder / "images"),
        "output_dir": str(folder / "records"),
        "label_map_json_path": str(folder / "classes.json"),
        "labeled_classes": ("star",),
        "val_fraction": 0.0,
        "num_threads": 1,
    }
    convert_labels(ConvertOptions(**{**given, **changes}))
    return json.loads((folder / "records" / "train.instances.json").read_text())


def test_unlabeled_classes_are_crowds_of_the_complete_image(folder, capsys):
    content = convert(folder)
    of_image = {image["file_name"]: [] for image in content["images"]}
    names = {image["id"]: image["file_name"] for image in content["images"]}
    for one in content["annotations"]:
        of_image[names[one["image_id"]]].append(
            (one["category_id"], [round(side, 3) for side in one["bbox"]], one["iscrowd"])
        )
    star, whole = (3, [30, 15, 20, 30], 0), [0, 0, 80, 60]
    assert all(sorted(boxes) == [(1, whole, 1), (2, whole, 1), star] for boxes in of_image.values())
    assert "labeled classes: star; marked as unlabeled in each image: ball, fish" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"labeled_classes": ("tree",)},
            "--labeled_classes=tree: the data set has no class tree; expected some of ball",
        ),
        ({"labeled_classes": ("ball",)}, r"a.jpg: has an object of 'star', which is not among --labeled_classes"),
        ({"labeled_classes": ("ball", "fish", "star")}, "are all classes of the data set"),
    ],
)
def test_wrong_options_are_one_line(folder, changes, expected):
    with pytest.raises(InputError, match=expected):
        convert(folder, **changes)
