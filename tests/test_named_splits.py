"""Folders, files and lists named train, val and test: held-out images are never trained on, in any format."""

import os
import sys
from pathlib import Path

import forked_programs
import pytest
from label_sets import (
    NAMES,
    PICTURES,
    WRITERS,
    draw,
    read_parts,
    write,
    write_coco,
    write_csv,
    write_cvat,
    write_labelme,
    write_voc,
    write_yolo,
)

from dataset.conversion.named_splits import split_of_folder, split_of_root
from program_support.errors import InputError

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_tfrecord.py"
LABELED = tuple(picture for picture in PICTURES if picture.labels)


def splits_of(annotations, images=None):
    """Split -> the file names of its images."""
    parts = read_parts(annotations, images or annotations)
    assert all(data.listed_boxes == sum(len(image.objects) for image in data.images) for data in parts.values())
    return {split: [image.file_name for image in data.images] for split, data in parts.items()}


def placed(*folders):
    """The labeled images in these folders, one after the other."""
    return [picture._replace(name=f"{folder}{picture.name}") for folder, picture in zip(folders, LABELED, strict=True)]


def draw_with_labels(name, pictures, folder):
    """Images, and beside each of VOC and labelme its file, or one file of labels."""
    draw(pictures, folder)
    if name in ("voc", "labelme"):
        for picture in pictures:
            WRITERS[name]([picture], (folder / picture.name).parent)
    else:
        WRITERS[name](pictures, folder)


@pytest.mark.parametrize("name", ["coco", "voc", "yolo", "csv", "cvat", "labelme"])
@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("test/", "test/", "test/"), ["test", "test", "test"]),
        (("valid/", "valid/", "valid/"), ["val", "val", "val"]),
        (("valid/", "test_images/", "test_images/"), ["val", "test", "test"]),
        (("train/", "train/", "test/"), ["train", "train", "test"]),
        (("", "", "test/"), ["train", "train", "test"]),
        (("images/", "images/", "images/test/"), ["train", "train", "test"]),
    ],
)
def test_folders_of_the_images_keep_their_split(name, folders, splits, tmp_path):
    pictures = placed(*folders)
    draw_with_labels(name, pictures, tmp_path)
    expected = {}
    for split, picture in zip(splits, pictures, strict=True):
        expected.setdefault(split, []).append(picture.name)
    assert {split: sorted(names) for split, names in splits_of(tmp_path).items()} == {
        split: sorted(names) for split, names in expected.items()
    }


def test_folders_of_the_labels_are_splits_of_flat_images(tmp_path):
    draw(LABELED, tmp_path / "images")
    for name, writer in (("voc", write_voc), ("labelme", write_labelme), ("yolo", write_yolo)):
        labels = tmp_path / name
        writer(LABELED[:2], labels / "train")
        writer(LABELED[2:], labels / "test")
        if name == "yolo":
            (labels / "train" / "classes.txt").rename(labels / "classes.txt")
            (labels / "test" / "classes.txt").unlink()
        assert splits_of(labels, tmp_path / "images") == {"train": ["a.jpg", "b.jpg"], "test": ["d.jpg"]}, name
        for path in [*labels.rglob("*/a.*"), *labels.rglob("*/b.*")]:
            path.unlink()
    for name in ("voc", "labelme"):
        assert splits_of(tmp_path / name, tmp_path / "images") == {"test": ["d.jpg"]}, name


def test_names_of_files_are_splits(tmp_path):
    draw(LABELED, tmp_path / "images")
    for ending, writer in (("json", write_coco), ("csv", write_csv)):
        folder = tmp_path / ending
        writer(LABELED[2:], folder / f"instances_test2017.{ending}")
        for given in (folder, folder / f"instances_test2017.{ending}"):
            assert splits_of(given, tmp_path / "images") == {"test": ["d.jpg"]}
        writer(LABELED, folder / f"all.{ending}")  # held-out images are in it, too
        assert splits_of(folder, tmp_path / "images") == {"train": ["a.jpg", "b.jpg"], "test": ["d.jpg"]}
        (folder / f"all.{ending}").unlink()
        writer(LABELED[:2], folder / f"instances_val2017.{ending}")
        assert splits_of(folder, tmp_path / "images") == {"val": ["a.jpg", "b.jpg"], "test": ["d.jpg"]}


def test_a_file_of_train_with_a_held_out_folder(tmp_path):
    pictures = placed("train/", "train/", "test/")
    draw(pictures, tmp_path / "images")
    write_coco(pictures, tmp_path / "train.json")
    assert splits_of(tmp_path / "train.json", tmp_path / "images") == {
        "train": ["train/a.jpg", "train/b.jpg"],
        "test": ["test/d.jpg"],
    }


