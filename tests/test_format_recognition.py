"""Labels of any format: recognized by content, read in their tools' layouts, refused in one line where broken."""

import json
import random
import re
from pathlib import Path

import pytest
import tiny_records
from label_sets import (
    NAMES,
    PICTURES,
    WRITERS,
    Picture,
    check_accepted,
    draw,
    read_parts,
    write,
    write_coco,
    write_csv,
    write_cvat,
    write_labelme,
    write_open_images,
    write_retinanet_csv,
    write_voc,
    write_yolo,
    yolo_line,
)
from PIL import Image
from standins import install
from text_tables import rows

from dataset.class_names import ClassNames
from dataset.conversion.any_format import recognize
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.files.file_kinds import label_formats
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "data.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    draw(PICTURES, folder)
    return folder


def content(data):
    """File name -> [(class, left, top, right, bottom)] in hundredths of a pixel."""
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
    return {
        image.file_name: [
            (
                names[one.category_id],
                *(
                    round(side, 2)
                    for side in (
                        one.box_xywh[0],
                        one.box_xywh[1],
                        one.box_xywh[0] + one.box_xywh[2],
                        one.box_xywh[1] + one.box_xywh[3],
                    )
                ),
            )
            for one in image.objects
        ]
        for image in data.images
    }


def drawn(pictures):
    return {picture.name: sorted(picture.labels, key=lambda label: (label.top, label.left)) for picture in pictures}


def refusal(annotations, images, **settings):
    with pytest.raises(InputError) as caught:
        [check_accepted(part) for part in read_parts(annotations, images, **settings).values()]
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500
    return message


# Recognized


def test_a_whole_file_with_a_wrong_extension_is_read(tmp_path, photos):
    for name in ("coco", "cvat", "csv"):
        WRITERS[name](PICTURES, tmp_path / name)
        [file] = recognize(str(tmp_path / name)).files
        file.rename(tmp_path / name / "labels.dat")
        [data] = read_parts(tmp_path / name / "labels.dat", photos).values()
        assert content(data) == drawn(PICTURES)


def test_what_is_not_recognized(tmp_path):
    write(tmp_path / "notes.md", "words")
    for path in (tmp_path, tmp_path / "notes.md"):
        with pytest.raises(InputError, match=r"holds no labels of a known format; expected a COCO .* or --format"):
            recognize(str(path))
    with pytest.raises(InputError, match="no such file or folder"):
        recognize(str(tmp_path / "gone"))
    write(tmp_path / "a.zip", "PK\x03\x04rest")
    with pytest.raises(InputError, match="is a zip archive; expected"):
        recognize(str(tmp_path / "a.zip"))


def test_records_are_named_with_the_programs_that_read_them(tmp_path):
    records = tmp_path / "deep" / "things.tfrecord"
    records.parent.mkdir()
    tiny_records.write(records, [tiny_records.example(0)])
    for labels in (tmp_path, records):
        with pytest.raises(InputError, match=r"things\.tfrecord holds records already; train\.py, eval\.py and doctor"):
            recognize(str(labels))


def test_other_tables_beside_the_labels(tmp_path):
    write_coco(PICTURES, tmp_path / "coco.json")
    write(tmp_path / "licenses.csv", "image,author,year,page,kind,size\na.jpg,me,2020,7,x,2\n")
    assert recognize(str(tmp_path)).format.name == "coco"
    assert recognize(str(tmp_path / "licenses.csv")).format.name == "csv"  # whose reader knows what is missing
    write_csv(PICTURES, tmp_path / "boxes.csv")
    with pytest.raises(InputError, match=r"coco\.json is a COCO json; .*boxes\.csv is a csv table"):
        recognize(str(tmp_path))
    for name in ("coco.json", "boxes.csv"):
        (tmp_path / name).unlink()
    with pytest.raises(
        InputError, match=r"licenses\.csv: its first line 'image,author,.* lacks columns for class, left"
    ):
        recognize(str(tmp_path))


def test_two_formats_are_ambiguous_until_one_is_named(tmp_path, photos):
    write_voc(PICTURES, tmp_path)
    write_yolo(PICTURES, tmp_path)
    with pytest.raises(InputError, match=r"holds labels of 2 formats .*the file or folder to convert, or --format=voc"):
        recognize(str(tmp_path))
    for label_format in ("voc", "yolo"):
        assert content(read_parts(tmp_path, photos, label_format=label_format)[""]) == drawn(PICTURES)
    assert "holds no file of CVAT labels" in refusal(tmp_path, photos, label_format="cvat")


# Read


