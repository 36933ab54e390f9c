"""Inputs that users of other tools reported as trouble are converted, or refused with the cause, in one process.

The cases of `data/field_cases` are read without conversion; the miniatures below need no data.
"""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from label_sets import check_accepted, read_parts, write
from PIL import Image
from text_tables import rows

from dataset import create_tfrecord
from dataset.conversion.annotations import NothingUsable
from dataset.conversion.any_format import recognize
from dataset.conversion.conversion_flags import refuse_without_usable_objects
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.conversion_report import Report, summary_lines
from dataset.files.file_kinds import FileKind, kind_and_advice
from program_support.errors import InputError

# Number of boxes of a case that is read, or the words of its refusal
OUTCOMES = {key: value for key, value in rows(r"""
01 | no usable object: of 16 boxes, 16 are crowds
02 | 16
03 | 16
04 | 16
05 | 16
06 | 16
07 | 16
08 | 16
09 | 16
'10' | 16
'11' | 16
'12' | has tracks of a video, which are not read: export the task as 'CVAT for images 1.1'
'14' | is a Datumaro json, which is not read: convert it with
'16' | VGG Image Annotator \(VIA\), which is not read: choose Annotation > Export Annotations
'18' | is a CreateML json, which is not read: export COCO
'20' | 16
'21' | 16
'22' | none of the images that it names is in
'24' | 16
'25' | 16 entries are skipped: .*img_0\.xml: object 0 \(red\) xmin is '10,5'
'26' | 16
'27' | 16
'28' | 1 of 16 boxes would be skipped.*img_3\.xml: object 1 has no name.*--max_bad_fraction
'29' | 16
'30' | 16
'34' | 16
'35' | lacks columns for file, class
'37' | lacks columns for left, top, right, bottom
'38' | 16 of 16 boxes would be skipped.*line 2 left is '10,5'
'39' | is a KITTI label file, which is not read: convert it
'40' | 16
'41' | 16
'43' | 16
'45' | 16
'46' | 32
'47' | 16
'48' | 16
'49' | 16
'50' | 16
'51' | 16
'52' | images.0. has id 20230101123456789001, expected 0 to
'54' | 16
'56' | 16
'57' | 1 of 9 images would be skipped.*both match 'img_0.jpg'
'58' | shape 0 has label 1, expected text
'59' | 1 of 16 boxes would be skipped.*a polygon of 2 points
'61' | 16
'62' | is not XML
'63' | 16
'64' | 16
'65' | 16
'67' | no labels of a known format
'68' | 16
'81' | 1
'82' | 16
'83' | expected text of one line
'84' | 16
'85' | 16
'86' | 16
'87' | 16
'88' | '0000.jpg' is ambiguous
'89' | 16 of 16 boxes would be skipped.*a coordinate is '0,187500'
'90' | 16
'91' | 1 of 16 boxes would be skipped.*img_2\.txt: line 1 a coordinate is 'nan'
'92' | 'red' is the name of categories
'93' | 16
'95' | 16
'96' | 16
'98' | 14
'99' | 8
'100' | 16
'103' | 16
'125' | 16
'128' | 12
'132' | data\.yaml: is not UTF-8 text.*save it as UTF-8
'146' | 16
'160' | img_0\.json: is not UTF-8 text
'165' | 16
'214' | 16
'216' | 16
'104' | 8
'105' | 16
'106' | 16
'111' | 14
'112' | 32
'113' | 16
'114' | 16
'115' | 16
'119' | has tracks of a video, which are not read: export the task as 'CVAT for images 1.1'
'121' | has tracks of a video, which are not read: export the task as 'CVAT for images 1.1'
'126' | 16
'134' | 10
'155' | 16
'197' | metadata\.jsonl is JSON Lines of Hugging Face, which is not read: write a csv table
'199' | dataset\.ndjson is JSON Lines of Ultralytics, which is not read: export YOLO
'200' | export\.ndjson is a Labelbox export, which is not read: convert it to COCO
'210' | has tracks of a video, which are not read: export the task as 'CVAT for images 1.1'
""")}  # fmt: skip
NOTED = {
    key: value
    for key, value in rows(r"""
02 | 8 rotated boxes became the boxes around them
04 | 16 annotations have numbers written as text
06 | 8 images have another name in the annotations
08 | the last part of coco_url is used
09 | 16 rotated boxes became
'10' | 16 rotated boxes became
'29' | 2 objects without a bbox got the box around their outline
'43' | 8 objects with ignore 1 are used like others
'45' | lines of 11 numbers that are a box and keypoints in it
'56' | 16 annotations have numbers written as text
'99' | label __ignore__ is no class
'100' | 8 images have another name in the annotations
'125' | class 0 is 'blue' here and 'red' in
'128' | 2 of 2 images have no label file
'134' | number the classes differently: merged by name
'165' | class names in decomposed Unicode letters, such as
'214' | which exists, too: taken as the labels of img_0.jpg
""")
}


