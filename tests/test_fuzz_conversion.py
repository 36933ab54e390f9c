"""Thousands of damaged images, annotation files and masks: each is converted, or refused or reported with a reason.

Never another exception, an end of the process or a hang: one case that takes longer than `SECONDS` ends the process
with the stack of where it hangs. A case is a function of seed and number; the file `case` in the folder of the test
names the last.

    FUZZ_CASES=50000 FUZZ_SEED=7 python -m pytest tests/test_fuzz_conversion.py
"""

import codecs
import faulthandler
import io
import json
import os
import random
import xml.etree.ElementTree as ElementTree

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw
from pycocotools import mask as coco_mask

from dataset.conversion import check
from dataset.conversion.check import SizeDisagreement, UnusableImage, check_image
from dataset.conversion.convert import convert_shard
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.formats.voc import read_voc
from dataset.conversion.segmentation import UnusableSegmentation, check_segmentation, mask_png
from dataset.conversion.sharding.shard_task import ShardTask
from dataset.records.record_inspection import inspect_record
from program_support.errors import InputError

CASES, SEED = int(os.environ.get("FUZZ_CASES", "0")), os.environ.get("FUZZ_SEED", "1")
SECONDS = 60
HEIGHT, WIDTH = 48, 64


@pytest.fixture
def run(tmp_path):
    """A function that calls another with a random generator for each of so many cases."""

    def of_all(one_case, count):
        with open(tmp_path / "case", "wb") as last:
            for number in range(CASES or count):
                os.pwrite(last.fileno(), f"seed {SEED}, case {number}\n".encode(), 0)
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                try:
                    one_case(random.Random(f"{SEED}/{number}"))
                except Exception as error:
                    raise AssertionError(
                        f"seed {SEED}, case {number}: {type(error).__name__}: {error}"[:500]
                    ) from error

    yield of_all
    faulthandler.cancel_dump_traceback_later()


def one_line(error):
    """What the message of a refusal must be: short, without a line break, fit for a terminal and a report in UTF-8."""
    message = str(error).encode().decode()
    assert 0 < len(message) < 1500, len(message)
    assert message.isprintable(), message


def photo():
    pixels = np.random.default_rng(3).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return Image.fromarray(pixels).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def encoded(image_format, mode="RGB", **settings):
    buffer = io.BytesIO()
    photo().convert(mode).save(buffer, image_format, **settings)
    return buffer.getvalue()