@pytest.mark.parametrize("name", WRITERS)
def test_classes_boxes_and_images(name, tmp_path, photos):
    WRITERS[name](PICTURES, tmp_path)
    found = recognize(str(tmp_path))
    assert found.format.name == recognize(str(found.files[0])).format.name == name
    assert found.reason.startswith(f"labels: {label_formats()[name].title}, because {tmp_path}")
    if name == "open_images":
        return  # names its images otherwise
    [data] = read_parts(tmp_path, photos).values()
    assert content(data) == drawn(PICTURES)
    assert data.listed_boxes == 6
    if name != "dota":  # has no sizes
        assert [image.size for image in data.images] == [(picture.height, picture.width) for picture in PICTURES]
    numbered = {"coco": (3, 10, 17), "yolo": (0, 1, 2)}.get(name)
    assert data.class_names == (
        ClassNames(numbered, NAMES) if numbered else ClassNames((1, 2, 3), ("bolt", "nut", "washer"))
    )


def test_label_map(tmp_path, photos):
    write_yolo(PICTURES, tmp_path)
    given = ClassNames((4, 5, 6, 7), ("nut", "washer", "screw", "bolt"))
    [data] = read_parts(tmp_path, photos, label_map=given).values()
    assert (content(data), data.class_names) == (drawn(PICTURES), given)
    with pytest.raises(
        InputError, match="class 'nut' of an object is not in the label map; expected one of bolt, washer"
    ):
        read_parts(tmp_path, photos, label_map=ClassNames((1, 2), ("bolt", "washer")))


DATA = """# Roboflow
train: ../train/images
val: ../valid/images
test: ../test/images

nc: 3
names: ['washer', 'bolt', 'nut']
"""
ULTRALYTICS = """path: /content/datasets/nuts
train: images/train
val:
  - images/val
names:
  0: washer
  1: bolt
  2: nut
"""


def in_folders(template):
    """The images, the last of them in val."""
    return [
        picture._replace(name=template.format(split="val" if picture is PICTURES[-1] else "train", name=picture.name))
        for picture in PICTURES
    ]


def test_yolo_as_roboflow_lays_it_out(tmp_path):
    pictures = [
        picture._replace(name=picture.name.replace("val/", "valid/")) for picture in in_folders("{split}/images/{name}")
    ]
    draw(pictures, tmp_path)
    for picture in pictures:
        write(
            tmp_path / picture.name.replace("images", "labels").replace(".jpg", ".txt"),
            "\n".join(yolo_line(picture, label) for label in picture.labels),
        )
    write(tmp_path / "data.yaml", DATA)
    write(tmp_path / "README.roboflow.txt", "words\n")
    for annotations in (tmp_path, tmp_path / "data.yaml"):
        parts = read_parts(annotations, tmp_path)
        assert {split: content(data) for split, data in parts.items()} == {
            "train": drawn(pictures[:3]),
            "val": drawn(pictures[3:]),
        }
        assert "test is '../test/images', which has no image" in parts["train"].noted[0].reason


@pytest.mark.parametrize("images", [".", "images"])
def test_yolo_as_ultralytics_lays_it_out(tmp_path, images):
    pictures = in_folders("images/{split}/{name}")
    draw(pictures, tmp_path)
    write_yolo(in_folders("labels/{split}/{name}"), tmp_path)
    (tmp_path / "classes.txt").unlink()
    write(tmp_path / "nuts.yaml", ULTRALYTICS)
    found = read_parts(tmp_path, tmp_path / images)
    prefix = "images/" if images == "." else ""
    assert {name: boxes for data in found.values() for name, boxes in content(data).items()} == {
        prefix + name.removeprefix("images/"): labels for name, labels in drawn(pictures).items()
    }
    assert [*found] == ["train", "val"]
    (tmp_path / "nuts.yaml").write_text("names: [yes, 007, nut]\nnc: 3\n")
    by_folders = read_parts(tmp_path, tmp_path / images)
    assert [*by_folders] == ["train", "val"]
    assert by_folders["val"].class_names.names == ("yes", "007", "nut")  # as they are written


def test_yolo_lists_of_darknet(tmp_path, photos):
    for picture in PICTURES:
        write(
            tmp_path / "obj_train_data" / picture.name.replace(".jpg", ".txt"),
            "\n".join(yolo_line(picture, label) for label in picture.labels),
        )
    write(
        tmp_path / "obj.data", "classes = 3\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\n"
    )
    write(tmp_path / "obj.names", "washer\nbolt\nnut\n")
    write(tmp_path / "train.txt", "".join(f"data/obj_train_data/{picture.name}\n" for picture in PICTURES[:2]))
    write(tmp_path / "valid.txt", "/home/me/data/c.jpg\nd.jpg\n")
    for annotations in (tmp_path, tmp_path / "obj.data"):
        found = read_parts(annotations, photos)
        assert {split: content(data) for split, data in found.items()} == {
            "train": drawn(PICTURES[:2]),
            "val": drawn(PICTURES[2:]),
        }


