"""Records out of labels of any format: the same images give the same bytes, and the program around it."""

import json
import os
import re
import sys
import zipfile
from pathlib import Path

import forked_programs
import pytest
from label_sets import NAMES, PICTURES, WRITERS, Label, Picture, draw, read_parts, write, write_yolo, yolo_line
from PIL import Image
from pycocotools.coco import COCO
from text_tables import rows

from dataset.class_names import ClassNames
from dataset.conversion.class_numbering import VOC_NAMES
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shards import convert
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_tfrecord.py"
LABEL_MAP = ClassNames((2, 5, 9), ("bolt", "nut", "washer"))


def call(*arguments, cwd):
    return forked_programs.run([sys.executable, str(SCRIPT), *map(str, arguments)], env=os.environ, cwd=cwd)


def records_of(annotations, images, output_prefix, *, label_map=LABEL_MAP, with_masks=False):
    """The bytes of the records of all images."""
    [data] = read_parts(annotations, images, with_masks=with_masks, label_map=label_map).values()
    convert(
        data,
        ConversionConfig(
            image_folder=str(images),
            output_prefix=str(output_prefix),
            num_shards=1,
            processes=1,
            max_bad_fraction=0.0,
            include_masks=with_masks,
        ),
        log=lambda line: None,
    )
    return Path(f"{output_prefix}-00000-of-00001.tfrecord").read_bytes()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    draw(PICTURES, folder)
    return folder


@pytest.fixture(scope="module")
def voc_records(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("voc")
    WRITERS["voc"](PICTURES, folder / "labels")
    return records_of(folder / "labels", photos, folder / "out" / "train")


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("voc", "open_images")])
def test_the_same_labels_of_any_format_give_the_same_records(name, photos, voc_records, tmp_path):
    WRITERS[name](PICTURES, tmp_path / "labels")
    assert records_of(tmp_path / "labels", photos, tmp_path / "out" / "train") == voc_records


def test_open_images_has_no_images_without_objects(photos, tmp_path):
    with_objects = [picture for picture in PICTURES if picture.labels]
    for name in ("voc", "open_images"):
        WRITERS[name](with_objects, tmp_path / name)
    assert records_of(tmp_path / "open_images", photos, tmp_path / "a" / "train") == records_of(
        tmp_path / "voc", photos, tmp_path / "b" / "train"
    )


def test_five_real_formats_give_the_same_records(data_folder, tmp_path):
    """Of VOC alone are the difficult objects, and ids of images of COCO alone: both taken out of copies."""
    real, given = data_folder / "formats_voc100" / "gts", tmp_path / "given"
    sizes = {}
    for path in sorted((real / "pascalvoc_format").glob("*.xml")):
        text = path.read_text()
        write(given / "voc" / path.name, text.replace("<difficult>1", "<difficult>0"))
        sizes[path.stem] = [int(re.search(f"<{side}>(\\d+)<", text)[1]) for side in ("width", "height")]
    for stem, size in sizes.items():
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", size, (len(sizes), 9, 9)).save(tmp_path / "photos" / f"{stem}.jpg")
    content = json.loads((real / "coco_format_v1" / "instances_default.json").read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    number = {name: place for place, name in enumerate(sorted(names.values()), start=1)}
    for image in content["images"]:
        image["id"] = number[image["file_name"]]
    for annotation in content["annotations"]:
        annotation["image_id"] = number[names[annotation["image_id"]]]
    write(given / "coco" / "instances.json", json.dumps(content))
    voc = ClassNames(tuple(range(1, 21)), VOC_NAMES)
    wanted = records_of(given / "voc", tmp_path / "photos", tmp_path / "voc" / "train", label_map=None)
    for name, annotations, label_map in (
        ("coco", given / "coco", voc),
        ("cvat", real / "cvat_format", None),
        ("yolo", real / "yolo_format", voc),
        ("open images", real / "openimages_format", voc),
    ):
        found = records_of(annotations, tmp_path / "photos", tmp_path / name / "train", label_map=label_map)
        assert found == wanted, name


def test_outlines_of_any_format_give_the_same_masks(photos, tmp_path):
    outline = [3.25, 4.5, 40, 6.75, 22.5, 40.25]
    shares = " ".join(f"{value / (48 if place % 2 else 64):.6f}" for place, value in enumerate(outline))
    points = [outline[place : place + 2] for place in (0, 2, 4)]
    write(tmp_path / "yolo" / "classes.txt", "nut\n")
    write(tmp_path / "yolo" / "a.txt", f"0 {shares}\n")
    write(
        tmp_path / "cvat" / "a.xml",
        '<annotations><image name="a.jpg" width="64" height="48"><polygon label="nut" points="'
        + ";".join(f"{x},{y}" for x, y in points)
        + '"/></image></annotations>',
    )
    write(
        tmp_path / "labelme" / "a.json",
        json.dumps(
            {
                "imagePath": "a.jpg",
                "imageHeight": 48,
                "imageWidth": 64,
                "shapes": [{"label": "nut", "points": points, "shape_type": "polygon"}],
            }
        ),
    )
    write(
        tmp_path / "coco" / "a.json",
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "a.jpg", "width": 64, "height": 48}],
                "categories": [{"id": 5, "name": "nut"}],
                "annotations": [
                    {"image_id": 1, "category_id": 5, "bbox": [3.25, 4.5, 36.75, 35.75], "segmentation": [outline]}
                ],
            }
        ),
    )
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").symlink_to(photos / "a.jpg")
    found = {
        name: records_of(tmp_path / name, tmp_path / "photos", tmp_path / name / "train", with_masks=True)
        for name in ("coco", "yolo", "cvat", "labelme")
    }
    assert b"image/object/mask" in found["coco"]
    assert [name for name, content in found.items() if content != found["coco"]] == []


