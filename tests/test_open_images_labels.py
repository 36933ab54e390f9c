"""Open Images read: rows, classes, the index on the disk; and what is refused."""

import csv
import json
import random
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image
from text_tables import rows

from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.shards import convert
from efficientdet.plugins.label_formats import open_images
from efficientdet.plugins.label_formats.open_images import read_open_images
from efficientdet.plugins.label_formats.open_images_classes import MLPERF_FILE, selected_classes
from program_support.errors import InputError
from program_support.signals import Interrupted

HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
CLASSES = "/m/01,Zebra\n/m/02,Apple\n/m/03,Bat\n"


def row(image="a", label="/m/01", sides="0.1,0.5,0.2,0.6", *, confidence="1", group="0"):
    return f"{image},xclick,{label},{confidence},{sides},0,0,{group},0,0"


@pytest.fixture(scope="module")
def samples(data_folder):
    return data_folder / "openimages"


@pytest.fixture
def read(tmp_path):
    """Reads rows and class descriptions that are given as text."""

    def read(*rows, header=HEADER, classes_text=CLASSES, **settings):
        (tmp_path / "boxes.csv").write_text("\n".join([header, *rows]) + "\n")
        (tmp_path / "classes.csv").write_text(classes_text)
        folder = tmp_path / f"index{random.random()}"
        folder.mkdir()
        return read_open_images(
            object_annotations_file=str(tmp_path / "boxes.csv"),
            class_descriptions_file=str(tmp_path / "classes.csv"),
            index_folder=folder,
            **settings,
        )

    return read


def content(data):
    """File name -> (class, box, crowd) of each object."""
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
    return {
        image.file_name: [
            (names[one.category_id], *(round(value, 6) for value in one.box_xywh), one.is_crowd)
            for one in image.objects
        ]
        for image in data.images
    }


def reasons(data):
    return [finding.reason for finding in data.noted]


# What is read


def test_rows_in_any_order_become_images_in_the_order_of_their_names(read):
    data = read(
        row("b", "/m/02"), row("a", sides="0.7,0.8,0,1", group="1"), row("b", "/m/01"), row("a", "/m/03", group="-1")
    )
    assert content(data) == {
        "a.jpg": [("Zebra", 0.7, 0, 0.1, 1, True), ("Bat", 0.1, 0.2, 0.4, 0.4, False)],
        "b.jpg": [("Apple", 0.1, 0.2, 0.4, 0.4, False), ("Zebra", 0.1, 0.2, 0.4, 0.4, False)],
    }
    assert [image.image_id for image in data.images] == [1, 2]
    assert data.class_names.names == ("Apple", "Bat", "Zebra")
    assert data.class_names.category_ids == (0, 1, 2)
    assert (data.listed_boxes, data.noted, data.skipped) == (4, [], [])


def test_columns_are_found_by_name(read):
    data = read("0,0.6,0.2,/m/01,0.5,0.1,a", header="IsGroupOf,YMax,YMin,LabelName,XMax,XMin,ImageID")
    assert content(data) == {"a.jpg": [("Zebra", 0.1, 0.2, 0.4, 0.4, False)]}


def test_only_images_with_a_box_of_the_wanted_classes(read, tmp_path):
    rows = [row("a", "/m/01"), row("b", "/m/02"), row("b", "/m/03"), row("c", "/m/03")]
    assert content(read(*rows, classes="Bat,Apple")) == {
        "b.jpg": [("Apple", 0.1, 0.2, 0.4, 0.4, False), ("Bat", 0.1, 0.2, 0.4, 0.4, False)],
        "c.jpg": [("Bat", 0.1, 0.2, 0.4, 0.4, False)],
    }
    (tmp_path / "ids").write_text("validation/c\na\n\n")
    data = read(*rows, classes="Bat", image_ids_file=str(tmp_path / "ids"))
    assert [*content(data)] == ["c.jpg"]
    assert reasons(data) == ["1 of 2 images have no boxes of the selected classes and are not converted"]


def test_ids_of_a_list_of_classes_are_its_places(read, tmp_path):
    (tmp_path / "list").write_text("Zebra\n\nApple\n")
    for classes in (str(tmp_path / "list"), "Zebra, Apple"):
        names = read(row(), classes=classes).class_names
        assert (names.names, names.category_ids) == (("Zebra", "Apple"), (0, 1))


def test_repeated_rows_are_one_box(read):
    rows = [row("a"), row("b"), row("a", group="1"), row("a")]
    data = read(*rows, *rows)
    assert data.listed_boxes == 3
    assert reasons(data) == ["5 rows duplicate another row (image, class, box and IsGroupOf): duplicates are ignored"]


def test_confidence(read):
    data = read(row("a"), row("b", confidence="0.7"), row("c", confidence="0"))
    assert [*content(data)] == ["a.jpg", "b.jpg"]
    assert reasons(data) == [
        "1 boxes have a Confidence between 0 and 1: converted like all other boxes",
        "1 rows have Confidence 0 (object absent): ignored",
    ]


