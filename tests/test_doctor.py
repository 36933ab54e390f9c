import json
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from labeled import healthy, jpeg, picture, with_boxes, with_pictures, without_objects_of
from PIL import Image

import efficientdet
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.image_statistics import measure_images
from dataset.conversion.shards import convert
from efficientdet.data_checks.anchor_search import smallest_usable_size
from efficientdet.data_checks.examination import alike_images, examine, numbers, quick_findings, write_page
from efficientdet.data_checks.findings import Finding, as_hparams
from efficientdet.data_checks.input_view import InputView, best_overlaps
from efficientdet.data_checks.label_checks import duplicate_boxes
from efficientdet.families.registry import build_detector, family_of, hyperparameters_of
from efficientdet.operations.examine_data import read_splits
from efficientdet.options.doctor import ExamineOptions
from program_support.errors import InputError

HPARAMS = hyperparameters_of("efficientdet-d0", {"image_size": 128, "jitter_min": 0.8, "jitter_max": 1.2})
ROOT = Path(__file__).resolve().parent.parent
NOTE, WARNING = "note", "warning"
SMALL = {
    "efficientdet-d0": {"image_size": "160x96", "fpn_cell_repeats": 1, "box_class_repeats": 1, "anchor_scale": 3.0},
    "retinanet-resnet18": {"image_size": "331x205", "anchor_scale": 2.0},
    "ssd300-resnet34": {"backbone_name": "resnet18"},
    "mask-rcnn-resnet18": {"image_size": "331x205", "anchor_scale": 4.0},
}


def found(images, about, hparams=HPARAMS):
    (finding,) = [finding for finding in quick_findings(images, hparams) if finding.about == about]
    return finding


def tiny_objects(side, *, size=(720, 1280), count=30):
    """Images with one class of wide objects, three times as wide as high, like license plates in photos of streets."""
    images, random = healthy(count, names=("plate",)), np.random.default_rng(0)
    sides = np.array([side / 3**0.5, side * 3**0.5]) * np.exp(random.normal(0, 0.2, (count, 1)))
    corners = random.uniform(0, 1, (count, 2)) * (np.array(size) - sides)
    boxes = np.float32(np.concatenate([corners, corners + sides], axis=1))
    return replace(images, boxes=boxes, sizes=np.tile(np.int32(size), (count, 1)))


@pytest.mark.parametrize("model", SMALL)
def test_best_overlap_is_that_with_all_anchors(model):
    hparams, random = hyperparameters_of(model, SMALL[model]), np.random.default_rng(0)
    anchors = build_detector(hparams, num_classes=2).anchors
    corners = random.uniform(-5, 200, (60, 2))
    boxes = np.float32(np.concatenate([corners, corners + np.exp(random.uniform(0, 5, (60, 2)))], axis=1))
    low, high = (
        np.maximum(boxes[:, None, :2], anchors[None, :, :2]),
        np.minimum(boxes[:, None, 2:], anchors[None, :, 2:]),
    )
    common = np.clip(high - low, 0, None).prod(-1)
    areas = [(some[:, 2:] - some[:, :2]).prod(-1) for some in (boxes, anchors)]
    expected = (common / (areas[0][:, None] + areas[1] - common)).max(axis=1)
    np.testing.assert_allclose(best_overlaps(boxes, family_of(model).anchors(hparams)), expected, atol=1e-4)


def test_nothing_is_found_on_healthy_images():
    examination = examine({"training": healthy(), "validation": healthy(6, seed=1)}, HPARAMS, images_read=100)
    assert list(examination.findings) == []
    assert [split.suspicious for split in examination.splits] == [[], []]
    assert examination.settings == {}


def few_labeled():
    images = healthy()
    for number in range(8):
        images = without_objects_of(images, number=number)
    return images


REFUSED = [f"{number}.jpg: box [99, 0, 5, 5] (x, y, width, height) lies outside the 64x48 image" for number in range(5)]
MANY = [(place, place, place + 40, place + 50) for place in range(1, 70, 7)]
WIDE = replace(healthy(size=(96, 128)), boxes=np.clip(healthy(size=(96, 128)).boxes, 0, 96))
UNMATCHED = "; no anchors or jitter of efficientdet-d0 reduce this by much; a larger image_size, or tiles of the images"