def mutated(data, draw):
    """Bytes with a few bits flipped, parts cut, doubled, overwritten or moved, or JPEG markers put in."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at, length = draw.randrange(len(data) + 1), min(int(draw.expovariate(0.05)) + 1, len(data))
        kind = draw.randrange(8)
        if kind <= 1 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data = data[:at]
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            start = draw.randrange(len(data) + 1)
            data[at:at] = data[start : start + length]
        elif kind == 5:
            data[at : at + length] = bytes([draw.choice((0, 255, 32, draw.randrange(256)))]) * length
        elif kind == 6:
            data[at : at + draw.randrange(3)] = bytes(
                (0xFF, draw.choice((0xC0, 0xC2, 0xC4, 0xD9, 0xDA, 0xDB, 0xD8, 0xE1)))
            )
        else:
            data[at : at + 2] = draw.choice((0, 1, 2, 3, 4, 5, 65535, 32768)).to_bytes(2, "big")
    return bytes(data)


def with_edited_segment(data, draw):
    """A JPEG of which one header segment has another length, or another byte near its begin."""
    data = bytearray(data)
    starts = [
        at
        for at in range(2, len(data) - 4)
        if data[at] == 0xFF and 0xC0 <= data[at + 1] < 0xFF and not 0xD0 <= data[at + 1] <= 0xD9
    ]
    at = draw.choice(starts)
    if draw.random() < 0.5:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        data[at + 2 : at + 4] = max(0, length + draw.randint(-8, 8)).to_bytes(2, "big")
    else:
        where = min(at + 4 + draw.randrange(12), len(data) - 1)
        data[where] = draw.choice((0, 1, 3, 4, 5, 63, 64, 255))
    return bytes(data[: len(data) - 2 * draw.randrange(2)])  # half of them without an end marker


def originals():
    return [
        encoded("JPEG"),
        encoded("JPEG", progressive=True),
        encoded("JPEG", "CMYK"),
        encoded("JPEG", "L", quality=30),
        encoded("PNG"),
        encoded("PNG", "P"),
        encoded("PNG", "I;16"),
        encoded("GIF"),
        encoded("BMP"),
        encoded("TIFF"),
        encoded("TIFF", compression="tiff_lzw"),
        encoded("WEBP"),
        encoded("JPEG2000"),
    ]


def test_images(run, monkeypatch):
    monkeypatch.setattr(check, "LARGEST_IMAGE_PIXELS", 10**6)  # a header that claims more would cost a second each
    whole = originals()

    def one_case(draw):
        data = draw.choice(whole[:4] if draw.random() < 0.6 else whole)
        if data[:2] == b"\xff\xd8" and draw.random() < 0.5:
            data = with_edited_segment(data, draw)
        if draw.random() < 0.1:
            other = draw.choice(whole)
            data = data[: draw.randrange(len(data))] + other[draw.randrange(len(other)) :]
        if draw.random() < 0.8:
            data = mutated(data, draw)
        try:
            checked = check_image(data, expected_size=draw.choice(((HEIGHT, WIDTH), None)))
        except (UnusableImage, SizeDisagreement) as error:
            one_line(error)
            return
        decoded = cv2.imdecode(
            np.frombuffer(checked.encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        )
        assert decoded.shape == (checked.height, checked.width, 3)

    run(one_case, 1200)


class Raw:
    """Text that stands in the json as it is, also where no json writer would put it."""

    def __init__(self, text):
        self.text = text


def nested(depth, draw):
    value = 1
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def odd_value(draw):
    return draw.choice(
        (
            None,
            True,
            False,
            0,
            -1,
            1,
            2,
            -0.0,
            0.5,
            1e-320,
            1e300,
            -1e9,
            1e9,
            1e7,
            2**31,
            2**32,
            2**63,
            10**18,
            10**400,
            "",
            " ",
            "1",
            "a",
            "cat",
            "../x",
            "/etc/passwd",
            "a\0b",
            "a\nb",
            "pipe.jpg",
            ".",
            "x" * 5000,
            [],
            {},
            [[]],
            [{}],
            [1, 2, 3, 4],
            [[1] * 6],
            "nan",
            Raw("NaN"),
            Raw("Infinity"),
            Raw("-Infinity"),
            Raw("1e400"),
            Raw("-0"),
            Raw("-" + "1" * 4300),
            Raw('"\\ud800"'),
            Raw('"\\udcff.jpg"'),
            Raw('"\\ud83d\\ude00"'),
            Raw('{"a":1,"a":2}'),
            Raw("1" + "0" * 400 + ".5"),
            draw.choice((Raw("9" * 5000), Raw("[" * 100_000), Raw("[1,]"))),
            nested(draw.choice((3, 50, 300, 900)), draw),
        )
    )


def places(value, path=()):
    """The path of every value in nested lists and dicts, a few levels deep."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield (*path, key)
        if isinstance(inner, (dict, list)) and len(path) < 6:
            yield from places(inner, (*path, key))


def with_odd_values(content, draw, value_of=odd_value):
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        *path, last = draw.choice(list(places(content)))
        holder = content
        for key in path:
            holder = holder[key]
        kind = draw.random()
        if kind < 0.7:
            holder[last] = value_of(draw)
        elif kind < 0.8:
            del holder[last]
        elif isinstance(holder, list):
            holder.insert(draw.randrange(len(holder) + 1), holder[last])
        else:
            holder[draw.choice(("id", "image_id", "bbox", "counts", "name", "x"))] = holder[last]
        if not content:
            break
    return content


def as_json(content, draw):
    """Bytes; now and then with a key written twice or spoilt afterwards."""
    raw = {}

    def placeholder(value):
        raw[f"@{len(raw)}@"] = value.text
        return f"@{len(raw) - 1}@"

    text = json.dumps(content, default=placeholder, ensure_ascii=draw.random() < 0.5)
    for mark, value in raw.items():
        text = text.replace(f'"{mark}"', value)
    if draw.random() < 0.05:
        text = text.replace('"id":', '"id": 7, "id":', draw.randrange(3))
    data = text.encode(draw.choice(("utf-8", "utf-8-sig")) if draw.random() < 0.98 else "utf-16", "surrogatepass")
    return mutated(data, draw) if draw.random() < 0.05 else data