def read(images, annotations):
    """Return the splits, refused as a conversion refuses them."""
    parts = read_parts(annotations, images)
    for part in parts.values():
        check_accepted(part)
    refuse_without_usable_objects(parts.values(), crowds_as_objects=False, are_all_splits=True)
    return parts


@pytest.mark.parametrize("number", OUTCOMES)
def test_field_case(number, data_folder):
    [case] = (data_folder / "field_cases").glob(f"{number}_*")
    images, outcome = case / "images" if (case / "images").is_dir() else case, OUTCOMES[number]
    if isinstance(outcome, str):
        with pytest.raises(InputError, match=outcome):
            read(images, case)
        return
    parts = read(images, case)
    assert sum(len(image.objects) for part in parts.values() for image in part.images) == outcome
    noted = [finding.reason for part in parts.values() for finding in part.noted]
    assert number not in NOTED or any(NOTED[number] in reason for reason in noted), noted


@pytest.fixture
def photo(tmp_path):
    """A folder with the image a.jpg of 100x50."""
    (tmp_path / "images").mkdir()
    Image.new("RGB", (100, 50)).save(tmp_path / "images" / "a.jpg")
    return tmp_path


def boxes(photo, name, content):
    """Return the boxes that a label file gives a.jpg: x, y, width and height in tenths of a pixel."""
    write(photo / "labels" / name, content if isinstance(content, str) else json.dumps(content))
    parts = read(photo / "images", photo / "labels")
    [image] = [image for part in parts.values() for image in part.images]
    assert image.file_name == "a.jpg"
    return [tuple(round(side, 1) for side in one.box_xywh) for one in image.objects]


def coco(*, image=None, categories=None, **annotation):
    return {
        "images": [{"id": 1, "file_name": "a.jpg", **(image or {})}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, 40, 20], **annotation}],
        "categories": categories or [{"id": 1, "name": "nut"}],
    }


BOX = (10.0, 10.0, 40.0, 20.0)
TURNED = (20.0, 0.0, 20.0, 40.0)  # BOX, rotated by 90 degrees about its center
COCO = [
    (coco(iscrowd="0"), BOX),
    (coco(iscrowd="No"), BOX),
    (coco(image_id="1", category_id="1", id="7"), BOX),
    (coco(bbox=["10", "10.0", " 40", "2e1"]), BOX),
    (coco(image={"id": "f3a-7"}, image_id="f3a-7"), BOX),
    (coco(categories=[{"id": "nut", "name": "nut"}], category_id="nut"), BOX),
    (coco(image={"width": 100}), BOX),
    (coco(image={"width": 0, "height": 0}), BOX),
    (coco(image={"width": None, "height": 50}), BOX),
    (coco(image={"width": "100", "height": "50"}), BOX),
    (coco(attributes={"rotation": 90}), TURNED),
    (coco(attributes={"rotation": "90.0"}), TURNED),
    (coco(attributes={"rotation": 90}, segmentation=[[10, 10, 50, 10, 50, 30, 10, 30]]), TURNED),
    (coco(bbox=[30, 20, 40, 20, 90]), TURNED),
    (coco(bbox=None, segmentation=[10, 10, 50, 10, 50, 30, 10, 30]), BOX),
    (coco(bbox=[], segmentation=[[10, 10, 50, 10, 50, 30]]), BOX),
    (coco(bbox=None, segmentation={"size": [50, 100], "counts": [510] + [20, 30] * 39 + [20, 2520]}), BOX),
    (coco(image={"file_name": "C:\\data\\a.jpg"}), BOX),
    (coco(image={"file_name": "/home/x/a.jpg"}), BOX),
    (coco(image={"file_name": "%61.jpg"}), BOX),
    (coco(image={"file_name": "%2561.jpg"}), BOX),
    (coco(image={"width": float("nan"), "height": 50}), BOX),
    (coco(attributes=[{"name": "rotation", "value": 90}]), TURNED),
    (coco(image={"file_name": "https://x.org/bucket/%61.jpg?sig=1"}), BOX),
    (coco(image={"file_name": "/data/local-files/?d=photos%5Ca.jpg"}), BOX),
    (coco(image={"file_name": "a.png"}), BOX),
    (coco(image={"file_name": None, "coco_url": "http://x.org/train2017/a.jpg"}), BOX),
]