def test_yolo_outlines_and_keypoints(tmp_path, photos):
    write(tmp_path / "classes.txt", "nut\n")
    write(tmp_path / "a.txt", "0 0.25 0.5 0.5 0.25 0.75 0.5\n\n0 0.1 0.2 0.9 0.2 0.9 0.8 0.1 0.8\n")
    data = read_parts(tmp_path, photos, with_masks=True)[""]
    assert content(data)["a.jpg"] == [("nut", 6.4, 9.6, 57.6, 38.4), ("nut", 16, 12, 48, 24)]
    assert data.images[0].objects[1].segmentation == [[16, 24, 32, 12, 48, 24]]
    assert read_parts(tmp_path, photos)[""].images[0].objects[0].segmentation is None
    write(tmp_path / "a.txt", "0 0.5 0.5 0.5 0.5 0.1 0.1 0.2 0.2\n")
    write(tmp_path / "data.yaml", "names: [nut]\nnc: 1\nkpt_shape: [2, 2]\n")
    assert content(read_parts(tmp_path, photos)[""])["a.jpg"] == [("nut", 16, 12, 48, 36)]


def test_yolo_train_that_has_no_image(tmp_path):
    """A validation split without images is noted: Roboflow names it in any case."""
    draw(PICTURES, tmp_path / "images" / "train")
    write_yolo(PICTURES, tmp_path / "labels" / "train")
    for train, val, refused in (
        ("[images/train, images/trian2]", "", "images/trian2"),
        ("images/training", "images/train", "images/training"),
    ):
        write(tmp_path / "data.yaml", f"train: {train}\nval: {val}\nnames: [washer, bolt, nut]\n")
        assert f"data.yaml: train is '{refused}', which has no image in {tmp_path}; expected" in refusal(
            tmp_path, tmp_path
        )
    write(tmp_path / "data.yaml", "train: images/train\nval: images/valid\nnames: [washer, bolt, nut]\n")
    assert [*read_parts(tmp_path, tmp_path)] == ["train"]


def test_a_split_of_some_images_is_refused(tmp_path, photos):
    """Else test images would be trained on: a split of all images would be drawn."""
    pictures = [PICTURES[0]._replace(name="train/a.jpg"), PICTURES[1]._replace(name="test/b.jpg"), PICTURES[3]]
    draw(pictures, tmp_path / "images")
    write_yolo(pictures, tmp_path / "yolo")
    for picture in pictures:
        write_labelme([picture], (tmp_path / "labelme" / picture.name).parent)
    for name in ("yolo", "labelme"):
        told = refusal(tmp_path / name, tmp_path / "images")
        assert "1 of 3, such as d.jpg, are in no split named train, val or test; expected all or none" in told
    write_cvat(PICTURES, tmp_path / "cvat.xml")
    whole = (tmp_path / "cvat.xml").read_text()
    write(tmp_path / "cvat.xml", whole.replace('name="a.jpg"', 'name="a.jpg" subset="Train"'))
    assert "3 of 4, such as b.jpg, are in no split" in refusal(tmp_path / "cvat.xml", photos)


def test_several_files_that_no_name_tells_apart(tmp_path, photos):
    for name in ("first", "second"):
        write_coco(PICTURES, tmp_path / f"{name}.json")
    assert "images, such as a.jpg, are in several of the 2 files" in refusal(tmp_path, photos)
    for name in ("instances_train2017", "captions_train2017", "instances_val2017"):
        write_coco(PICTURES, tmp_path / "official" / f"{name}.json")
    assert [*read_parts(tmp_path / "official", photos)] == ["train", "val"]


@pytest.mark.parametrize("name", ["coco", "cvat", "label_studio", "csv"])
def test_batches_of_labels_are_one_data_set(tmp_path, photos, name):
    """As a labeling program exports them one after the other, with numbers of their own for classes and images."""
    labeled = tuple(picture for picture in PICTURES if picture.labels)
    for batch, pictures, names in (("first", labeled[:1], NAMES), ("second", labeled[1:], NAMES[::-1])):
        if name == "coco":
            write_coco(pictures, tmp_path / batch / "labels.json", names)
        else:
            WRITERS[name](pictures, tmp_path / batch)
    data = read_parts(tmp_path, photos)[""]
    assert {image: sorted(boxes) for image, boxes in content(data).items()} == {
        image: sorted(map(tuple, labels)) for image, labels in drawn(labeled).items()
    }
    assert len({image.image_id for image in data.images}) == len(labeled)
    for batch in ("first", "second"):  # a change in either is noticed
        [file] = [path for path in (tmp_path / batch).iterdir() if path.is_file()]
        file.write_text(file.read_text() + " \n")
        changed = read_parts(tmp_path, photos)[""]
        assert changed.fingerprint != data.fingerprint
        data = changed