COMPRESSED = coco_mask.encode(np.asfortranarray(np.eye(HEIGHT, WIDTH, dtype=np.uint8)))["counts"].decode()


def coco():
    size = {"width": WIDTH, "height": HEIGHT}
    run_lengths = {"size": [HEIGHT, WIDTH], "counts": [100, 40, HEIGHT * WIDTH - 140]}
    return {
        "info": {"year": 2017},
        "licenses": [],
        "categories": [
            {"id": 1, "name": "cat"},
            {"id": 90, "name": "dög"},
            {"id": 3, "name": "bird", "supercategory": "x"},
        ],
        "images": [
            {"id": 7, "file_name": "a.jpg", **size},
            {"id": 8, "file_name": "b.png", **size},
            {"id": 9, "file_name": "a.jpg"},
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 7,
                "category_id": 1,
                "bbox": [1, 2, 30, 40.5],
                "area": 700.5,
                "iscrowd": 0,
                "segmentation": [[1, 2, 31, 2, 31.5, 42.5, 1, 42.5]],
            },
            {
                "id": 2,
                "image_id": 7,
                "category_id": 90,
                "bbox": [0, 0, 64, 48],
                "iscrowd": 1,
                "segmentation": run_lengths,
            },
            {
                "id": 3,
                "image_id": 8,
                "category_id": 3,
                "bbox": [60, 40, 9, 9],
                "area": 10,
                "iscrowd": 0,
                "segmentation": [[60, 40, 70, 40, 65, 50], [0, 0, 0, 5, 5, 5]],
            },
            {
                "id": 4,
                "image_id": 9,
                "category_id": 3,
                "bbox": [6, 4, 9, 9],
                "area": 10,
                "caption": "a bird\n",
                "segmentation": {"size": [HEIGHT, WIDTH], "counts": COMPRESSED},
            },
        ],
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # most of the time of a small conversion
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(encoded("JPEG"))
    (tmp_path / "images" / "b.png").write_bytes(encoded("PNG"))
    os.mkfifo(tmp_path / "images" / "pipe.jpg")
    return tmp_path


def converted(data, place, *, include_masks):
    """One shard of the data set as the converters write it; what it holds must pass for training."""
    folder = place / "out"
    folder.mkdir(exist_ok=True)
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True)) if data.class_names else {}
    task = ShardTask(
        images=data.images,
        source=data.source,
        image_folder=str(place / "images"),
        category_names=names,
        include_masks=include_masks,
        keep_annotations=True,
        keep_images_of_refused_boxes=True,
        crowds_as_objects=False,
        fingerprint=data.fingerprint,
        partial_path=folder / "partial",
        finished_path=folder / "finished",
        state_path=folder / "state.json",
    )
    convert_shard(task, image_done=lambda: None)
    json.loads((folder / "state.json").read_text(encoding="utf-8"))
    content, start = (folder / "finished").read_bytes(), 0
    while start < len(content):
        length = int.from_bytes(content[start : start + 8], "little")
        found = inspect_record(content[start + 12 : start + 12 + length], category_ids=names)
        assert not found.contradiction, found.contradiction
        assert not found.useless, found.useless
        start += length + 16


def test_coco_files(run, place):
    path = place / "a.json"

    def one_case(draw):
        path.write_bytes(as_json(with_odd_values(coco(), draw), draw))
        flags = draw.choice(("object_annotations",) * 4 + ("image_info", "object_annotations caption_annotations"))
        include_masks = "object" in flags and draw.random() < 0.6
        try:
            data = read_coco(**{f"{flag}_file": str(path) for flag in flags.split()}, with_segmentation=include_masks)
            converted(data, place, include_masks=include_masks)
        except InputError as error:
            one_line(error)

    run(one_case, 600)