@pytest.mark.parametrize(
    ("images", "changes", "about", "level", "words", "settings"),
    [
        (healthy(names=("b c", "Dog", "bC")), {}, "class names", WARNING, "'b c' = 'bC'", {}),
        (
            with_boxes(healthy(), 3, MANY),
            {"max_instances_per_image": 8},
            "slots",
            WARNING,
            "the most 13: 5 are dropped in training",
            {"max_instances_per_image": 16},
        ),
        (without_objects_of(healthy(), number=4), {}, "empty images", NOTE, "0-4.jpg", {}),
        (few_labeled(), {}, "empty images", WARNING, "check for missing labels", {}),
        (
            replace(healthy(), left_out=REFUSED),
            {},
            "left out",
            WARNING,
            f"5 boxes are invalid and skipped: {'; '.join(REFUSED[:3])}; and 2 more",
            {},
        ),
        (replace(healthy(400), left_out=REFUSED[:1]), {}, "left out", NOTE, "0.jpg: box", {}),
        (WIDE, {}, "padding", WARNING, "25% of every 128x128 input is padding", {"image_size": "128x96"}),
        (
            tiny_objects(200),
            {"image_size": 512, "tile_size": 128},
            "tiles",
            WARNING,
            "of 30 objects are larger than a tile of 128x128 pixels",
            {"tile_whole": True},
        ),
        (tiny_objects(2, size=(96, 128)), {}, "anchors", WARNING, UNMATCHED, {}),
    ],
)
def test_findings_of_labels(images, changes, about, level, words, settings):
    finding = found(images, about, HPARAMS.overridden(changes))
    assert (finding.level, finding.settings) == (level, settings)
    assert words in finding.line


@pytest.mark.parametrize(
    ("images", "changes", "about"),
    [
        (with_boxes(healthy(), 3, MANY), {"max_instances_per_image": 8, "tile_size": 64}, "slots"),
        (replace(healthy(), sizes=np.int32([(96, 128), (128, 96)] * 6)), {}, "padding"),  # no shape serves both
        (tiny_objects(200), {"image_size": 512, "tile_size": 128, "tile_whole": True}, "tiles"),
    ],
)
def test_no_finding(images, changes, about):
    assert about not in [one.about for one in quick_findings(images, HPARAMS.overridden(changes))]


def test_classes_without_a_usable_object():
    """All objects of "cat" are crowds, those of "dog" difficult: one is not trained on, neither counts in the AP."""
    images = healthy()
    images = replace(images, crowd=images.classes == 0, difficult=images.classes == 1)
    finding = found(images, "unusable classes")
    assert finding.level == WARNING
    assert finding.line.startswith("1 of 3 classes have no object that is trained on: cat (12 objects); 12 crowds in")
    assert "--crowds_as_objects" in finding.line
    examination = examine({"training": healthy(), "validation": images}, HPARAMS, images_read=0)
    (finding,) = [each for each in examination.findings if each.about == "unusable classes"]
    assert finding.line.startswith("validation: 2 of 3 classes have no object that is counted in the AP: cat (12 obj")
    assert "12 crowds, 12 difficult in all" in finding.line
    on_crowds = HPARAMS.overridden({"train_on_crowds": True})
    assert "unusable classes" not in [each.about for each in quick_findings(images, on_crowds)]
    nothing = found(replace(images, crowd=np.ones_like(images.crowd)), "unusable classes")
    assert "no class has one, 36 crowds in all" in nothing.line
    absent = found(without_objects_of(healthy(), label=2), "absent classes")
    assert (absent.level, absent.line) == (WARNING, "1 of 3 classes have no object: fox")


def test_duplicate_boxes_are_those_of_all_pairs():
    random = np.random.default_rng(3)
    images = healthy(6)
    images = replace(images, boxes=np.float32(images.boxes + random.normal(0, 1, images.boxes.shape)))
    for number, label in ((0, 1), (3, 2), (3, 0), (5, 0)):
        some = np.flatnonzero((images.owners == number) & (images.classes == label))[0]
        for _ in range(2):
            images = with_boxes(images, number, images.boxes[some] + random.normal(0, 1.5, 4), label=label)
    expected = set()
    for one in range(len(images.boxes)):
        for other in range(one):
            if (images.owners[one], images.classes[one]) == (images.owners[other], images.classes[other]):
                low = np.maximum(images.boxes[one, :2], images.boxes[other, :2])
                common = np.clip(np.minimum(images.boxes[one, 2:], images.boxes[other, 2:]) - low, 0, None).prod()
                areas = [(box[2:] - box[:2]).prod() for box in images.boxes[[one, other]]]
                if common / (sum(areas) - common) > 0.8:
                    expected.add((other, one))
    assert {tuple(sorted(pair)) for pair in duplicate_boxes(images).tolist()} == expected
    assert len(expected) > 4