def test_the_fingerprint_changes_with_whatever_is_read(read, tmp_path):
    (tmp_path / "ids").write_text("a\n")
    prints = [
        read(*rows, **settings).fingerprint
        for rows, settings in (
            ([row()], {}),
            ([row(), row(group="1")], {}),
            ([row()], {"classes": "Zebra"}),
            ([row()], {"classes": "Zebra,Apple"}),
            ([row()], {"image_ids_file": str(tmp_path / "ids")}),
        )
    ]
    assert len({*prints}) == len(prints)
    assert read(row()).fingerprint == prints[0]


# Classes


def test_mlperf_list_is_childless_and_in_the_class_descriptions(samples):
    labels = {label: name for label, name in csv.reader(MLPERF_FILE.read_text().splitlines()[1:])}
    kinds, waiting = {}, [json.loads((samples / "bbox_labels_600_hierarchy.json").read_text())]
    while waiting:
        node = waiting.pop()
        kinds.setdefault(node["LabelName"], []).extend(node.get("Subcategory", []))
        waiting += node.get("Subcategory", []) + node.get("Part", [])
    assert [label for label in labels if label not in kinds or kinds[label]] == []
    found = dict(csv.reader((samples / "class-descriptions-boxable.csv").read_text().splitlines()))
    assert labels.keys() - found.keys() == set()
    assert {found[label]: name for label, name in labels.items() if found[label] != name} == {
        "Sunflower": "Common sunflower",
        "Egg": "Egg (Food)",
        "Horn": "French horn",
        "Lavender": "Lavender (Plant)",
        "Lifejacket": "Personal flotation device",
    }  # this copy is of early V4


@pytest.mark.parametrize("name", ["class-descriptions-boxable.csv", "oidv6-class-descriptions.csv"])
def test_mlperf_by_either_layout_of_the_class_descriptions(name, samples):
    wanted = selected_classes("mlperf", class_descriptions_file=str(samples / name))
    assert wanted.class_names.category_ids == tuple(range(264))
    assert wanted.class_names.names[83] == "Egg (Food)"
    assert wanted.category_of["/m/033cnk"] == 83
    assert len([label for label, number in wanted.category_of.items() if number is not None]) == 264
    assert "Horn is French horn" in wanted.renamed
    assert len(wanted.renamed) == 5
    assert len(selected_classes("", class_descriptions_file=str(samples / name)).class_names) == 601


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("/m/0898b,Zebra\n", ""), "lacks /m/0898b (Zebra), which --classes=mlperf requires"),
        (("/m/0898b,Zebra\n", "/m/0898b,Horse\n"), "calls /m/0898b 'Horse', which in MLPerf's list is another label"),
    ],
)
def test_mlperf_by_class_descriptions_of_something_else(tmp_path, change, message):
    (tmp_path / "classes.csv").write_text(MLPERF_FILE.read_text().replace(*change))
    with pytest.raises(InputError, match=r"classes\.csv: ") as caught:
        selected_classes("mlperf", class_descriptions_file=str(tmp_path / "classes.csv"))
    assert message in str(caught.value)


# What is refused


WRONG_ROWS = [
    *rows(r"""
a,xclick,/m/09,1,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 has LabelName '/m/09', which the class descriptions lack
a,xclick,Zebra,1,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 has LabelName 'Zebra'
a,xclick,/m/01,1,"0,1",0.5,0.2,0.6,0,0,0,0,0 | line 2 is 'a,xclick,/m/01,1,0,1,0.5,0.2,0.6,0,0,0,0,0', expected
a,xclick,/m/01,1,0.1,512,0.2,0.6,0,0,0,0,0 | a box in fractions of the image's sides with decimal points
a,xclick,/m/01,1,0.1,0.5,nan,0.6,0,0,0,0,0 | a box in fractions
a,xclick,/m/01,1,0.1,0.5,0.2,inf,0,0,0,0,0 | a box in fractions
a,xclick,/m/01,1,0.1,0.5,0.2,,0,0,0,0,0 | a box in fractions
a,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,,0,0 | IsGroupOf 1, 0 or -1
a,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,2,0,0 | IsGroupOf 1, 0 or -1
a,xclick,/m/01,much,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 has Confidence 'much', expected a number from 0 to 1
a,xclick,/m/01,nan,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 has Confidence 'nan'
../a,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 is '../a,xclick
,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 is ',xclick
a,xclick | line 2 has 2 fields, the header 13
a,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0,0.5 | line 2 has 14 fields, the header 13
"a,xclick,/m/01,1,0.1,0.5,0.2,0.6,0,0,0,0,0 | line 2 is not a CSV row
'' | contains no boxes of the selected classes
"""),
    ("a" * 70000, "line 2 has more than 65536 bytes"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_ROWS)
def test_a_wrong_row_is_named(read, line, message):
    with pytest.raises(InputError) as caught:
        read(line)
    assert "boxes.csv: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"header": HEADER.replace("YMax", "YMaximum")}, "its first line lacks the column YMax"),
        ({"header": HEADER.replace("IsInside", "XMin")}, "the column XMin or repeats"),
        ({"classes": "Zebr"}, "classes.csv has no class 'Zebr'; the nearest is Zebra"),
        ({"classes": "Horse"}, "has no class 'Horse' (nor is there such a file); it has Zebra, Apple, Bat"),
        ({"classes": "Bat,Bat"}, "--classes: names 'Bat' twice"),
        ({"classes": ","}, "class names: 0 ids"),
        ({"classes": "x" * 5000}, "has no class"),
        ({"classes_text": "LabelName,DisplayName\n"}, "classes.csv: contains no classes"),
        ({"classes_text": "Zebra,/m/01\n"}, "classes.csv: line 1 is 'Zebra,/m/01', expected a label and its name"),
        ({"classes_text": CLASSES + "/m/01,Horse\n"}, "line 4 names /m/01 'Horse', and an earlier one 'Zebra'"),
        ({"classes_text": CLASSES + "/m/09,Zebra\n"}, "'Zebra' is the name of /m/01, /m/09"),
        ({"image_ids_file": "/nowhere"}, "/nowhere: cannot be read"),
        ({"expect": "mlperf-train"}, "1 images have a box of the 3 classes; expected 1170301 by --expect=mlperf-train"),
    ],
)
def test_wrong_settings(read, settings, message):
    with pytest.raises(InputError) as caught:
        read(row(), **settings)
    assert message in str(caught.value)