VOC = """<annotation><folder>x</folder><filename>a.jpg</filename>
<size><width>64</width><height>48</height><depth>3</depth></size><segmented>0</segmented>
<object><name>cat</name><pose>Left</pose><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax>
<ymax>40</ymax></bndbox></object>
<object><name>\u732b</name><bndbox><xmin>1.5</xmin><ymin>2</ymin><xmax>30</xmax><ymax>140</ymax></bndbox></object>
</annotation>"""
CODECS = (
    "utf-8",
    "gb2312",
    "gbk",
    "gb18030",
    "shift_jis",
    "euc_jp",
    "iso-2022-jp",
    "big5",
    "euc-kr",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "utf-32-le",
    "utf-32-be",
    "utf-7",
    "windows-1252",
    "iso-8859-15",
    "koi8-r",
    "cp037",
    "hz",
)
NO_CODECS = (
    "klingon",
    "zlib",
    "hex",
    "idna",
    "punycode",
    "undefined",
    "unicode_escape",
    "",
    " ",
    "x" * 3000,
    "\u732b",
    "../a",
    "a.b",
)


def odd_text(draw):
    return draw.choice(
        (
            "",
            " ",
            "1",
            "0",
            "-1",
            "-0",
            "1.5",
            "nan",
            "inf",
            "1e400",
            "1e300",
            "9" * 5000,
            "1_0",
            "a",
            "../x",
            "/etc/passwd",
            "x" * 5000,
            "a\nb",
            "\u732b",
            "pipe.jpg",
            "b.png",
            "\U0001f600",
            "true",
            "0x10",
            ".",
        )
    )


def odd_tree(draw):
    root = ElementTree.fromstring(VOC)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        nodes = list(root.iter())
        node, parent = draw.choice(nodes), draw.choice(nodes)
        kind = draw.randrange(6)
        if kind <= 2:
            node.text = odd_text(draw)
        elif kind == 3 and len(parent):
            parent.remove(draw.choice(list(parent)))
        elif kind == 4 and node is not root:
            node.tag = draw.choice(("object", "name", "size", "width", "filename", "bndbox", "xmin", "x"))
        elif kind == 5:
            parent.append(ElementTree.fromstring(ElementTree.tostring(node)))
    return ElementTree.tostring(root, encoding="unicode")


def voc_bytes(draw):
    text, declared = odd_tree(draw), draw.choice(CODECS) if draw.random() < 0.7 else draw.choice(NO_CODECS)
    true_codec = declared if draw.random() < 0.7 and declared in CODECS else draw.choice(CODECS)
    kind = draw.random()
    if kind < 0.05:
        text = (
            '<!DOCTYPE a [<!ENTITY b "'
            + "c" * 99
            + '">'
            + "".join(f'<!ENTITY b{i} "{f"&b{i - 1 if i else str()};" * 10}">' for i in range(9))
            + "]>"
            + text.replace("cat", "&b8;")
        )
    elif kind < 0.1:
        text = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + text.replace("cat", "&b;")
    elif kind < 0.15:
        depth = draw.choice((100, 5000, 20_000))
        text = text.replace("<pose>", "<pose>" + "<a>" * depth + "</a>" * draw.choice((depth, depth - 1)))
    elif kind < 0.2:
        text = text.replace(
            "cat",
            draw.choice(
                (
                    "&#0;",
                    "&#xD800;",
                    "&#1;",
                    "&undefined;",
                    "&#x110000;",
                    "a&#10;b",
                    "\ufffe",
                    "<![CDATA[cat]]>",
                    "<!-- -->cat",
                )
            ),
        )
    if draw.random() < 0.7:
        text = f"<?xml version='1.0' encoding='{declared}'?>{text}"
    data = text.encode(true_codec, "ignore")
    if draw.random() < 0.1:
        data = draw.choice((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE)) + data
    return mutated(data, draw) if draw.random() < 0.2 else data


def test_voc_files(run, place):
    path, label_map = place / "a.xml", place / "map.json"

    def one_case(draw):
        path.write_bytes(voc_bytes(draw))
        settings = {}
        if draw.random() < 0.2:
            names = with_odd_values({"cat": 1, "\u732b": 2, "bird": 3}, draw)
            label_map.write_bytes(as_json(draw.choice((names, coco())), draw))
            settings["label_map_file"] = str(label_map)
        try:
            converted(
                read_voc(annotations_folder=str(place), images=ImageFolder(place / "images"), **settings),
                place,
                include_masks=False,
            )
        except InputError as error:
            one_line(error)

    run(one_case, 600)