@pytest.mark.parametrize(("content", "box"), COCO)
def test_coco_as_tools_write_it(photo, content, box):
    assert boxes(photo, "coco.json", content) == [box]


@pytest.mark.parametrize("flag", [1, 1.0, "1", True, "true", "Yes"])
def test_crowds_in_every_spelling(photo, flag):
    with pytest.raises(InputError, match=r"no usable object: of 1 boxes, 1 are crowds.*--crowds_as_objects"):
        boxes(photo, "coco.json", coco(iscrowd=flag))


def voc(inside, *, difficult="0"):
    return (
        "<annotation><filename>a.jpg</filename><size><width>100</width></size><object><name>nut</name>"
        f"<difficult>{difficult}</difficult>{inside}</object></annotation>"
    )


BNDBOX = "<bndbox><xmin>10</xmin><ymin>10</ymin><xmax>50</xmax><ymax>30</ymax></bndbox>"
ROTATION = "<attributes><attribute><name>rotation</name><value>90.0</value></attribute></attributes>"
ROBNDBOX = "<robndbox><cx>30</cx><cy>20</cy><w>40</w><h>20</h><angle>1.5707963</angle></robndbox>"
LABELME = {"imagePath": "..\\images\\a.jpg", "shapes": [{"label": "nut", "points": [[10, 10], [50, 30]]}]}
REGION = {"original_width": 100, "original_height": 50, "type": "rectanglelabels", "from_name": "label"}
ROW = "00d3fffbbc034fffeef"  # in label-studio-converter's run lengths
BRUSH = "00004e20391bff0fc7" + ROW * 9 + "00d3fffbbc034ffff20070000"
VALUE = {"x": 10, "y": 20, "width": 40, "height": 40, "rectanglelabels": ["nut"]}


def tasks(*values, **task):
    result = [{**REGION, "id": f"r{number}", "value": value} for number, value in enumerate(values)]
    return [{"id": 1, "data": {"image": "/data/upload/1/0a1b2c3d-a.jpg"}, "annotations": [{"result": result}], **task}]


OTHERS = [
    ("a.xml", voc(BNDBOX, difficult="Unspecified"), BOX),
    ("a.xml", voc(BNDBOX + ROTATION), TURNED),
    ("a.xml", voc(ROBNDBOX), TURNED),
    ("a.xml", voc("<polygon><pt><x>10</x><y>10</y></pt><pt><x>50</x><y>30</y></pt></polygon>"), BOX),
    ("a.xml", voc("<polygon><x1>10</x1><y1>10</y1><x2>50</x2><y2>30</y2></polygon>"), BOX),
    ("folder/a.xml", voc(BNDBOX), BOX),
    ("other.xml", voc(BNDBOX).replace("filename", "path"), BOX),
    ("a.json", {**LABELME, "shapes": [{**LABELME["shapes"][0], "shape_type": "rectangle", "difficult": False}]}, BOX),
    ("a.json", {"shapes": [{"label": "nut", "shape_type": "quadrilateral",
     "points": [[10, 10], [50, 10], [50, 30], [10, 30]]}]}, BOX),
    ("ls.json", tasks(VALUE), BOX),
    ("ls.json", tasks({**VALUE, "x": 50, "y": 10, "rotation": 90}), (30.0, 5.0, 20.0, 40.0)),
    ("ls.json", tasks({"points": [[10, 20], [50, 20], [50, 60]], "polygonlabels": ["nut"]}), BOX),
    ("ls.json", tasks({"x": 30, "y": 40, "radiusX": 20, "radiusY": 20, "ellipselabels": ["nut"]}), BOX),
    ("ls.json", tasks({"format": "rle", "rle": [*bytes.fromhex(BRUSH)], "brushlabels": ["nut"]}), BOX),
    ("ls.json", [{"id": 1, "image": "a.jpg", "label": [{**REGION, **VALUE}], "annotator": 1}], BOX),
    ("ls.json", [{"id": 1, "data": {"photo": "s3://b/a.jpg"}, "annotations": [{"result": [{"value": VALUE}]}]}], BOX),
    ("t.csv", "TEST,gs://b/a.jpg,nut,0.1,0.2,,,0.5,0.6,,\nTEST,gs://b/a.jpg,,,,,,,,,\n", BOX),
    ("t.csv", "nut,10,10,40,20,a.jpg,100,50\n" * 2, BOX),
    ("t.csv", "path,x1,y1,x2,y2,label,angle\na.jpg,10,10,50,30,nut,90\n", TURNED),
    ("t.csv", 'path,x1,y1,x2,y2,label\na.jpg,10,10,50,30,"nut, small"\n', BOX),
    ("a.txt", "0 0.3 0 0.3 0.8 0.2 0.8 0.2 0\n", (20.0, 0.0, 10.0, 40.0)),
    ("a.txt", "0 0.3 0.4 0.4 0.4 0.3 0.4 0.2 0.3\n0 0.3 0.4 0.4 0.4 0.2 0.5 0 0\n", BOX),  # two keypoints
    ("a.txt", "0 0.3 0.4 0.4 0.4 0.3 0.4 2\n" * 2, BOX),
    ("a.txt", "0 0.3 0.4 0.4 0.4 0.3 0.4 2 0.2 0.3 1\n0 0.3 0.4 0.4 0.4 0.2 0.5 2 0 0 0\n", BOX),
    ("a.txt", "0 0.1 0.2 0.5 0.2 0.5 0.6 0.1 0.6\n" * 2, BOX),  # four corners
    ("t.csv", "sep=;\nfilename;xmin;ymin;xmax;ymax;class\na.jpg;10;10;50;30;nut\n", BOX),
]  # fmt: skip


