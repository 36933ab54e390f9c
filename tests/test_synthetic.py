import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dataset import synthetic
from object_detection.coco.run_length_masks import decoded
from program_support.errors import InputError

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    synthetic.draw_data_set(folder, images={"train": 150, "val": 50}, seed=5)
    return folder


def read(folder, split):
    return json.loads((folder / "annotations" / f"instances_{split}.json").read_text())


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.parametrize(("blocked", "place"), [(".", "."), ("val", "val"), ("annotations/instances_train.json", None)])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, blocked, place):
    """As a full or read-only disk: a file where a folder belongs, and a folder where a file belongs."""
    folder = tmp_path / "drawn"
    if place is None:
        (folder / blocked).mkdir(parents=True)
    else:
        (folder / blocked).parent.mkdir(parents=True, exist_ok=True)
        (folder / blocked).write_text("")
    with pytest.raises(InputError, match=rf"{folder}\S*: (cannot be written|exists and was not written)") as caught:
        synthetic.draw_data_set(folder, images={"train": 1, "val": 1})
    assert "\n" not in str(caught.value)


def test_an_image_depends_on_the_seed_and_its_number_alone(tmp_path):
    for name, seed, count in (("one", 1, 4), ("again", 1, 2), ("other", 2, 4)):
        synthetic.draw_data_set(tmp_path / name, images={"train": count, "val": 2}, seed=seed)
    one, again, other = (digests(tmp_path / name) for name in ("one", "again", "other"))
    assert len(one) == 8
    assert one["train/000002.jpg"] == again["train/000002.jpg"]
    assert one["val/000006.jpg"] == again["val/000004.jpg"]
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


def test_splits_show_different_images_under_different_ids(drawn):
    ids = [image["id"] for split in ("train", "val") for image in read(drawn, split)["images"]]
    assert ids == list(range(1, 201))
    assert len({*digests(drawn).values()}) == 202


def test_annotations_are_sound_coco(drawn):
    coco = read(drawn, "train")
    sizes = {image["id"]: (image["width"], image["height"]) for image in coco["images"]}
    assert {category["id"] for category in coco["categories"]} == {1, 2, 4, 7, 9}
    assert len({a["id"] for a in coco["annotations"]}) == len(coco["annotations"])
    for annotation in coco["annotations"]:
        (x, y, w, h), (width, height) = annotation["bbox"], sizes[annotation["image_id"]]
        assert min(x, y) >= 0
        assert x + w <= width
        assert y + h <= height
        assert min(w, h) >= 10 * max(width, height) / 128
        mask = decoded(annotation["segmentation"])
        assert mask.shape == (height, width)
        assert annotation["area"] == mask.sum() == mask[y : y + h, x : x + w].sum()
    for image in coco["images"]:
        with Image.open(drawn / "train" / image["file_name"]) as opened:
            assert opened.format == "JPEG"
            assert opened.size == (image["width"], image["height"])


def flat(rows, columns, color):
    sprite = np.full((rows, columns, 4), 255, np.uint8)
    sprite[..., :3] = color
    return Image.fromarray(sprite)


COLORS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))


@pytest.mark.parametrize("seed", range(8))
def test_masks_show_the_pixels_that_are_seen_and_boxes_enclose_them(seed):
    """Rectangles of one color each: they are found again in the finished image."""
    random = np.random.default_rng(seed)
    scene = synthetic.Scene(np.full((90, 110, 3), 128, np.uint8), unit=1.0)
    placed = []
    for color in COLORS:
        rows, columns = random.integers(14, 50, 2)
        if scene.place(synthetic.KINDS[0], flat(rows, columns, color), crowd=False, random=random):
            placed.append((color, rows * columns))
    annotations = scene.annotations()
    assert len(annotations) == len(placed) >= 2
    for annotation, (color, full_area) in zip(annotations, placed, strict=True):
        seen = (scene.pixels == color).all(axis=-1)
        np.testing.assert_array_equal(decoded(annotation["segmentation"]), seen)
        y, x = np.nonzero(seen)
        assert annotation["bbox"] == [x.min(), y.min(), x.max() + 1 - x.min(), y.max() + 1 - y.min()]
        assert annotation["area"] == len(x) >= 0.5 * full_area


def test_what_would_hide_another_finds_no_place():
    random = np.random.default_rng(0)
    scene = synthetic.Scene(np.zeros((40, 40, 3), np.uint8), unit=1.0)
    assert scene.place(synthetic.KINDS[0], flat(36, 36, COLORS[0]), crowd=False, random=random)
    before = scene.pixels.copy()
    assert not scene.place(synthetic.KINDS[0], flat(38, 38, COLORS[1]), crowd=False, random=random)
    np.testing.assert_array_equal(scene.pixels, before)
    assert len(scene.annotations()) == 1


def test_command_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "dataset.synthetic",
        f"--output_dir={tmp_path}",
        "--train_images=2",
        "--val_images=1",
        "--image_size=96x64",  # WIDTHxHEIGHT, as everywhere
        "--seed=7",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert len(digests(tmp_path)) == 5
    image = read(tmp_path, "val")["images"][0]
    assert 51 <= image["height"] <= 80
    assert 77 <= image["width"] <= 120
    wrong = subprocess.run([*command, "--image_size=128x20"], cwd=ROOT, capture_output=True, text=True)
    assert (wrong.returncode, wrong.stderr[:43]) == (2, "synthetic.py: error: --image_size=128x20: e")


def test_drawing_needs_no_tensorflow():
    code = "import dataset.synthetic, dataset.records.record_files, sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
