import json
import os

import pytest
from label_sets import check_accepted
from text_tables import rows

from dataset.conversion.class_numbering import VOC_NAMES
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.formats.voc import read_voc
from program_support.errors import InputError


def xml(*objects, name="", size=(20, 30)):
    boxes = "".join(
        f"<object><name>{label}</name><difficult>{difficult}</difficult><part><name>head</name><bndbox><xmin>0</xmin>"
        f"<ymin>0</ymin><xmax>1</xmax><ymax>1</ymax></bndbox></part><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for label, left, top, right, bottom, difficult in objects
    )
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height></size>" if size else ""
    return f"<annotation><filename>{name}</filename>{sides}{boxes}</annotation>"


def read(folder, **settings):
    data = read_voc(annotations_folder=str(folder), images=ImageFolder(folder), **settings)
    check_accepted(data)
    return data


@pytest.mark.parametrize("other", ["coco_format_v1/instances_default.json", "coco_format_v2/instances_v2.json"])
def test_agrees_with_the_same_annotations_as_coco(data_folder, other):
    folder = data_folder / "formats_voc100" / "gts"
    voc, coco = read(folder / "pascalvoc_format"), read_coco(object_annotations_file=str(folder / other))

    def content(data):
        names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
        return {
            image.file_name: (
                image.size,
                sorted((names[annotation.category_id], annotation.box_xywh) for annotation in image.objects),
            )
            for image in data.images
        }

    assert content(voc) == content(coco)
    assert voc.class_names.names == VOC_NAMES
    assert sum(annotation.is_difficult for image in voc.images for annotation in image.objects) == 38


def test_hand_written_file(tmp_path):
    (tmp_path / "x.xml").write_text(xml(("screw", 1, 2.5, 11, 12, 0), ("nut", 5, 6, 7, 8, 1), name="photo.png"))
    (tmp_path / "x.jpg").touch()
    data = read(tmp_path)
    image = data.images[0]
    assert (image.image_id, image.file_name, image.size) == (1, "x.jpg", (20, 30))  # photo.png is not there
    assert [annotation.box_xywh for annotation in image.objects] == [(1, 2.5, 10, 9.5), (5, 6, 2, 2)]
    assert [annotation.is_difficult for annotation in image.objects] == [False, True]
    assert data.class_names.to_categories() == [{"id": 1, "name": "nut"}, {"id": 2, "name": "screw"}]
    assert [annotation.category_id for annotation in image.objects] == [2, 1]
    assert len(read(tmp_path, ignore_difficult=True).images[0].objects) == 1


def test_ids_are_the_numbers_of_the_names_or_counted(tmp_path):
    for name in ("000012", "000005"):
        (tmp_path / f"{name}.xml").write_text(xml(("cat", 1, 2, 3, 4, 0)))
    assert [image.image_id for image in read(tmp_path).images] == [5, 12]
    (tmp_path / "2007_000027.xml").write_text(xml())
    assert [image.image_id for image in read(tmp_path).images] == [1, 2, 3]


def test_image_set_picks_and_classes_stay_those_of_the_folder(tmp_path):
    (tmp_path / "a.xml").write_text(xml(("nut", 1, 2, 3, 4, 0)))
    (tmp_path / "b.xml").write_text(xml(("screw", 1, 2, 3, 4, 0)))
    (tmp_path / "set.txt").write_text("b  1\na -1\n")
    data = read(tmp_path, image_set_file=str(tmp_path / "set.txt"))
    assert [image.file_name for image in data.images] == ["b.jpg"]
    assert data.class_names.names == ("nut", "screw")
    (tmp_path / "set.txt").write_text("c\n")
    with pytest.raises(InputError, match=r"1 entries are skipped: .*c\.xml: no such file, and a list of images names"):
        read(tmp_path, image_set_file=str(tmp_path / "set.txt"))
    (tmp_path / "set.txt").write_text("b\nc\n")
    with pytest.raises(InputError, match=r"1 of 2 images would be skipped.*c\.xml: no such file.*--max_bad_fraction"):
        read(tmp_path, image_set_file=str(tmp_path / "set.txt"))