def test_an_image_within_a_labelme_file_is_converted(photo):
    shapes = [{**LABELME["shapes"][0], "shape_type": "rectangle"}]
    content = {
        **LABELME,
        "shapes": shapes,
        "imageData": base64.b64encode((photo / "images" / "a.jpg").read_bytes()).decode(),
    }
    (photo / "images" / "a.jpg").unlink()
    write(photo / "images" / "sub" / "a.json", json.dumps(content))
    create_tfrecord.convert_labels(
        ConvertOptions(images=str(photo / "images"), output_dir=str(photo / "out"), val_fraction=0)
    )
    [record] = tf.data.TFRecordDataset([str(path) for path in (photo / "out").glob("train-*.tfrecord")])
    features = tf.train.Example.FromString(record.numpy()).features.feature
    assert features["image/encoded"].bytes_list.value == [base64.b64decode(content["imageData"])]
    assert [round(features[f"image/object/bbox/{side}"].float_list.value[0], 2) for side in ("xmin", "ymax")] == [
        0.1,
        0.6,
    ]
    write(photo / "labels" / "a.json", json.dumps(content))
    with pytest.raises(InputError, match=r"only as imageData: expected the JSON file in --images"):
        read(photo / "images", photo / "labels")


def test_difficult_objects_alone_are_refused(photo):
    with pytest.raises(InputError, match=r"no usable object: of 1 boxes, 0 are crowds.*1 are difficult"):
        boxes(photo, "a.xml", voc(BNDBOX, difficult="true"))


@pytest.mark.parametrize(("name", "content", "box"), OTHERS)
def test_other_formats_as_tools_write_them(photo, name, content, box):
    if name.endswith(".txt"):
        write(photo / "labels" / "classes.txt", "nut\n")
    assert {*boxes(photo, name, content)} == {box}


OTHER_NAMES = rows(r"""
classes.txt | 'bolt\nnut\n' | class 0 is 'bolt' here and 'nut' in .*data\.yaml; expected the same names
obj.names | 'nut\nscrew\n' | class 1 is 'screw' here and 'bolt' in
label_map.pbtxt | 'item { id: 1 name: "bolt" } item { id: 2 name: "nut" }' | label_map\.pbtxt: class 0
notes.json | {"categories": [{"id": 0, "name": "bolt"}]} | notes\.json: class 0 is 'bolt' here
classes.txt | 'Nut\nbolt\nwasher\n' | ''
notes.json | {"note": "of a user"} | ''
""")


@pytest.mark.parametrize(("name", "content", "message"), OTHER_NAMES)
def test_files_that_name_the_classes_of_yolo_agree(photo, name, content, message):
    write(photo / "labels" / "data.yaml", "names: [nut, bolt]")
    write(photo / "labels" / "a.txt", "0 0.3 0.4 0.4 0.4\n")
    write(photo / "labels" / name, content if isinstance(content, str) else json.dumps(content))
    if not message:
        assert len(read(photo / "images", photo / "labels")[""].images) == 1
        return
    with pytest.raises(InputError, match=message):
        read(photo / "images", photo / "labels")
    [data] = read(photo / "images", photo / "labels" / "data.yaml").values()  # as the user decides
    assert "which counts" in data.noted[-1].reason
    (photo / "labels" / "data.yaml").rename(photo / "data.yaml")
    if name == "classes.txt":
        with pytest.raises(InputError, match=r"data\.yaml: class 0 is 'nut' here and 'bolt' in .*classes\.txt"):
            read(photo / "images", photo / "labels")