def test_the_expected_number_passes(read, monkeypatch):
    assert open_images.EXPECTED_IMAGES == {"mlperf-train": 1170301, "mlperf-validation": 24781}
    monkeypatch.setitem(open_images.EXPECTED_IMAGES, "mlperf-train", 2)
    assert len(read(row("a"), row("b"), row("b", "/m/02"), expect="mlperf-train").images) == 2


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    (tmp_path / "boxes.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([HEADER, row(), ""]).encode())
    (tmp_path / "classes.csv").write_bytes(b"\xef\xbb\xbfLabelName,DisplayName\r\n/m/01,Zebra\r\n")
    data = read_open_images(
        object_annotations_file=str(tmp_path / "boxes.csv"),
        index_folder=tmp_path,
        class_descriptions_file=str(tmp_path / "classes.csv"),
    )
    assert [*content(data)] == ["a.jpg"]


def test_a_signal_ends_the_reading(read, monkeypatch):
    monkeypatch.setattr(open_images, "_MIB", 100)

    def interrupted(self):
        raise Interrupted(15)

    monkeypatch.setattr(open_images.DeferredSignals, "check", interrupted)
    with pytest.raises(Interrupted):
        read(*[row(str(number)) for number in range(9)])


# Records


def records_of(data, folder, **changes):
    settings = {
        "image_folder": str(folder),
        "output_prefix": str(folder.parent / "out" / "r"),
        "num_shards": 2,
        "processes": 1,
        "max_bad_fraction": 0.01,
        "keep_annotations": True,
    } | changes
    convert(data, ConversionConfig(**settings))
    return json.loads(Path(f"{settings['output_prefix']}.instances.json").read_text())


def test_boxes_of_the_oracle(tmp_path, samples):
    (tmp_path / "images").mkdir()
    for name, width, height in [*csv.reader((samples / "validation_image_sizes.csv").read_text().splitlines())][1:]:
        Image.new("RGB", (int(width), int(height))).save(tmp_path / "images" / f"{name}.jpg")
    data = read_open_images(
        object_annotations_file=str(samples / "validation-annotations-bbox.csv"),
        index_folder=tmp_path,
        class_descriptions_file=str(samples / "class-descriptions-boxable.csv"),
    )
    written = records_of(data, tmp_path / "images")
    names = {entry["id"]: entry["name"] for entry in written["categories"]}
    files = {entry["id"]: entry["file_name"] for entry in written["images"]}
    found = [
        {
            "image": files[entry["image_id"]].removesuffix(".jpg"),
            "name": names[entry["category_id"]],
            "bbox": entry["bbox"],
            "is_group_of": entry["iscrowd"],
        }
        for entry in written["annotations"]
    ]
    expected = json.loads((samples / "expected_validation_boxes.json").read_text())
    assert found == [{key: entry[key] for key in ("image", "name", "bbox", "is_group_of")} for entry in expected]


def test_memory_does_not_grow_with_the_rows(read):
    """Of what Python holds; SQLite's pages are bounded by its setting. The text that the test writes is part of it."""
    peaks = []
    for count in (500, 5000):
        rows = [row(str(number // 5), sides=f"{number / 1e4},1,0,1") for number in range(count)]
        tracemalloc.start()
        data = read(*rows)
        assert sum(len(image.objects) for image in data.images) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 200 * 4500  # a row that is kept takes more than 200 bytes