def test_data_yaml(tmp_path):
    pictures = placed("images/", "images/val/", "images/test/")
    draw(pictures, tmp_path)
    write_yolo([picture._replace(name=picture.name.replace("images/", "labels/")) for picture in pictures], tmp_path)
    (tmp_path / "classes.txt").unlink()
    names = f"names: [{', '.join(NAMES)}]\n"
    for settings, expected in (
        ("test: images/test\n", {"test": ["images/test/d.jpg"]}),
        ("val: images/val\ntest: images/test\n", {"val": ["images/val/b.jpg"], "test": ["images/test/d.jpg"]}),
        (
            "train: images\nval: images/val\n",
            {"train": ["images/a.jpg"], "val": ["images/val/b.jpg"], "test": ["images/test/d.jpg"]},
        ),
        ("", {"train": ["images/a.jpg"], "val": ["images/val/b.jpg"], "test": ["images/test/d.jpg"]}),
    ):
        write(tmp_path / "data.yaml", names + settings)
        assert splits_of(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "content"), [("classes.txt", "\n".join(NAMES)), ("data.yaml", f"names: [{', '.join(NAMES)}]")]
)
def test_class_names_of_yolo_beside_the_folder_of_the_labels(tmp_path, name, content):
    draw(LABELED, tmp_path / "images")
    write_yolo(LABELED, tmp_path / "labels")
    (tmp_path / "labels" / "classes.txt").unlink()
    with pytest.raises(InputError, match="expected one of them next to the labels or one folder above"):
        splits_of(tmp_path / "labels", tmp_path / "images")
    write(tmp_path / name, content)
    write(tmp_path / "other" / "classes.txt", "of another data set")
    assert splits_of(tmp_path / "labels", tmp_path / "images") == {"": ["a.jpg", "b.jpg", "d.jpg"]}


def test_image_sets_of_voc(tmp_path):
    draw(LABELED, tmp_path / "JPEGImages")
    write_voc(LABELED, tmp_path / "Annotations")
    write(tmp_path / "ImageSets" / "Main" / "test.txt", "d\n")
    write(tmp_path / "ImageSets" / "Main" / "bolt_test.txt", "d 1\n")
    assert splits_of(tmp_path) == {"train": ["JPEGImages/a.jpg", "JPEGImages/b.jpg"], "test": ["JPEGImages/d.jpg"]}
    write(tmp_path / "ImageSets" / "Main" / "test.txt", "a\nb\nd\n")
    assert splits_of(tmp_path) == {"test": [f"JPEGImages/{name}.jpg" for name in "abd"]}


def test_subsets_of_cvat(tmp_path):
    draw(LABELED, tmp_path)
    write_cvat(LABELED, tmp_path / "a.xml")
    text = (tmp_path / "a.xml").read_text()
    write(tmp_path / "a.xml", text.replace('name="d.jpg"', 'name="d.jpg" subset="Test"'))
    assert splits_of(tmp_path) == {"train": ["a.jpg", "b.jpg"], "test": ["d.jpg"]}


def test_the_given_folder_may_be_a_split(tmp_path):
    for split in ("train", "test"):
        draw(LABELED, tmp_path / "photos" / split / "images")
        write_yolo(LABELED, tmp_path / "photos" / split / "labels")
    for place in ("images", "."):
        images = tmp_path / "photos" / "test" / place
        assert [*splits_of(tmp_path / "photos" / "test", images)] == ["test"]
        assert split_of_root(images) == "test"
    draw(LABELED, tmp_path / "alone" / "test")
    write_yolo(LABELED, tmp_path / "alone" / "test")
    assert [*splits_of(tmp_path / "alone" / "test")] == [""]  # a folder of this name may hold anything


def test_names_of_folders():
    for name, split in (
        ("test", "test"),
        ("Test_Images", "test"),
        ("labels-val", "val"),
        ("val2017", "val"),
        ("2017_test", "test"),
        ("training_set", "train"),
        ("crash_test", None),
        ("images", None),
        ("contest", None),
        ("train_val", None),
    ):
        assert split_of_folder(name) == split, name


def test_a_conversion_of_held_out_images_writes_only_their_records(tmp_path):
    pictures = placed("test/", "test/", "test/")
    draw_with_labels("voc", pictures, tmp_path / "ts")
    done = forked_programs.run([sys.executable, str(SCRIPT), "--images=ts"], env=os.environ, cwd=tmp_path)
    assert done.returncode == 0
    assert "split: test only, as folders or files are named: no train records are written" in done.stdout
    assert [path.name for path in sorted((tmp_path / "records").glob("*.tfrecord"))] == ["test-00000-of-00001.tfrecord"]