def test_two_forms_of_a_letter_are_one_class(photo):
    names = ["K\u00e4fer", "Ka\u0308fer", "k\u00e4fer "]
    content = coco(category_id=2)
    content["categories"] = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    write(photo / "labels" / "c.json", json.dumps(content))
    [data] = read(photo / "images", photo / "labels").values()
    assert data.class_names.names == ("K\u00e4fer", "k\u00e4fer")
    assert [one.category_id for one in data.images[0].objects] == [1]
    report = Report()
    report.add_image([])
    lines = summary_lines(report, data.class_names)
    assert any("differ only in case or spaces" in line for line in lines)
    assert "warning: none of the 1 images has a box: all count as images without objects" in "\n".join(lines)


@pytest.mark.parametrize(("name", "content"), [("a.xml", voc(BNDBOX).replace("a.jpg", "b.jpg")),
    ("a.json", {"imagePath": "b.jpg", "shapes": LABELME["shapes"]})])  # fmt: skip
def test_a_label_file_that_names_another_image(photo, name, content):
    """Its own name counts in each format, unless there is no such image."""
    if name == "a.json":
        content["shapes"] = [{**content["shapes"][0], "shape_type": "rectangle"}]
    write(photo / "labels" / name, content if isinstance(content, str) else json.dumps(content))
    for files in ("a", "ab", "b"):
        (photo / "images" / "a.jpg").unlink(missing_ok=True)
        for file in files:
            Image.new("RGB", (100, 50)).save(photo / "images" / f"{file}.jpg")
        [data] = read(photo / "images", photo / "labels").values()
        assert [image.file_name for image in data.images] == [f"{files[0]}.jpg"]
        assert any("'b.jpg', which exists, too" in note.reason for note in data.noted) is (files == "ab")


@pytest.mark.parametrize(("name", "content"), [("data.yaml", "names: [Käfer]\ntrain: ."),
    ("a.json", '{"shapes": ["ä"]}'),
    ("a.xml", voc(BNDBOX).replace("nut", "Käfer")), ("t.csv", "a.jpg,10,10,50,30,Käfer\r\n" * 2),
    ("classes.txt", "Käfer\n")])  # fmt: skip
def test_text_of_a_windows_code_page(photo, name, content):
    write(photo / "labels" / "a.txt", "0 0.3 0.4 0.4 0.4\n") if name in ("data.yaml", "classes.txt") else None
    (photo / "labels").mkdir(exist_ok=True)
    (photo / "labels" / name).write_bytes(content.encode("cp1252"))
    with pytest.raises(InputError, match=rf"{name}: .*is not UTF-8 text, .*save it as UTF-8"):
        read(photo / "images", photo / "labels")


@pytest.mark.parametrize("faults", ["nameless", "broken", "outside", "nameless broken", "broken outside"])
def test_the_fraction_that_a_refusal_advises_is_accepted(tmp_path, faults, capsys):
    """Also if the labels, the images of both splits, and boxes are at fault; a later step may name a larger value."""
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(24):
        path = tmp_path / "images" / f"{number:02}.png"
        Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8)).resize((64, 64)).save(path)
        box = BNDBOX
        if number % 4 == 0 and "broken" in faults:
            path.write_bytes(path.read_bytes()[:600])
        if number % 3 == 0 and "outside" in faults:
            box = "<bndbox><xmin>90</xmin><ymin>10</ymin><xmax>95</xmax><ymax>30</ymax></bndbox>"
        nameless = f"<object>{BNDBOX}</object>" if number % 5 == 0 and "nameless" in faults else ""
        objects = f"<object><name>nut</name>{BNDBOX}</object><object><name>nut</name>{box}</object>{nameless}"
        write(tmp_path / "labels" / f"{number:02}.xml", f"<annotation>{objects}</annotation>")
    refusals, advised = 0, "0.01"
    while True:
        options = ConvertOptions(
            images=str(tmp_path / "images"),
            annotations=str(tmp_path / "labels"),
            output_dir=str(tmp_path / "out"),
            val_fraction=0.25,
            max_bad_fraction=float(advised),
        )
        try:
            create_tfrecord.convert_labels(options)
            break
        except InputError as error:
            refusals += 1
            advised, is_early = re.search(r"set --max_bad_fraction=([\d.]+\d)( or more)?", str(error)).groups()
            assert refusals == 1 or not is_early
    assert refusals == 1 + ("nameless" in faults and faults != "nameless")