def resized_boxes(images, sides, which=slice(None)):
    """The images with boxes of these sides at the same corners."""
    boxes = images.boxes.copy()
    boxes[which, 2:] = boxes[which, :2] + sides
    return replace(images, boxes=boxes)


FOXES, RETINANET = np.s_[1::3], {"model": "retinanet-resnet18"}
TINY = np.random.default_rng(0).uniform(3, 13, (120, 1))


@pytest.mark.parametrize(
    ("sides", "which", "changes", "before", "after", "setting", "limit"),
    [
        (15, FOXES, {}, (0.3, 0.4), (0, 0.05), "anchor_scale", 4),
        (TINY, slice(None), RETINANET, (0.9, 1), (0.5, 0.75), "anchor_scale", 2),
        (18, slice(None), {"jitter_min": 0.1}, (0.9, 1), (0, 0.1), "jitter_min", 0.9),
        (np.array([16, 96]), slice(None), {}, (0.5, 1), (0, 0.1), "anchor_scale", 9),
    ],
)
def test_settings_at_which_more_objects_match(sides, which, changes, before, after, setting, limit):
    usual = {"model": "efficientdet-d0", "image_size": 128}
    changes = usual | (changes or {"jitter_min": 0.8, "jitter_max": 1.2})
    hparams = hyperparameters_of(changes.pop("model"), changes)
    images = resized_boxes(healthy(40), sides, which)
    finding = found(images, "anchors", hparams)
    views = [InputView(images=images, hparams=hparams).after(**settings) for settings in ({}, finding.settings)]
    for view, (low, high) in zip(views, (before, after), strict=True):
        assert low <= view.unmatched.mean() <= high
    assert views[1].unmatched_in_training.mean() < 0.8 * views[0].unmatched_in_training.mean()
    assert finding.settings.get(setting, 0) < limit
    fixed = [one.settings for one in quick_findings(images, hparams, fixed={setting}) if one.about == "anchors"]
    assert all(setting not in settings for settings in fixed)


def test_fixed_anchors_are_kept():
    hparams, fixed = hyperparameters_of("efficientdet-d0", {"image_size": "512x288"}), {"anchor_scale", "aspect_ratios"}
    [settings, kept] = [
        one.settings
        for names in ((), fixed)
        for one in quick_findings(tiny_objects(45), hparams, fixed=names)
        if one.about == "anchors"
    ]
    assert settings.keys() >= {"anchor_scale", "jitter_min"}
    assert settings["jitter_min"] == 0.8  # together with other anchors, although either alone changes little
    assert not kept.keys() & fixed


def test_the_smallest_size_at_which_most_objects_match():
    images, hparams = tiny_objects(45), hyperparameters_of("efficientdet-d0", {})
    sizes = [f"{side}x{side // 2}" for side in (192, 320, 576)]
    usable = [smallest_usable_size(images, hparams, [size]) == size for size in sizes]
    assert usable == sorted(usable)
    assert smallest_usable_size(images, hparams, sizes) == sizes[usable.index(True)]
    assert smallest_usable_size(images, hparams, sizes[: usable.index(True)]) is None
    assert smallest_usable_size(images, hparams, [300, *sizes]) == sizes[usable.index(True)]
    assert smallest_usable_size(tiny_objects(45, count=0), hparams, sizes) == sizes[0]  # no object is unmatched


