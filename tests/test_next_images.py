"""The choice of images to label next: doubt and novelty, computed in other ways, and what the program writes."""

import functools
import hashlib
import itertools
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from miniature import build_miniature
from PIL import Image
from stored_miniature import store_miniature

from dataset.class_names import ClassNames, beside_records
from dataset.files.bounded_files import LARGEST_FILE_BYTES
from efficientdet.checkpoints import restore
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.operations.choose_images import choose_images
from efficientdet.options.next_images import NextImagesOptions
from efficientdet.plugins.labeling import next_images
from efficientdet.plugins.labeling.next_images import Viewer, choose, class_weights, uncertainty
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError

ALIKE = {1: 1.0, 2: 1.0}


def rows(*detections):
    """Detections (left edge of a box of 10 pixels, score, category id)."""
    boxes = np.float32([[0, left, 10, left + 10] for left, *_ in detections]).reshape(-1, 4)
    scores, categories = (np.array([one[place] for one in detections]) for place in (1, 2))
    return DetectionRows.of_image(boxes, scores.astype(np.float32), categories.astype(np.int64))


def entropy(*probabilities):
    return sum(-p * math.log2(p) - (1 - p) * math.log2(1 - p) for p in probabilities)


@pytest.mark.parametrize(
    ("image", "mirror", "probabilities"),
    [
        (rows((0, 0.9, 1)), rows((1, 0.7, 1)), [0.8]),
        (rows((0, 0.9, 1)), rows((0, 0.7, 2)), [0.45, 0.35]),  # another class
        (rows((0, 0.9, 1)), rows((8, 0.7, 1)), [0.45, 0.35]),  # elsewhere
        (rows((0, 0.9, 1)), rows(), [0.45]),
        (rows((0, 0.9, 1), (40, 0.09, 1)), rows((0, 0.9, 1)), [0.9]),  # scores below 0.1 are in every image
        (rows((0, 0.9, 1), (2, 0.5, 1)), rows((1, 0.6, 1)), [0.75, 0.25]),  # the better one gets the partner
        (rows(), rows(), []),
    ],
)
def test_doubt_is_the_entropy_of_the_mean_of_both_views(image, mirror, probabilities):
    assert uncertainty(image, mirror, ALIKE) == pytest.approx(entropy(*probabilities), abs=1e-5)
    assert uncertainty(mirror, image, ALIKE) == pytest.approx(entropy(*probabilities), abs=1e-5)


def test_rare_classes_count_more():
    names = ClassNames((1, 2), ("ball", "fish"))
    weights = class_weights({"ball": 9, "tree": 5}, names)
    assert weights == pytest.approx({1: math.sqrt(5 / 9), 2: math.sqrt(5)})  # fish: none, as one
    assert uncertainty(rows((0, 0.5, 2)), rows((0, 0.5, 2)), weights) == pytest.approx(math.sqrt(5))


def test_expected_gain_takes_neither_copies_nor_what_is_certain():
    #                    certain, doubtful, its copy, like a labeled one, new and a little doubtful
    points = np.array([[0, 1, 0.0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0]])
    doubts = np.array([0.0, 3, 3, 9, 1])
    [first, second] = choose(doubts, points, np.array([[0, 0, 1.0]]), count=2)
    assert first[0] in (1, 2)
    assert second == (4, pytest.approx(1 - math.sqrt(0.5)))
    assert choose(doubts, points, points[:0], count=9)[0] == (3, 1)  # nothing is labeled


def test_every_image_is_chosen_once():
    points = np.repeat(np.eye(3), 4, axis=0)
    for doubts in (np.zeros(12), np.arange(12.0)):
        for count, known in itertools.product((5, 50), (points[:0], points)):
            numbers = [number for number, _ in choose(doubts, points, known, count=count)]
            assert len(set(numbers)) == len(numbers) == min(count, 12)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A checkpoint, and the folder `pool` with its three labeled images and five others, one of them damaged."""
    folder = tmp_path_factory.mktemp("stored")
    images = store_miniature(folder)[:2]
    pool = folder / "pool"
    pool.mkdir()
    for image in images:
        shutil.copy(image, pool / f"labeled_{image.name}")
    random = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(random.integers(0, 255, (60, 90, 3), np.uint8)).save(pool / f"new_{number}.png")
    (pool / "new_damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 no image")
    return folder


@functools.cache
def viewer_of(checkpoint):
    return Viewer(ModelConfig(ckpt_path=checkpoint))


@pytest.fixture(autouse=True)
def _miniature(monkeypatch):
    """Build the small network, and each checkpoint's once."""
    monkeypatch.setattr(restore, "build_detector", build_miniature)
    monkeypatch.setattr(next_images, "Viewer", lambda config: viewer_of(config.ckpt_path))