def test_the_split_that_a_refusal_advises_is_accepted(photo):
    write(photo / "labels" / "c.json", json.dumps(coco()))
    options = ConvertOptions(
        images=str(photo / "images"), annotations=str(photo / "labels"), output_dir=str(photo / "out")
    )
    with pytest.raises(InputError, match=r"of 1 images .* can be used for validation .* or --val_fraction=0$"):
        create_tfrecord.convert_labels(options)
    assert create_tfrecord.convert_labels(replace(options, val_fraction=0.0))["train"].images == 1


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize(
    ("name", "content"), [("c.json", json.dumps(COCO[0][0])), ("t.csv", "a.jpg,10,10,50,30,nut\r\n" * 2)]
)
def test_text_with_a_byte_order_mark(photo, encoding, name, content):
    (photo / "labels").mkdir()
    (photo / "labels" / name).write_bytes(content.encode(encoding))
    [data] = read(photo / "images", photo / "labels").values()
    assert len(data.images) == 1


def test_the_annotation_that_label_studio_counts(photo):
    [task] = tasks(VALUE)
    other = {"result": [{**REGION, "value": {**VALUE, "x": 0}}]}
    assert boxes(photo, "a.json", [{**task, "annotations": [other, *task["annotations"]]}]) == [BOX]
    chosen = {**task["annotations"][0], "ground_truth": True}
    assert boxes(photo, "a.json", [{**task, "annotations": [chosen, other]}]) == [BOX]
    assert boxes(photo, "a.json", [{**task, "annotations": [chosen, {**other, "was_cancelled": True}]}]) == [BOX]


@pytest.mark.parametrize(
    ("data", "tag"),
    [
        ({"title": "Photo 7", "picture": "/data/local-files/?d=photos/a.jpg"}, "any"),
        ({"image": "a.jpg", "other": "/data/upload/1/b.jpg"}, "any"),
        ({"left": "/data/upload/1/b.jpg", "right": "/data/upload/1/a.jpg"}, "right"),
    ],
)
def test_the_image_of_a_task_of_label_studio(photo, data, tag):
    """Of several values, also of several images, of which the regions name one."""
    (photo / "images" / "b.jpg").write_bytes((photo / "images" / "a.jpg").read_bytes())
    task = {**tasks(VALUE)[0], "data": data, "annotations": [{"result": [{**REGION, "value": VALUE, "to_name": tag}]}]}
    write(photo / "labels" / "a.json", json.dumps([task]))
    [content] = read(photo / "images", photo / "labels").values()
    assert [image.file_name for image in content.images] == ["a.jpg"]
    task["annotations"][0]["result"].append({**REGION, "value": VALUE, "to_name": "left"})
    if tag == "right":
        with pytest.raises(NothingUsable, match=r"task 1 has regions in 2 images \(left, right\), expected one image"):
            boxes(photo, "a.json", [task])


def save_images(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (100, 50)).save(folder / name)


@pytest.mark.parametrize(
    ("file", "address"),
    [
        ("Foto 0 (halle).jpg", "/data/upload/1/0fdb2615-Foto_0_halle.jpg"),
        ("Foto ä, 0.JPG", "http://ls.org/data/upload/1/0fdb2615-Foto_%C3%A4_0.JPG"),
        ("Foto_0.jpg", "/data/upload/1/0fdb2615-Foto_0.jpg"),
        ("x/a.jpg", "/tasks/7/resolve/?fileuri=czM6Ly9iL3gvYS5qcGc="),
        ("x/a.jpg", "http://ls.org/tasks/7/presign/?fileuri=Z3M6Ly9iL3gvYS5qcGc%3D"),
    ],
)
def test_the_file_of_an_address_of_label_studio(tmp_path, file, address):
    save_images(tmp_path / "images", file, "other/b.jpg")
    write(tmp_path / "a.json", json.dumps([{**tasks(VALUE)[0], "data": {"title": "Photo 7", "photo": address}}]))
    [data] = read(tmp_path / "images", tmp_path / "a.json").values()
    assert [image.file_name for image in data.images] == [file]


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("x/a.png", "x/a.png.txt"),
        ("a.b.jpg", "a.b.jpg.txt"),
        ("Foto 0 (halle).jpg", "0fdb2615-Foto_0_halle.txt"),
    ],
)
def test_the_yolo_label_of_an_image(tmp_path, image, label):
    save_images(tmp_path / "images", image, "y/a.png")
    write(tmp_path / "labels" / label, "0 0.5 0.5 0.2 0.2\n")
    write(tmp_path / "labels" / "y" / "a.png.txt", "")
    write(tmp_path / "classes.txt", "nut\n")
    [data] = read(tmp_path / "images", tmp_path).values()
    assert {one.file_name: len(one.objects) for one in data.images} == {image: 1, "y/a.png": 0}


def test_proposals_for_label_studio_are_no_labels(photo):
    [task] = tasks(VALUE)
    proposed = {"data": task["data"], "predictions": [{"score": 0.9, "result": [REGION]}]}
    with pytest.raises(InputError, match="none of its 1 tasks has an annotation; predictions are not read"):
        boxes(photo, "a.json", [proposed])