def test_task_alignment_needs_the_center_of_an_anchor_in_most_objects():
    """Smaller inputs are usable than with labels by IoU, but not any."""
    by_iou, aligned = (
        hyperparameters_of("efficientdet-d0", {"label_assignment": name}) for name in ("iou", "task_aligned")
    )
    images, sizes = tiny_objects(45), [f"{side}x{side // 2}" for side in (96, 192, 320, 448, 576)]
    usable = smallest_usable_size(images, aligned, sizes)
    boxes = InputView(images=images, hparams=aligned).after(image_size=usable).boxes
    rows, columns = ((4 + 8 * np.arange(count))[:, None] for count in (40, 80))  # the finest centers
    found = [
        ((low < centers) & (centers < high)).any(axis=0)
        for centers, low, high in ((rows, boxes[:, 0], boxes[:, 2]), (columns, boxes[:, 1], boxes[:, 3]))
    ]
    assert 0.4 < np.mean(found[0] & found[1]) < 0.9
    assert sizes.index(usable) < sizes.index(smallest_usable_size(images, by_iou, sizes))
    assert sizes.index(usable) > 0


def test_alike_images_in_both_splits():
    training, other = healthy(), healthy(6, seed=1)
    exact, again = training.encoded(5), Image.open(BytesIO(training.encoded(7)))
    near = jpeg(again.crop((2, 2, 126, 127)).resize((200, 190)), quality=50)
    validation = without_objects_of(with_pictures(other, {0: exact, 3: near}), label=2)
    examination = examine({"training": training, "validation": validation}, HPARAMS, images_read=100)
    lines = {finding.about: finding for finding in examination.findings}
    assert lines["copies in both splits"].line == (
        "1 pair of a training and a validation image with identical files: 0-5.jpg and 1-0.jpg; the AP will be "
        "too high; keep "
        "each pair in one split"
    )
    assert lines["near-duplicates in both splits"].line.startswith(
        "1 pair of a training and a validation image that look alike (possible near-duplicates): "
        "0-7.jpg and 1-3.jpg; if"
    )
    assert lines["absent classes"].line == "validation: 1 of 3 classes have no object: fox"


def test_broken_pictures_on_the_page(tmp_path):
    images = with_pictures(healthy(), {6: b"no image", 9: picture(np.random.default_rng(8), (128, 96))})
    examination = examine({"training": images}, HPARAMS, images_read=100)
    lines = [(finding.level, finding.line) for finding in examination.findings]
    assert (WARNING, "1 of 12 cannot be decoded: 0-6.jpg") in lines
    assert (WARNING, "1 of 12 differ in size from their labels (another image, or EXIF rotation): 0-9.jpg") in lines
    assert [number for number, _ in examination.splits[0].suspicious] == [6, 9]
    wide = examine({"training": WIDE}, HPARAMS, images_read=3)
    assert "--hparams=image_size=128x96" in write_page(tmp_path, wide).read_text(encoding="utf-8")
    assert numbers(wide)["splits"]["training"]["images_read"] == 3
    page = write_page(tmp_path, examination).read_text(encoding="utf-8")
    assert "2 warnings" in page
    assert "0-9.jpg: images of another size" in page
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((tmp_path / "doctor.json").read_text())["findings"] == numbers(examination)["findings"]
    (tmp_path / "doctor.html").unlink()
    (tmp_path / "doctor.html").mkdir()
    with pytest.raises(InputError, match=f"{tmp_path}/doctor.html: cannot be written .Is a directory."):
        write_page(tmp_path, examination)


def test_lines_of_findings():
    assert Finding("a", False, "1 of 2: evil\x1b[2J\u202e.jpg").line == r"1 of 2: evil\x1b[2J\u202e.jpg"
    settings = {"image_size": "512x384", "aspect_ratios": (0.5, 1.0, 2.0)}
    assert as_hparams(settings) == "image_size=512x384,aspect_ratios=0.5*1*2"


def of(folder, annotations, images, output):
    data = read_coco(object_annotations_file=str(folder / "annotations" / annotations))
    settings = {"num_shards": 1, "processes": 1, "max_bad_fraction": 0.01}
    convert(data, ConversionConfig(image_folder=str(folder / images), output_prefix=str(output), **settings))
    return read_splits(ExamineOptions(records=f"{output}-*"))["training"]