def options(folder, **changes):
    records = str(next((folder / "drawn").rglob("*-of-*")).parent / "*-of-*")
    given = {"model": str(folder / "ckpt"), "images": (str(folder / "pool"),), "labeled": records, "count": 3}
    return NextImagesOptions(**{**given, **changes})


def test_the_mirror_image_has_the_boxes_of_the_image(stored):
    viewer = Viewer(ModelConfig(ckpt_path=str(stored / "ckpt")))
    paths = sorted(map(str, (stored / "pool").glob("new_?.png")))[:1]
    flipped = stored / "flipped.png"
    with Image.open(paths[0]) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(flipped)
    view, other = viewer.views([*paths, str(flipped)])
    assert len(view.rows.scores)
    np.testing.assert_allclose(other.mirrored.scores, view.rows.scores, rtol=1e-4)
    y_min, x_min, y_max, x_max = view.rows.boxes.T
    np.testing.assert_allclose(other.mirrored.boxes, np.stack([y_min, 90 - x_max, y_max, 90 - x_min], axis=1), atol=0.1)
    assert view.features.shape == other.features.shape
    assert np.linalg.norm(view.features) > 0


def test_unlabeled_images_are_chosen_and_written(stored, tmp_path, capsys):
    choose_images(options(stored, output_dir=str(tmp_path / "out")))
    out = tmp_path / "out"
    printed = capsys.readouterr().out
    assert "2 of 7 images are labeled already" in printed
    assert "skipped: " in printed
    assert "new_damaged.jpg: cannot be decoded" in printed
    listed = json.loads((out / "next_images.json").read_text())
    names = sorted(path.name for path in (out / "images").iterdir())
    assert sorted(entry["file_name"] for entry in listed) == names
    assert len(names) == 3
    assert all(name.startswith("new_") for name in names)
    for entry in listed:
        assert (out / "images" / entry["file_name"]).read_bytes() == (stored / "pool" / entry["file_name"]).read_bytes()
    tasks = json.loads((out / "label_studio.json").read_text())
    assert [task["data"]["image"] for task in tasks] == [
        f"/data/local-files/?d=images/{entry['file_name']}" for entry in listed
    ]
    assert {image["file_name"] for image in json.loads((out / "coco.json").read_text())["images"]} == {
        *names
    }  # as in a task of CVAT with these files
    boxes = "".join(path.read_text() for path in (out / "yolo" / "labels").iterdir()).splitlines()
    assert len(boxes) == sum(entry["proposals"] for entry in listed)
    assert all(len(line.split()) == 5 for line in boxes)
    page = (out / "next_images.html").read_text()
    assert all(name in page for name in names)
    choose_images(options(stored, output_dir=str(out), count=1))  # the files of the former call are gone
    assert len(list((out / "images").iterdir())) == len(list((out / "yolo" / "labels").iterdir())) == 1


def picture(path, seed):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)).save(path)


def test_images_of_equal_names_are_copied_beside_each_other(stored, tmp_path):
    """Also names that differ in the suffix alone, because a file of labels has the name of its image without it."""
    sources = [tmp_path / "a" / "x.png", tmp_path / "b" / "x.png", tmp_path / "b" / "X.bmp", tmp_path / "b" / "x-2.png"]
    for seed, path in enumerate(sources):
        picture(path, seed)
    given = (str(tmp_path / "a"), str(tmp_path / "b"))
    choose_images(options(stored, images=given, output_dir=str(tmp_path / "out"), count=9))
    listed = json.loads((tmp_path / "out" / "next_images.json").read_text())
    assert {entry["path"] for entry in listed} == {str(path) for path in sources}
    copies = {path.name: path.read_bytes() for path in (tmp_path / "out" / "images").iterdir()}
    assert copies == {entry["file_name"]: Path(entry["path"]).read_bytes() for entry in listed}
    labels = {path.stem for path in (tmp_path / "out" / "yolo" / "labels").iterdir()}
    assert labels == {Path(name).stem for name in copies}
    assert len({stem.casefold() for stem in labels}) == 4


def test_names_that_are_no_text_and_files_that_cannot_be_read(stored, tmp_path, capsys):
    picture(tmp_path / "pool" / "ok.png", 1)
    picture(tmp_path / "pool" / os.fsdecode(b"no\xfftext.png"), 2)
    with open(tmp_path / "pool" / "huge.png", "wb") as file:
        file.truncate(LARGEST_FILE_BYTES + 1)
    choose_images(options(stored, images=(str(tmp_path / "pool"),), output_dir=str(tmp_path / "out")))
    assert "huge.png: cannot be decoded" in capsys.readouterr().out
    tasks = json.loads((tmp_path / "out" / "label_studio.json").read_text())
    assert {task["data"]["image"].rpartition("/")[2] for task in tasks} == {"ok.png", "no_text.png"}