def test_one_odd_entry_of_many_refuses_nothing(photo):
    """In every format, a bad object among more than a hundred is skipped with its file and reason."""
    many = 120
    content = coco()
    content["annotations"] = [{**content["annotations"][0], "id": number} for number in range(1, many)]
    content["annotations"].append({**content["annotations"][0], "id": many, "bbox": [1, 2, "x", 4]})
    shapes = [{"label": "nut", "shape_type": "rectangle", "points": [[10, 10], [50, 30]]}] * many
    good, bad = f"<object><name>nut</name>{BNDBOX}</object>", f"<object>{BNDBOX}</object>"
    cvat = '<box label="nut" xtl="1" ytl="2" xbr="3" ybr="4"/>' * many + '<box label="nut" xtl="nan"/>'
    files = {
        "coco.json": json.dumps(content),
        "a.json": json.dumps({"imagePath": "a.jpg", "shapes": [*shapes, {"label": "nut", "points": [[1, 2]]}]}),
        "ls.json": json.dumps(tasks(*[VALUE] * many, {**VALUE, "x": None})),
        "a.xml": f"<annotation>{good * many}{bad}</annotation>",
        "cvat.xml": f'<annotations><image name="a.jpg" width="100" height="50">{cvat}</image></annotations>',
        "t.csv": "a.jpg,10,10,50,30,nut\n" * many + "a.jpg,10,10,x,30,nut\n",
        "a.txt": "0 0.3 0.3 0.1 0.1\n" * many + "0 0.3 0.3 0.1 nan\n",
    }
    for name, text in files.items():
        write(photo / name / name, text)
        write(photo / name / "classes.txt", "nut\n")
        [data] = read_parts(photo / name, photo / "images").values()
        assert len(data.images[0].objects) >= many - 1, name
        [finding] = data.skipped
        assert name in finding.file, name
        assert finding.kind == "box", name
        check_accepted(data)


def frames_of(*numbers, name="frame_{:06}.png"):
    return [name.format(number) for number in numbers]


def test_names_that_are_shifted_by_one_are_a_warning(photo, capsys):
    (photo / "images" / "a.jpg").unlink()
    for name in frames_of(1, 2, 3):
        Image.new("RGB", (100, 50)).save(photo / "images" / name)
    content = coco()
    content["images"] = [{"id": number, "file_name": name} for number, name in enumerate(frames_of(0, 1, 2))]
    write(photo / "coco.json", json.dumps(content))
    create_tfrecord.convert_labels(
        ConvertOptions(
            images=str(photo / "images"),
            annotations=str(photo / "coco.json"),
            output_dir=str(photo / "out"),
            val_fraction=0,
            max_bad_fraction=0.5,
        )
    )
    warning = "warning: frame_000000.png is missing and frame_000003.png is not labeled: if the files count from 1"
    assert warning in capsys.readouterr().out


def test_files_that_cannot_be_read_are_listed(photo):
    for number in range(5):
        write(photo / "labels" / f"{number}.xml", "<annotation>")
    with pytest.raises(NothingUsable, match="5 entries are skipped") as caught:
        read(photo / "images", photo / "labels")
    assert len(caught.value.findings) == 5


def test_a_refusal_writes_a_report_of_every_item(photo):
    good = f"<object><name>nut</name>{BNDBOX}</object>"
    for number in range(5):
        Image.new("RGB", (100, 50)).save(photo / "images" / f"{number}.jpg")
        write(photo / "broken" / f"{number}.xml", "<annotation>")
        write(photo / "nameless" / f"{number}.xml", f"<annotation>{good}<object>{BNDBOX}</object></annotation>")
    for name in ("broken", "nameless"):
        options = ConvertOptions(
            images=str(photo / "images"), annotations=str(photo / name), output_dir=str(photo / "out")
        )
        with pytest.raises(InputError, match=r"all items are listed in .*train\.refused\.report\.json"):
            create_tfrecord.convert_labels(options)
        report = json.loads((photo / "out" / "train.refused.report.json").read_text())
        assert [Path(entry["file"]).name for entry in report["skipped"]] == [f"{number}.xml" for number in range(5)]
        assert not [*(photo / "out").glob("train-*")]