def test_proposals_beside_the_labels_are_no_labels(tmp_path, photos):
    """As next_images.py writes them into a folder of the images."""
    write_coco(PICTURES[:2], tmp_path / "labels.json")
    with claimed_outputs(tmp_path / "next_images" / "coco.json", tmp_path / "next_images" / "yolo"):
        write_coco(PICTURES[2:], tmp_path / "next_images" / "coco.json")
        write_yolo(PICTURES[2:], tmp_path / "next_images" / "yolo" / "labels")
    assert [image.file_name for image in read_parts(tmp_path, photos)[""].images] == [one.name for one in PICTURES[:2]]
    assert recognize(str(tmp_path / "next_images" / "coco.json")).format.name == "coco"


def test_open_images_by_folders(tmp_path):
    for name, pictures in (("train", PICTURES[:2]), ("validation", PICTURES[3:])):
        draw(pictures, tmp_path / name)
        write_open_images(pictures, tmp_path / f"{name}-annotations-bbox.csv")
    found = read_parts(tmp_path, tmp_path)
    assert {split: [*content(data)] for split, data in found.items()} == {
        "train": ["train/a.jpg", "train/b.jpg"],
        "val": ["validation/d.jpg"],
    }
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "class-descriptions-boxable.csv").unlink()
    assert "has labels such as /m/" in refusal(tmp_path, tmp_path)


CVAT_IMAGE = '<annotations><image id="0" name="a.jpg" width="64" height="48">{}</image></annotations>'


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ('<box label="nut" xtl="1" ytl="2" xbr="11" ybr="6" rotation="90"/>', (4, -1, 8, 9)),
        ('<polygon label="nut" points="1,2;5,9.5;3,1"/>', (1, 1, 5, 9.5)),
        ('<ellipse label="nut" cx="10" cy="20" rx="4" ry="2" rotation="90"/>', (8, 16, 12, 24)),
        ('<mask label="nut" left="3" top="4" width="2" height="3" rle="1, 4, 1"/>', (3, 4, 5, 7)),
    ],
)
def test_cvat_shapes(tmp_path, photos, shape, box):
    write(tmp_path / "a.xml", CVAT_IMAGE.format(shape + '<points label="nut" points="1,2"/>'))
    data = read_parts(tmp_path / "a.xml", photos, with_masks="polygon" in shape or "ellipse" in shape)[""]
    assert content(data)["a.jpg"] == [("nut", *box)]
    assert "a points of" in data.noted[0].reason


def test_labelme_shapes(tmp_path, photos):
    shapes = [
        {"label": "nut", "shape_type": "circle", "points": [[10, 20], [13, 24]]},
        {"label": "bolt", "points": [[1, 2], [5, 2], [5, 9]], "group_id": 1},
        {"label": "bolt", "points": [[20, 30], [25, 30], [25, 39]], "group_id": 1},
        {"label": "bolt", "shape_type": "point", "points": [[1, 1]]},
    ]
    write(tmp_path / "a.json", json.dumps({"imagePath": "../elsewhere/a.jpg", "shapes": shapes}))
    data = read_parts(tmp_path, photos, with_masks=True)[""]
    assert content(data)["a.jpg"] == [("bolt", 1, 2, 25, 39), ("nut", 5, 15, 15, 25)]
    assert [len(one.segmentation) for one in data.images[0].objects] == [2, 1]
    assert data.images[0].size is None
    assert "a point encloses no area" in data.noted[0].reason


@pytest.mark.parametrize(
    "header",
    [
        "filename,xmin,ymin,xmax,ymax,class",
        "Class;x_min;y_min;x_max;y_max;Image",
        "image\tx1\ty1\tx2\ty2\tlabel",
        '"file name","xmin","ymin","xmax","ymax","label"',
        "",
    ],
)
def test_headers_of_csv_tables(tmp_path, photos, header):
    if header:
        separator = "\t" if "\t" in header else ";" if ";" in header else ","
        file_first = not header.startswith("Class")
        lines = [header]
        for picture in PICTURES:
            for name, *sides in picture.labels or [("", "", "", "", "")]:
                fields = [picture.name, *sides, name] if file_first else [name, *sides, picture.name]
                lines.append(separator.join(map(str, fields)))
        write(tmp_path / "boxes.csv", "\n".join(lines))
    else:
        write_retinanet_csv(PICTURES, tmp_path / "boxes.csv")
    data = read_parts(tmp_path / "boxes.csv", photos)[""]
    assert content(data) == drawn(PICTURES)
    assert "has no sizes" in data.noted[0].reason