@pytest.mark.parametrize("name", ["images/new_0.xml", "images/new_9.png", "yolo/labels/{stem}.txt"])
def test_work_of_the_user_in_the_output_folder_stays(stored, tmp_path, name):
    out = tmp_path / "out"
    choose_images(options(stored, output_dir=str(out), count=1))
    [stem] = [path.stem for path in (out / "images").iterdir()]
    work = out / name.format(stem=stem)
    work.write_text("0 0.5 0.5 0.1 0.1\n")
    os.utime(work, (0, 0))  # moved in: it keeps its time
    with pytest.raises(InputError, match=f"{work.name}: (exists and was not written|was changed after)"):
        choose_images(options(stored, output_dir=str(out), count=2))
    assert work.read_text() == "0 0.5 0.5 0.1 0.1\n"
    work.unlink()
    choose_images(options(stored, output_dir=str(out), count=2))


def test_copies_are_chosen_once_and_labeled_files_never(stored, tmp_path, capsys):
    """A PNG is another file in the records, of which the conversion stores the hash."""
    pool = tmp_path / "pool"
    for name, seed in (("a.png", 1), ("copy.png", 1), ("b.png", 2), ("labeled.png", 3)):
        picture(pool / name, seed)
    records = tmp_path / "records"
    shutil.copytree(next((stored / "drawn").rglob("*-of-*")).parent, records)
    digest = hashlib.sha256((pool / "labeled.png").read_bytes()).hexdigest()
    shard = next(records.glob("*-of-*"))
    beside_records(shard, ".instances.json").write_text(json.dumps({"images": [{"id": 1, "sha256": digest}]}))
    out = tmp_path / "out"
    choose_images(options(stored, images=(str(pool),), output_dir=str(out), labeled=f"{records}/*-of-*"))
    listed = json.loads((out / "next_images.json").read_text())
    assert {entry["file_name"] for entry in listed} == {"a.png", "b.png"}
    printed = capsys.readouterr().out
    assert "1 of 4 images are labeled already" in printed
    assert "1 of 4 images are copies of others" in printed


def test_an_earlier_choice_is_not_its_own_pool(stored, tmp_path):
    out = tmp_path / "out"
    choose_images(options(stored, output_dir=str(out)))
    copies = sorted((out / "images").iterdir())
    with pytest.raises(InputError, match="is among the copies of an earlier choice"):
        choose_images(options(stored, images=(str(out / "images"),), output_dir=str(out), count=1))
    assert sorted((out / "images").iterdir()) == copies


def test_an_interrupted_choice_is_repeated(stored, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    choose_images(options(stored, output_dir=str(out), count=1))
    original = next_images._thumbnail
    monkeypatch.setattr(next_images, "_thumbnail", interrupt)
    with pytest.raises(KeyboardInterrupt):
        choose_images(options(stored, output_dir=str(out), count=3))
    assert len(list((out / "images").iterdir())) == 1
    monkeypatch.setattr(next_images, "_thumbnail", original)
    choose_images(options(stored, output_dir=str(out), count=3))
    assert len(list((out / "images").iterdir())) == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": None}, "--model is missing"),
        ({"images": ()}, "--images is missing"),
        ({"model": "{folder}/detector.onnx"}, "is ONNX, which has no features; expected a checkpoint"),
        ({"images": ("{folder}/pool/labeled_*",)}, "all 2 images are labeled already"),
        ({"images": ("{folder}/pool/new_damaged.jpg",)}, "none of 1 images could be decoded"),
        ({"output_dir": "{folder}/pool_of_user"}, "images/own.png: exists and was not written by this program"),
    ],
)
def test_wrong_options_are_one_line(stored, tmp_path, changes, expected):
    (stored / "detector.onnx").write_bytes(b"")
    (stored / "pool_of_user" / "images").mkdir(parents=True, exist_ok=True)
    (stored / "pool_of_user" / "images" / "own.png").touch()
    filled = {
        key: tuple(one.format(folder=stored) for one in value)
        if isinstance(value, tuple)
        else value and value.format(folder=stored)
        for key, value in {"output_dir": str(tmp_path), **changes}.items()
    }
    with pytest.raises(InputError, match=expected):
        choose_images(options(stored, **filled))