UNREAD = rows(r"""
Supervisely | {'description': '', 'tags': [], 'size': {'height': 9, 'width': 9}, 'objects': []}
Supervisely | {'classes': [{'title': 'nut'}], 'tags': [], 'projectType': 'images'}
VIA | {'_via_settings': {}, '_via_img_metadata': {}}
VIA | {'a.jpg7': {'filename': 'a.jpg', 'size': 7, 'regions': []}}
Datumaro | {'info': {}, 'categories': {'label': {}}, 'items': []}
CreateML | [{'image': 'a.jpg', 'annotations': [{'label': 'nut', 'coordinates': {}}]}]
V7 | {'version': '2.0', 'item': {'name': 'a.jpg'}, 'annotations': []}
FiftyOne | {'classes': ['nut'], 'labels': {'a': 0}}
Frigate | [{'id': '1.5-a', 'camera': 'door', 'label': 'cat', 'has_snapshot': True, 'has_clip': False, 'data': {}}]
FiftyOne | {'samples': [{'filepath': 'data/a.jpg', 'ground_truth': {'detections': []}}]}
FiftyOne | {'filepath': 'data/a.jpg', 'tags': [], 'ground_truth': None}
FiftyOne | {'name': 'x', 'tags': [], 'classes': {}, 'sample_fields': []}
Labelbox | [{'data_row': {'id': '1'}, 'projects': {}}]
Labelbox | [{'ID': '1', 'Labeled Data': 'https://x/a.jpg', 'Label': {}}]
Hasty | {'project_name': 'x', 'images': [], 'label_classes': []}
SuperAnnotate | {'metadata': {'name': 'a.jpg'}, 'instances': []}
Scale | [{'task_id': '1', 'response': {'annotations': []}}]
SageMaker | '{"source-ref": "s3://b/a.jpg", "boxes": {}}\n{"source-ref": "s3://b/b.jpg", "boxes": {}}\n'
Vertex | '{"imageGcsUri": "gs://b/a.jpg", "boundingBoxAnnotations": []}\n{"imageGcsUri": "gs://b/b.jpg"}\n'
SageMaker.manifest | {"source-ref": "s3://b/a.jpg", "boxes": {}}
Azure.jsonl | '{"image_url": "azureml://a.jpg", "label": [{"topX": 0}]}\n{"image_url": "azureml://b", "label": []}\n'
Roboflow.jsonl | '{"image": "a.jpg", "prefix": "detect", "suffix": "<loc0001>"}\n'
Hugging Face.jsonl | {"file_name": "a.jpg", "objects": {"bbox": [[1, 2, 3, 4]], "categories": [0]}}
Edge Impulse.labels | {"version": 1, "type": "bounding-box-labels", "boundingBoxes": {"a.jpg": []}}
Labelbox.ndjson | {"dataRow": {"id": "1"}, "bbox": {"top": 1}}
MMDetection.jsonl | {"filename": "a.jpg", "height": 9, "width": 9, "detection": {"instances": []}}
BDD100K | [{'name': 'a.jpg', 'labels': [{'category': 'car', 'box2d': {}}]}]
Cityscapes | {'imgHeight': 9, 'imgWidth': 9, 'objects': []}
MMDetection | [{'filename': 'a.jpg', 'width': 9, 'height': 9, 'ann': {}}]
KITTI | 'Car 0.00 0 -1.57 10.0 12.0 50.0 42.0 1.5 1.6 3.4 1.0 1.5 10.0 -1.6\n'
MOTChallenge | '1,1,912,484,97,109,0,7,1\n1,2,912,484,97,109,0,7,1\n'
OIDv4_ToolKit | 'Apple 10.5 12.0 40.0 30.0\n'
VIA | '#filename,file_size,region_shape_attributes,region_attributes\n'
WIDER FACE | '0--Parade/a.jpg\n1\n449 330 122 149 0 0 0 0 0 0 \n'
dlib | <dataset><images><image file='a.jpg'><box top='1'/></image></images></dataset>
""")


@pytest.mark.parametrize(("tool", "content"), UNREAD)
def test_labels_that_are_not_read_are_named(tmp_path, tool, content):
    text = content if isinstance(content, str) else json.dumps(content)
    tool, _, suffix = tool.partition(".")
    suffix = suffix or ("json" if text[0] in "[{" else "xml" if text[0] == "<" else "txt")
    write(tmp_path / f"labels.{suffix}", text)
    kind, advice = kind_and_advice(tmp_path / f"labels.{suffix}")
    assert (kind, tool in advice) == (FileKind.UNREAD, True), advice
    with pytest.raises(InputError, match=rf"labels\.{suffix} is .*{re.escape(tool)}.*, which is not read: \w+"):
        recognize(str(tmp_path))


@pytest.mark.parametrize("name", ["a.json", "a.xml", "a.csv", "a.txt", "data.yaml"])
def test_empty_files(photo, name):
    write(photo / "labels" / name, "")
    with pytest.raises(InputError):
        read(photo / "images", photo / "labels")
    assert not Path(photo / "images" / name).exists()