def test_from_a_folder_of_yolo_labels_to_records_of_train_and_val(tmp_path):
    pictures = [Picture(f"p{number}.jpg", 40, 30, (Label(NAMES[number % 3], 4, 5, 20, 25),)) for number in range(9)]
    draw(pictures, tmp_path / "data" / "images")
    write_yolo(pictures, tmp_path / "data" / "labels")
    done = call("--images=data", "--output_dir=out", "--val_fraction=0.34", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not used" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "labels: YOLO, because data/labels/p0.txt is a file of YOLO labels"
    assert lines[1].startswith("split: 3 images for val, 6 for train")
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == sorted(
        f"{split}{end}"
        for split in ("train", "val")
        for end in ("-00000-of-00001.tfrecord", ".classes.json", ".instances.json", ".report.json")
    )
    classes = json.loads((tmp_path / "out" / "train.classes.json").read_text())["categories"]
    assert classes == [{"id": place, "name": name} for place, name in enumerate(NAMES)]
    index = index_records([str(tmp_path / "out" / "val-00000-of-00001.tfrecord")])
    found = ground_truth_of_records(index, ClassNames((0, 1, 2), NAMES))["annotations"]
    assert sorted(one["category_id"] for one in found) == [0, 1, 2]  # a third of each class
    assert [one["bbox"] for one in found] == [pytest.approx([4, 5, 16, 20], abs=1e-4)] * 3
    assert len(COCO(str(tmp_path / "out" / "val.instances.json")).anns) == 3
    refused = call("--images=data", "--output_dir=out", "--val_fraction=0", cwd=tmp_path)
    assert refused.returncode == 2
    assert "val-00000-of-00001.tfrecord is left from another conversion, and these labels have no val" in refused.stderr


def test_renamed_images_stay_in_their_split(tmp_path):
    """Also those whose records have another encoding: PNGs."""
    sizes = {f"p{number}.{('jpg', 'png')[number % 2]}": 40 + number for number in range(9)}
    pictures = [Picture(name, side, 30, (Label(NAMES[0], 4, 5, 20, 25),)) for name, side in sizes.items()]
    draw(pictures, tmp_path / "photos")
    WRITERS["coco"](pictures, tmp_path / "labels.json")
    flags = ("--images=photos", "--annotations=labels.json", "--val_fraction=0.4")
    assert call(*flags, "--output_dir=first", cwd=tmp_path).returncode == 0
    renamed = [picture._replace(name=f"sub/{picture.width}{picture.name[2:]}") for picture in pictures]
    (tmp_path / "photos" / "sub").mkdir()
    for picture, other in zip(pictures, renamed, strict=True):
        (tmp_path / "photos" / picture.name).rename(tmp_path / "photos" / other.name)
    WRITERS["coco"](renamed, tmp_path / "labels.json")
    done = call(*flags, "--splits_of=first", "--output_dir=second", "--val_fraction=0.1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")

    def widths(folder, split):
        content = json.loads((tmp_path / folder / f"{split}.instances.json").read_text())
        return sorted(image["width"] for image in content["images"])

    assert len(widths("first", "val")) == 4
    for split in ("train", "val"):
        assert widths("first", split) == widths("second", split)
    told = call(*flags, "--output_dir=second", "--val_fraction=0.8", cwd=tmp_path)
    assert (told.returncode, "images of val, such as sub/" in told.stdout) == (0, True)
    assert "were in train of the earlier records in second" in told.stdout
    again = call(*flags, "--output_dir=second", "--val_fraction=0.8", "--splits_of=first", cwd=tmp_path)
    assert (again.returncode, "were in train" in again.stdout) == (0, False)
    refused = call(*flags, "--splits_of=photos", "--output_dir=third", cwd=tmp_path)
    assert (refused.returncode, "photos: has no train.instances.json" in refused.stderr) == (2, True)


def test_sets_with_equal_names_in_two_folders(tmp_path):
    """The names of each file are those of the images beside it, also where a third set lies above."""
    for place in ("", "a", "b"):
        draw(PICTURES[:2], tmp_path / place / "photos")
    for place, chosen in (("a", PICTURES[:2]), ("b", PICTURES[:1])):
        WRITERS["coco"](chosen, tmp_path / place / "labels")
    done = call("--images=.", "--val_fraction=0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    images = json.loads((tmp_path / "records" / "train.instances.json").read_text())["images"]
    names = [picture.name for picture in PICTURES[:2]]
    assert sorted(image["file_name"] for image in images) == sorted(
        f"{place}/photos/{name}" for place, name in [("a", names[0]), ("a", names[1]), ("b", names[0])]
    )


def test_images_that_the_labels_do_not_name(tmp_path):
    """labelImg writes no XML file for an image without objects."""
    draw(PICTURES, tmp_path / "photos")
    WRITERS["voc"](PICTURES[:2], tmp_path / "labels")
    done = call("--images=photos", "--annotations=labels", "--val_fraction=0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not used: 2 of the 4 images in photos, such as c.jpg, because the labels do not name them" in done.stdout


def test_images_of_val_that_are_in_train_are_told(tmp_path):
    """As in ultralytics' coco128."""
    draw(PICTURES[:2], tmp_path / "images" / "train2017")
    write(tmp_path / "labels" / "train2017" / "a.txt", yolo_line(PICTURES[0], PICTURES[0].labels[0]))
    write(
        tmp_path / "coco128.yaml",
        "path: ../datasets/coco128\ntrain: images/train2017\nval: images/train2017\ntest:\n"
        "names:\n  0: washer\n  1: bolt\n  2: nut\n",
    )
    done = call("--images=.", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "warning: 2 of the 2 images of val are also in train" in done.stdout
    again = call("--images=.", cwd=tmp_path)  # the records lie among the images
    assert again.returncode == 0
    assert "1 of 1 shards are complete and reused" in again.stdout


def test_names_of_files_that_are_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xe9"
    os.mkdir(folder)
    draw(PICTURES[:1], Path(os.fsdecode(folder)))
    write(Path(os.fsdecode(folder), "a.txt"), yolo_line(PICTURES[0], PICTURES[0].labels[0]))
    done = call("--images=.", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()) == (
        2,
        ["labels: YOLO, because \\udce9/a.txt is a file of YOLO labels"],
    )
    assert r".: 1 files have names that are not UTF-8, such as '\udce9/a.txt'; rename them, for example" in done.stderr
    assert len(done.stderr.splitlines()) == 1


MISTAKES = rows("""
'' | --images=: no such folder; expected the folder with the images
--images=photos/a.jpg | --images=photos/a.jpg: is a file; expected the folder with the images
--images=a.zip | --images=a.zip: is a zip archive: unpack it, with python -m zipfile -e FILE FOLDER
--images=LONG | no such folder
--images=photos --annotations=LONG | no such file or folder
--images=photos --annotations=voc --val_fraction=0 --output_dir=LONG | cannot write x
--images=photos --annotations=both | both: holds labels of 2 formats (both/b.xml is a Pascal VOC annotation; both
--images=photos --annotations=both/b.xml --include_masks | Pascal VOC labels have only boxes
--images=phone | phone: 1 files of the format .heic are not read, such as IMG_1.HEIC: save them as JPEG or PNG
""")


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_end_in_one_line(tmp_path, arguments, message):
    draw(PICTURES[:1], tmp_path / "photos")
    write(tmp_path / "both" / "a.txt", yolo_line(PICTURES[0], PICTURES[0].labels[0]))
    write(tmp_path / "both" / "b.xml", "<annotation/>")
    WRITERS["voc"](PICTURES[:1], tmp_path / "voc")
    for name, text in (("IMG_1.HEIC", "ftypheic"), ("IMG_1.txt", "0 0.5 0.5 0.1 0.1\n"), ("classes.txt", "nut\n")):
        write(tmp_path / "phone" / name, text)
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    done = call("--output_dir=out", *arguments.replace("LONG", "x" * 300).split(), cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