def test_names_of_other_machines_are_found_below_the_folder_of_images(tmp_path):
    for name in ("train/a.jpg", "val/a.jpg", "val/B.JPG"):
        write(tmp_path / name, "")
    files = FolderFiles(tmp_path, (".jpg",))
    assert files.find("C:\\data\\val\\a.jpg") == "val/a.jpg"
    assert files.find("a.jpg", split="train") == "train/a.jpg"
    assert files.find("x/b.jpg") == "val/B.JPG"
    assert files.find("c.jpg") is None
    with pytest.raises(InputError, match=r"'a\.jpg' is ambiguous, it matches train/a\.jpg, val/a\.jpg"):
        files.find("a.jpg")
    images = ImageFolder(tmp_path)
    assert images.named("cam1/b.jpg") == images.named("cam1/b.jpg") == "val/B.JPG"
    expected = r"^names 'cam2/b\.jpg', and an earlier entry 'cam1/b\.jpg': both match 'val/B\.JPG'"
    with pytest.raises(InputError, match=expected):
        images.named("cam2/b.jpg")
    assert images.named(f"{tmp_path.resolve()}/val/a.jpg") == "val/a.jpg"
    assert images.named("/etc/passwd.png") == "etc/passwd.png"  # below it
    assert images.named("../../etc/shadow.png") == "etc/shadow.png"
    for name in ("a\0.jpg", "\udcff.jpg", "", 7, None):
        with pytest.raises(InputError, match=r"^has file name"):
            images.named(name)


def of_a_conversion(folder):
    write_coco(PICTURES[:1], folder / "records" / "train.instances.json")
    for end in (".classes.json", ".report.json", "-00000-of-00001.tfrecord"):
        write(folder / "records" / f"train{end}", "{}")


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "open_images"])
def test_records_may_lie_in_the_folder_of_the_labels(name, tmp_path, photos):
    of_a_conversion(tmp_path)
    assert content(read_parts(tmp_path, photos)["train"]) == drawn(PICTURES[:1])  # where there is nothing else
    WRITERS[name](PICTURES, tmp_path)
    assert content(read_parts(tmp_path, photos)[""]) == drawn(PICTURES)


WHOLE = "0 0.5 0.5 0.5 0.5\n"


def yolo_folder(folder, *, images, labels, names="classes.txt"):
    draw([Picture(name, 40, 20, ()) for name in images], folder)
    write(folder / names, "nut\n" if names == "classes.txt" else "names: {0: nut}\npath: .\n")
    for name in labels:
        write(folder / name, WHOLE)


def test_yolo_images_of_one_name_share_no_label_file(tmp_path):
    images = ["images/v1/0001.jpg", "images/v2/0001.jpg", "images/v2/0002.jpg"]
    yolo_folder(tmp_path / "videos", images=images, labels=["labels/v1/0001.txt", "labels/v2/0002.txt"])
    found = content(read_parts(tmp_path / "videos", tmp_path / "videos")[""])
    assert {name: len(boxes) for name, boxes in found.items()} == dict(zip(images, (1, 0, 1), strict=True))
    yolo_folder(tmp_path / "flat", images=images, labels=["labels/0001.txt"])
    assert r"0001.txt: matches several images, images/v1/0001.jpg, images/v2/0001.jpg; expected" in refusal(
        tmp_path / "flat", tmp_path / "flat"
    )
    yolo_folder(tmp_path / "suffixes", images=["a.jpg", "a.png"], labels=["a.txt"])
    assert "a.txt: matches several images, a.jpg, a.png" in refusal(tmp_path / "suffixes", tmp_path / "suffixes")
    yolo_folder(tmp_path / "copies", images=["images/a.jpg", "backup/a.jpg"], labels=["labels/a.txt"])
    assert "no image in the folder of backup/a.jpg has labels" in refusal(tmp_path / "copies", tmp_path / "copies")


def test_yolo_labels_without_image_belong_to_the_split_of_their_folder(tmp_path):
    yolo_folder(
        tmp_path,
        images=["train/images/a.jpg", "valid/images/b.jpg"],
        labels=["train/labels/a.txt", "valid/labels/b.txt", "valid/labels/gone.txt", "other/c.txt"],
    )
    (tmp_path / "classes.txt").unlink()
    write(tmp_path / "data.yaml", DATA)
    found = read_parts(tmp_path, tmp_path)
    assert [image.file_name for image in found["val"].images] == ["valid/images/b.jpg", "valid/labels/gone.jpg"]
    assert [one.reason for one in found["train"].noted if one.file == "other/c.txt"] == [
        "a label file without an image"
    ]