def odd_number(draw):
    return draw.choice(
        (
            draw.uniform(-100, 200),
            draw.randrange(70),
            0,
            -1,
            64,
            48,
            1e7,
            -1e7,
            1e9,
            -1e9,
            1.1e9,
            1e300,
            10**400,
            2**31,
            2**32,
            2**33,
            0.5,
            float("nan"),
            float("inf"),
            -0.0,
            True,
            None,
            "1",
            [1],
            1e-320,
        )
    )


def segmentation(draw):
    kind = draw.random()
    if kind < 0.5:
        share = draw.choice((0, 0, 0.05, 0.5))
        return [
            [
                odd_number(draw)
                if draw.random() < share
                else draw.uniform(-200, 300) * draw.choice((1, 1, 1, 1e3, 1e6))
                for _ in range(
                    draw.choice((6, 6, 8, 20, 3, 4, 5, 0)) if draw.random() < 0.2 else 2 * draw.randint(3, 9)
                )
            ]
            for _ in range(draw.choice((1, 1, 1, 2, 5, 0)))
        ]
    counts = [draw.randrange(200) for _ in range(draw.randrange(30))]
    counts.append(HEIGHT * WIDTH - sum(counts))
    if draw.random() < 0.5:
        counts[draw.randrange(len(counts))] = odd_number(draw)
    if kind < 0.75:
        return {"size": [HEIGHT, WIDTH], "counts": counts}
    text = "".join(chr(draw.randrange(48, 112)) for _ in range(draw.randrange(40)))
    if draw.random() < 0.3:
        text = "".join(
            draw.choice(("o", "0", "O", "P", "\u00e9", "\ud800", " ", "~", text)) for _ in range(draw.randrange(60))
        )
    if draw.random() < 0.3:
        text = "P2" + text[: draw.randrange(3)]
    if draw.random() < 0.6:
        text = mutated(COMPRESSED.encode(), draw).decode("latin-1")
    size = draw.choice(([HEIGHT, WIDTH], [HEIGHT, WIDTH], [WIDTH, HEIGHT], [48.0, 64], [True, 2], "48", None))
    if draw.random() < 0.7:
        return {"size": size, "counts": text}
    return draw.choice(({"counts": text}, {"counts": text, "size": [HEIGHT]}, text, None, 7, {}, [[]], [{}], [None]))


def test_masks(run):
    def one_case(draw):
        try:
            given = segmentation(draw)
            check_segmentation(given)
            png, _ = mask_png(given, (HEIGHT, WIDTH))
        except UnusableSegmentation as error:
            one_line(error)
            return
        pixels = np.asarray(Image.open(io.BytesIO(png)))
        assert pixels.shape == (HEIGHT, WIDTH)
        assert set(np.unique(pixels)) <= {0, 1}

    run(one_case, 2000)


def test_far_polygons_are_those_of_another_painter(run):
    """Pixels with their center over 2 pixels from every edge are what Pillow paints on a canvas that holds it all."""

    def one_case(draw):
        points = np.array([[draw.uniform(-3, 4) * WIDTH, draw.uniform(-3, 4) * HEIGHT] for _ in range(3)])
        png, _ = mask_png([points.ravel().tolist()], (HEIGHT, WIDTH))
        canvas = Image.new("L", (7 * WIDTH, 7 * HEIGHT))
        ImageDraw.Draw(canvas).polygon([(x + 3 * WIDTH - 0.5, y + 3 * HEIGHT - 0.5) for x, y in points], fill=1)
        painted = np.asarray(canvas)[3 * HEIGHT : 4 * HEIGHT, 3 * WIDTH : 4 * WIDTH]
        differ = np.argwhere(np.asarray(Image.open(io.BytesIO(png))) != painted)[:, ::-1] + 0.5  # [n, 2] x, y
        starts, runs = points[:, None], np.roll(points, -1, axis=0)[:, None] - points[:, None]
        share = np.clip(((differ - starts) * runs).sum(-1) / np.maximum((runs**2).sum(-1), 1e-9), 0, 1)
        distance = np.linalg.norm(starts + share[..., None] * runs - differ, axis=-1).min(
            axis=0
        )  # [n] from the nearest edge
        assert (distance <= 2).all()

    run(one_case, 200)