def test_label_maps(tmp_path):
    (tmp_path / "a.xml").write_text(xml(("nut", 1, 2, 3, 4, 0)))
    path = tmp_path / "map.json"
    for content in ({"nut": 7, "screw": 3}, {"categories": [{"id": 7, "name": "nut"}, {"id": 3, "name": "screw"}]}):
        path.write_text(json.dumps(content))
        assert read(tmp_path, label_map_file=str(path)).class_names.category_ids == (3, 7)
    for content, message in (
        ({"screw": 1}, "object 0 is of class 'nut'; the classes are screw"),
        ([], "expected class names: a list, or a mapping"),
        ({"nut": True}, "expected class names: a list, or a mapping"),
        ({"nut": 10**400}, "has id 100"),
        ({"nut": 1, " nut": 2}, "'nut' is the name of categories"),
        ({"nut": 1, "\ud800": 2}, "has name '.ud800', expected text"),
        ({"nut": 1, "bolt": 1}, "not ascending and distinct"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match=message):
            read(tmp_path, label_map_file=str(path))


CAT = ("cat", 1, 2, 3, 4, 0)
REFUSED = rows(r"""
'<annotation>' | a.xml: is not XML
'<html></html>' | found <html> at the top
("cat", 1, "nan", 3, 4, 0) | object 0 \(cat\) ymin is 'nan'
("cat", 1, "", 3, 4, 0) | ymin is ''
'<annotation><object><name>cat</name></object></annotation>' | has no bndbox
'<annotation/>' | contains no boxes
("c&#10;at", 1, 2, 3, 4, 0) | has name 'c\\nat', expected text of one line
'<?xml version="1.0" encoding="klingon"?><annotation/>' | a.xml: declares the encoding 'klingon', which is unknown
'<!DOCTYPE a [<!ENTITY b "c">]><annotation/>' | a.xml: declares entities
""")
REFUSED += [
    (("cat", 1, "1" * 5000, 3, 4, 0), r"ymin is '1{10,}\.\.\.1{10,}', expected a finite number"),
    (xml(CAT, size=(20.5, 30)), "expected whole numbers"),
    (xml(CAT, size=("1" * 5000, 30)), r"its height is '1{10,}\.\.\.1{10,}', expected a finite"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refuses(tmp_path, text, message):
    (tmp_path / "a.xml").write_text(text if isinstance(text, str) else xml(text))
    with pytest.raises(InputError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("encoding", ["gb2312", "gbk", "shift_jis", "utf-32"])
def test_encodings_of_elsewhere(tmp_path, encoding):
    text = f"<?xml version='1.0' encoding='{encoding}'?>" + xml(("猫", 1, 2, 3, 4, 0), name="猫.jpg")
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    (tmp_path / "猫.jpg").touch()
    data = read(tmp_path)
    assert data.class_names.names == ("猫",)
    assert data.images[0].file_name == "猫.jpg"


def test_names_that_no_file_can_have(tmp_path):
    (tmp_path / "a.xml").write_text(xml(("cat", 1, 2, 3, 4, 0), name="x" * 4000))
    assert read(tmp_path).images[0].file_name == "a.jpg"  # absent, as the conversion will say
    (tmp_path / "a.xml").write_text(xml(("cat", 1, 2, 3, 4, 0), name="../../etc/passwd"))
    assert read(tmp_path).images[0].file_name == "a.jpg"
    (tmp_path / "set.txt").write_text("y" * 4000)
    with pytest.raises(InputError, match="no such file, and a list of images names it"):
        read(tmp_path, image_set_file=str(tmp_path / "set.txt"))
    with open(os.fsencode(tmp_path) + b"/\xff.xml", "w") as file:
        file.write(xml(("cat", 1, 2, 3, 4, 0)))
    with pytest.raises(InputError, match=r"an XML file has file name '\\udcff\.xml', expected text .* UTF-8"):
        read(tmp_path)


def test_an_annotation_file_that_is_none(tmp_path):
    os.mkfifo(tmp_path / "a.xml")
    with pytest.raises(InputError, match=r"a\.xml: cannot be read \(it is a named pipe\)"):
        read(tmp_path)


def test_size_of_zero_counts_as_missing(tmp_path):
    (tmp_path / "a.xml").write_text(xml(("cat", 1, 2, 3, 4, 0), size=(0, 0)))
    data = read(tmp_path)
    assert data.images[0].size is None
    assert "no size" in data.noted[0].reason


def test_empty_folder(tmp_path):
    with pytest.raises(InputError, match="holds no XML file"):
        read(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read(tmp_path / "absent")