def test_yolo_of_windows_of_float_classes_and_with_names_alone(tmp_path):
    yolo_folder(
        tmp_path,
        images=["train/images/a.jpg", "valid/images/b.jpg"],
        names="data.yaml",
        labels=["train/labels/a.txt", "valid/labels/b.txt"],
    )
    assert [*read_parts(tmp_path, tmp_path)] == ["train", "val"]
    for folder in ("D:\\data\\nuts", "/data/nuts"):
        write(
            tmp_path / "data.yaml", f"names: [nut]\r\ntrain: {folder}/train/images\r\nval: {folder}\\valid\\images\r\n"
        )
        assert [*read_parts(tmp_path, tmp_path)] == ["train", "val"]
    write(tmp_path / "train/labels/a.txt", "0.000000 0.5 0.5 0.5 0.5\n")
    assert content(read_parts(tmp_path, tmp_path)["train"]) == {"train/images/a.jpg": [("nut", 10, 5, 30, 15)]}


def test_one_annotation_for_each_image(tmp_path, photos):
    for name in ("voc", "labelme"):
        WRITERS[name](PICTURES[:1], tmp_path / name)
        [file] = (tmp_path / name).iterdir()
        (tmp_path / name / f"z{file.suffix}").write_text(file.read_text())  # a copy that names the image of the other
        assert "2 of its annotations are of the image a.jpg, expected one" in refusal(tmp_path / name, photos)


def test_coco_categories_of_one_name(tmp_path, photos):
    """Roboflow names its group of all classes like the only class, or makes it the supercategory of all."""
    path = tmp_path / "coco.json"
    write_coco(PICTURES, path)
    labels = json.loads(path.read_text())
    categories, annotation = labels["categories"], labels["annotations"][0]
    group = {"id": 0, "name": "things"}
    members = [{**entry, "supercategory": "things"} for entry in categories]
    alone = {**categories[0], "supercategory": categories[0]["name"]}  # as COCO has "person"
    for changes, count in (
        ({"categories": [{"id": 0, "name": "nut"}, *categories]}, 3),
        ({"categories": [group, *categories]}, 4),
        ({"categories": [group, *members]}, 3),
        ({"categories": [alone], "annotations": [{**annotation, "category_id": alone["id"]}]}, 1),
    ):
        write(path, json.dumps({**labels, **changes}))
        data = read_parts(path, photos)[""]
        assert len(data.class_names) == count
        assert count == 1 or content(data) == drawn(PICTURES)


def test_linked_folders_and_names_of_other_systems(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    pictures = [PICTURES[0]._replace(name="e\u0301.jpg"), PICTURES[1]._replace(name="b.jfif")]  # decomposed, as macOS
    for picture in pictures:
        draw([picture._replace(name="drawn.jpg")], tmp_path)
        (tmp_path / "drawn.jpg").rename(tmp_path / "elsewhere" / picture.name)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "images" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "same").symlink_to(tmp_path / "elsewhere")
    write_yolo(
        [picture._replace(name=picture.name.replace("e\u0301", "\xe9")) for picture in pictures],
        tmp_path / "data" / "labels",
    )
    assert content(read_parts(tmp_path / "data", tmp_path / "data")[""]) == {
        f"images/{name}": labels for name, labels in drawn(pictures).items()
    }


# Refused