def test_blood_cells(data_folder, tmp_path):
    """docs/tutorials/bccd.md and the data's own README tell what is known of them."""
    splits = [
        of(data_folder / "bccd", f"instances_{split}.json", "images", tmp_path / split)
        for split in ("train", "val", "test")
    ]
    findings = {
        finding.about: finding for finding in quick_findings(splits[0], hyperparameters_of("efficientdet-d0", {}))
    }
    assert findings["padding"].line.startswith("25% of every 512x512 input is padding; image_size=512x384")
    assert findings["anchors"].settings["anchor_scale"] < 4
    assert sum(len(duplicate_boxes(images)) for images in splits) == 8
    assert [images.left_out for images in splits] == [
        ["BloodImage_00343.jpg: box [181, 329, 0, 0] (x, y, width, height) has no area"],
        ["BloodImage_00338.jpg: box [504, 337, 0, 0] (x, y, width, height) has no area"],
        [],
    ]
    some = [
        [number for number, name in enumerate(images.names) if name.startswith("BloodImage_0003")] for images in splits
    ]
    looks = [measure_images(images, chosen) for images, chosen in zip(splits, some, strict=True)]
    ((one, other, equal),) = alike_images(splits, looks)
    names = sorted(splits[split].names[number] for split, number in (one, other))
    assert (names, equal) == (["BloodImage_00037.jpg", "BloodImage_00038.jpg"], False)


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_nothing_alarming_in_coco(data_folder, split, tmp_path):
    images = of(data_folder / "coco_sample", f"instances_{split}.json", split, tmp_path / split)
    findings = quick_findings(images, hyperparameters_of("efficientdet-d0", {}))
    # Many objects are small, and 20 classes have no object in these images
    assert [finding.about for finding in findings if finding.level == WARNING] == ["anchors", "absent classes"]


def test_records_tell_what_their_conversion_refused(tmp_path, capsys):
    """Also of images that were dropped for it: their boxes are in no record."""
    for number in range(4):
        Image.new("RGB", (64, 48), (40 * number, 90, 9)).save(tmp_path / f"{number}.png")
    boxes = [(0, [1, 1, 30, 30]), (1, [2, 2, 30, 30]), (2, [99, 0, 5, 5]), (3, [9, 9, 30, 30]), (3, [9, 50, 30, 30])]
    content = {
        "images": [{"id": number, "file_name": f"{number}.png", "width": 64, "height": 48} for number in range(4)],
        "categories": [{"id": 1, "name": "cell"}],
        "annotations": [
            {"id": number, "image_id": image, "category_id": 1, "bbox": box}
            for number, (image, box) in enumerate(boxes, start=1)
        ],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    config = ConversionConfig(
        image_folder=str(tmp_path),
        output_prefix=str(tmp_path / "train"),
        num_shards=2,
        processes=1,
        max_bad_fraction=0.5,
    )
    convert(read_coco(object_annotations_file=str(tmp_path / "a.json")), config)
    efficientdet.examine(tmp_path / "train-*", output_dir=tmp_path / "out", image_size=128)
    printed = capsys.readouterr().out
    assert "warning  2 boxes are invalid and skipped: 2.png: box [99, 0, 5, 5] (x, y, width, height) lies" in printed
    assert "warning  1 image is invalid and skipped: 2.png: its only box was refused" in printed
    assert "3.png: box [9, 50, 30, 30]" in (tmp_path / "out" / "doctor.html").read_text(encoding="utf-8")


def test_small_objects_in_large_images_are_shown_in_tiles():
    """Plates of 45 pixels have 4 in an input of 128x96; in tiles they have the size that the tiles give them."""
    images = tiny_objects(45)
    hparams = hyperparameters_of("efficientdet-d0", {"image_size": "128x72"})
    finding = found(images, "tiles", hparams)
    tile = int(re.search(r"tile_size=(\d+)", finding.line)[1])
    assert finding.settings == {}
    assert "has 4 pixels in an input of 128x72" in finding.line or "has 5 pixels" in finding.line
    view = InputView.of(images, hyperparameters_of("efficientdet-d0", {"image_size": 128, "tile_size": tile}))
    assert view.scale == pytest.approx(128 / tile)
    assert view.padding == 0
    np.testing.assert_allclose(
        view.boxes[:, 2:] - view.boxes[:, :2],
        np.minimum(images.boxes[:, 2:] - images.boxes[:, :2], tile) * 128 / tile,
        rtol=1e-4,
    )
    assert (view.boxes <= 128).all()