REFUSED = [
    *rows(r"""
yolo | a.txt | 0 0.5 0.5 nan 0.5 | a\.txt: line 1 a coordinate is 'nan', expected a finite number
yolo | a.txt | 0 12 30 20 40 | has '12', expected fractions of the image's sides
yolo | a.txt | 7 0.5 0.5 0.5 0.5 | line 1 has class '7'; the classes are numbered 0 to 2
yolo | a.txt | 0 0.5 0.5 0.5 0.5 0.9 | has 5 numbers after its class
yolo | a.txt | 0.5 0.5 0.5 0.5 0.5 | has class '0.5'
yolo | a.txt | '' | contain no boxes
yolo | classes.txt | 'nut\nnut\n' | 'nut' is the name of categories
yolo | classes.txt | None | YOLO labels without class names: looked for a data\.yaml and classes\.txt
yolo | data.yaml | 'names: &a [x]\nnc: *a\n' | uses aliases
yolo | data.yaml | 'names:\n  0: x\n  0: y\nnc: 1\n' | gives a key twice
yolo | data.yaml | 'names: {a: b}\nnc: 1\n' | has id 'a', expected a number
yolo | data.yaml | 'names: 7\nnc: 1\n' | expected '7' next to the labels
yolo | data.yaml | 'names: []\nnc: 1\n' | is \[\], expected a list of class names
yolo | data.yaml | 'names: [a, [b]]\nnc: 1\n' | has name
yolo | data.yaml | 'names: [a\nnc: 1\n' | data\.yaml: is not YAML
yolo | data.yaml | 'names: !!python/object/apply:os._exit [1]\nnc: 1\n' | the classes are numbered 0 to 0
yolo | data.yaml | 'names: [a]\ntrain: ../../../etc\n' | none of the images that it names is in
yolo | data.yaml | 'names: [a]\ntrain: {a: b}\n' | train is {'a': 'b'}, expected folders
cvat | annotations.xml | <!DOCTYPE a [<!ENTITY b "bb">]><annotations/> | declares entities
cvat | annotations.xml | <annotations><track/></annotations> | has tracks of a video, which are not read
cvat | annotations.xml | <annotations><image name='a.jpg' width='6' height='4'/></annotations> | no boxes
cvat | annotations.xml | <annotations><image name='a.jpg' width='6.5' height='4'/></annotations> | expected whole
cvat | annotations.xml | <box label="nut" xtl="nan" ytl="2" xbr="3" ybr="4"/> | box 0 xtl is 'nan'
cvat | annotations.xml | <box label="nut" xtl="1e300" ytl="2" xbr="3" ybr="4"/> | expected at most 1e
cvat | annotations.xml | <box label="" xtl="1" ytl="2" xbr="3" ybr="4"/> | box 0 has no class name
cvat | annotations.xml | <polygon label="nut" points="1,2;3"/> | has the point '3', expected x,y
cvat | annotations.xml | <polygon label="nut"/> | has the point ''
labelme | a.json | '{"shapes": 7}' | has no list of shapes
labelme | a.json | '{"shapes": [{"label": 5, "points": [[1, 2]]}]}' | has label 5, expected text
labelme | a.json | '{"shapes": [{"label": "", "points": [[1, 2]]}]}' | has no class name
labelme | a.json | '{"shapes": [{"label": "x", "points": [[1, 2], [3, 4]]}]}' | is a polygon of 2 points
labelme | a.json | {"shapes": [{"label": "x", "points": [[1, NaN]]}]} | in its points nan
labelme | a.json | '{"shapes": [{"label": "x", "points": [[1, 1e+300]]}]}' | expected at most 1e
labelme | a.json | '{"shapes": [{"label": "x", "shape_type": "cube", "points": [[1, 2]]}]}' | type 'cube'
labelme | a.json | '{"shapes": [], "imageHeight": -4, "imageWidth": 4}' | has imageHeight -4
labelme | a.json | {"shapes": [ | is not json
csv | boxes.csv | 'a.jpg,1,2,3,4,nut\na.jpg,1,inf,3,4,nut\n' | line 2 top is 'inf', expected a finite
csv | boxes.csv | 'a.jpg,1,2,3,4,nut\na.jpg,1,2,3,4,\n' | line 2 has no class name
csv | boxes.csv | 'a.jpg,1,2,3,4,nut\n../a.jpg,1,2,3,4,nut\n' | line 2 names '../a.jpg', and an earlier entry 'a.jpg'
csv | boxes.csv | 'a.jpg,1,2,3,4,nut\n/etc/a.jpg,1,2,3,4,nut\n' | line 2 names '/etc/a.jpg', and an earlier
csv | boxes.csv | 'filename,xmin,ymin,xmax,class\na.jpg,1,2,3,nut\n' | lacks columns for bottom; expected columns
csv | boxes.csv | 'file,path,xmin,ymin,xmax,ymax,class\na,a,1,2,3,4,nut\n' | expected only one for file
csv | boxes.csv | 'a.jpg,1,2,3,4,nut\na.jpg,1,2,3,4\n' | line 2 has 5 fields, expected 6
csv | boxes.csv | 'SIZEDa,9.5,9,x,1,2,3,4\n' | expected whole numbers of pixels
csv | boxes.csv | 'SIZEDa,9,9,x,1,2,3,4\na,8,9,x,1,2,3,4\n' | says 8x9 of 'a.jpg', an earlier line 9x9
open_images | boxes.csv | 'ImageID,LabelName,XMin,XMax,YMin,YMax,IsGroupOf\na,/m/1,0,NaN,0,1,0\n' | a box in fractions
csv | boxes.csv | 'a.jpg,0.1,0.2,0.3,0.4,nut\nb.jpg,0.1,0.2,1,1,nut\n' | its boxes are from 0 to 1, fractions
voc | a.xml | <!DOCTYPE a [<!ENTITY b "bb">]><annotation/> | declares entities
"""),
    ("yolo", "a.txt", "9" * 5000 + " 0.5 0.5 0.5 0.5", "has class '9{3,}"),
    ("yolo", "data.yaml", "names: [a]\nnc: 1\nx: " + "[" * 5000, "is nested too deeply"),
    ("yolo", "data.yaml", "names: [a]\nnc: 1\n" + "#" * (1 << 20), "expected at most 1048576"),
    ("csv", "boxes.csv", "a.jpg,1,2,3,4,nut\n" + "x" * (1 << 16), "has more than 65536 bytes"),
]


@pytest.mark.parametrize(("name", "file", "text", "message"), REFUSED)
def test_broken_labels_are_refused_in_a_line(tmp_path, photos, name, file, text, message):
    WRITERS[name](PICTURES[:1], tmp_path)
    if file == "data.yaml":
        (tmp_path / "classes.txt").unlink()  # of other classes
    if text is None:
        (tmp_path / file).unlink()
    else:
        text = CVAT_IMAGE.format(text) if text.startswith(("<box", "<polygon")) else text
        write(tmp_path / file, text.replace("SIZED", "filename,width,height,class,xmin,ymin,xmax,ymax\n"))
    annotations = tmp_path / file if name in ("coco", "open_images", "cvat", "csv") else tmp_path
    assert re.search(message, refusal(annotations, photos, label_format=name))


def mutated(text, draw):
    """Parts cut, doubled, moved, or replaced by what no field holds."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, length = draw.randrange(len(text) + 1), int(draw.expovariate(0.1)) + 1
        odd = draw.choice(
            ("nan", "-1", "1e400", "9" * 400, "../x", "\0", "\n", ",", '"', "<", "[", "{", "\ud83d", "a: b", " ")
        )
        text = text[:at] + draw.choice((odd, text[at : at + length] * 2, "")) + text[at + draw.choice((0, length)) :]
    return text


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_labels_are_read_or_refused(name, tmp_path, photos):
    WRITERS[name](PICTURES, tmp_path)
    files = {file: file.read_text() for file in sorted(tmp_path.iterdir())}
    for number in range(40):
        draw = random.Random(f"{name}/{number}")
        file = draw.choice([*files])
        file.write_text(mutated(files[file], draw), encoding="utf-8", errors="surrogatepass")
        message = "read"
        try:
            read_parts(tmp_path, photos, label_format=name)
        except InputError as error:
            message = str(error)
        assert 0 < len(message) < 1500, (number, message)
        assert message.isprintable(), (number, message)
        file.write_text(files[file])


def test_the_page_names_every_format():
    section = PAGE.partition("## Labels of any format")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == [*label_formats()]


def test_a_format_of_a_package_outside(tmp_path, photos, monkeypatch):
    """As the page shows it: recognized, named and read, with one odd line skipped."""
    code = re.search(
        r"```python\n(from efficientdet\.dataset.*?)```", PAGE.partition("### A format of your own")[2], re.DOTALL
    )
    write(tmp_path / "package" / "my_formats.py", code[1])
    install(tmp_path / "package", "efficientdet.label_formats", ["pipes = my_formats:PIPES"])
    monkeypatch.syspath_prepend(tmp_path / "package")
    boxes = "".join(
        f"{picture.name}|{box.left}|{box.top}|{box.right - box.left}|{box.bottom - box.top}|{box.name}\n"
        for picture in PICTURES
        for box in picture.labels
    )
    write(tmp_path / "labels" / "boxes.txt", f"file|x|y|width|height|class\n{boxes}a.jpg|1|2|x|4|nut\n")
    assert recognize(str(tmp_path / "labels")).reason.endswith("boxes.txt is a file of pipe-separated boxes")
    [data] = read_parts(tmp_path / "labels", photos, label_format="pipes").values()
    assert content(data) == {name: labels for name, labels in drawn(PICTURES).items() if labels}
    assert [finding.reason for finding in data.skipped] == ["line 8 a side is 'x', expected a finite number"]
    assert ConvertOptions(format="pipes").format == "pipes"
    with pytest.raises(InputError, match="--format=tubes: expected one of auto, coco"):
        ConvertOptions(format="tubes")


def test_findings_belong_to_their_split(tmp_path):
    """Bad lines in valid/ do not count against train/."""
    for split, lines in (("train", ["0 .5 .5 .2 .2"] * 2), ("valid", ["0 .5 .5 .2 .2", "0 9 9 9 9", "7 .5 .5 .2 .2"])):
        for kind in ("images", "labels"):
            (tmp_path / split / kind).mkdir(parents=True)
        for number, line in enumerate(lines):
            Image.new("RGB", (40, 30)).save(tmp_path / split / "images" / f"{split}{number}.jpg")
            (tmp_path / split / "labels" / f"{split}{number}.txt").write_text(f"{line}\n0 .4 .4 .1 .1\n")
    (tmp_path / "data.yaml").write_text("names: [nut]\n")

    assert {
        split: (data.listed_boxes, len(data.skipped)) for split, data in read_parts(tmp_path, tmp_path).items()
    } == {
        "train": (4, 0),
        "val": (6, 2),
    }
