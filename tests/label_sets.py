"""One labeled set of images, written as each format has it."""

import csv
import json
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

import numpy as np
from PIL import Image

from dataset.conversion.any_format import read_labels, recognize
from dataset.conversion.conversion_report import Report, check_fractions
from dataset.conversion.folder_files import ImageFolder


def read_parts(annotations, images, *, label_format="auto", with_masks=False, label_map=None):
    """Return the splits of labels, which are recognized, and of the images in a folder."""
    labels = recognize(str(annotations), label_format=label_format)
    return read_labels(labels, str(annotations), ImageFolder(images), with_masks=with_masks, label_map=label_map)


def check_accepted(data) -> None:
    """Raise InputError if a conversion would refuse a data set for what its reader skipped."""
    check_fractions(
        Report(images=len(data.images), skipped=data.skipped),
        listed_images=data.listed_images,
        listed_boxes=data.listed_boxes,
        max_bad_fraction=0.01,
    )


class Label(NamedTuple):
    """A class and a box in pixels, of which formats keep hundredths."""

    name: str
    left: float
    top: float
    right: float
    bottom: float


class Picture(NamedTuple):
    """`name` is a file name below the folder of images."""

    name: str
    width: int
    height: int
    labels: tuple[Label, ...]


PICTURES = (
    Picture("a.jpg", 64, 48, (Label("nut", 3.25, 4.5, 20, 30.75), Label("bolt", 30.33, 10.01, 60.67, 40))),
    Picture("b.jpg", 50, 70, (Label("washer", 0, 0, 50, 70),)),
    Picture("c.jpg", 60, 60, ()),
    Picture(
        "d.jpg",
        33,
        47,
        (Label("nut", 1.11, 2.22, 30.33, 40.44), Label("nut", 5, 5.5, 9.5, 9), Label("bolt", 2, 3, 4, 5)),
    ),
)
NAMES = ("washer", "bolt", "nut")  # in the order of the formats that have one


def draw(pictures, folder: Path) -> None:
    """Noise of its own for each, so that none looks like another."""
    for number, picture in enumerate(pictures):
        path = folder / picture.name
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(noise).resize((picture.width, picture.height), Image.Resampling.BICUBIC).save(path, quality=90)


def rows(pictures):
    return [(picture, label) for picture in pictures for label in picture.labels]


def write_coco(pictures, path: Path, names=NAMES) -> None:
    ids = {name: 7 * place + 3 for place, name in enumerate(names)}
    write(
        path,
        json.dumps(
            {
                "images": [
                    {"id": number, "file_name": picture.name, "width": picture.width, "height": picture.height}
                    for number, picture in enumerate(pictures, start=1)
                ],
                "annotations": [
                    {
                        "id": place,
                        "image_id": pictures.index(picture) + 1,
                        "category_id": ids[label.name],
                        "bbox": [
                            label.left,
                            label.top,
                            round(label.right - label.left, 2),
                            round(label.bottom - label.top, 2),
                        ],
                    }
                    for place, (picture, label) in enumerate(reversed(rows(pictures)), start=1)
                ],
                "categories": [{"id": number, "name": name} for name, number in ids.items()],
            }
        ),
    )


def write_voc(pictures, folder: Path) -> None:
    for picture in pictures:
        objects = "".join(
            f"<object><name>{label.name}</name><bndbox><xmin>{label.left}</xmin><ymin>{label.top}</ymin>"
            f"<xmax>{label.right}</xmax><ymax>{label.bottom}</ymax></bndbox></object>"
            for label in picture.labels
        )
        size = f"<size><width>{picture.width}</width><height>{picture.height}</height></size>"
        path = Path(picture.name)
        write(folder / f"{path.stem}.xml", f"<annotation><filename>{path.name}</filename>{size}{objects}</annotation>")


def yolo_line(picture, label, names=NAMES) -> str:
    across, down = picture.width, picture.height
    sides = (
        (label.left + label.right) / 2 / across,
        (label.top + label.bottom) / 2 / down,
        (label.right - label.left) / across,
        (label.bottom - label.top) / down,
    )
    return " ".join([str(names.index(label.name)), *(f"{side:.6f}" for side in sides)])


def write_yolo(pictures, folder: Path, names=NAMES) -> None:
    """With classes.txt beside the labels, as labelImg does; an image without objects has no file."""
    write(folder / "classes.txt", "\n".join(names) + "\n")
    for picture in pictures:
        if picture.labels:
            write(
                folder / Path(picture.name).with_suffix(".txt"),
                "\n".join(yolo_line(picture, label, names) for label in picture.labels),
            )


def write_cvat(pictures, path: Path, names=NAMES) -> None:
    images = "".join(
        f'<image id="{number}" name={quoteattr(picture.name)} width="{picture.width}" height="{picture.height}">'
        + "".join(
            f'<box label="{label.name}" occluded="0" xtl="{label.left:.2f}" ytl="{label.top:.2f}" '
            f'xbr="{label.right:.2f}" '
            f'ybr="{label.bottom:.2f}" z_order="0"></box>'
            for label in picture.labels
        )
        + "</image>"
        for number, picture in enumerate(pictures)
    )
    labels = "".join(f"<label><name>{name}</name></label>" for name in names)
    write(
        path,
        '<?xml version="1.0" encoding="utf-8"?><annotations><version>1.1</version><meta><task><labels>'
        + labels
        + f"</labels></task></meta>{images}</annotations>",
    )


def write_labelme(pictures, folder: Path) -> None:
    for picture in pictures:
        write(
            folder / f"{Path(picture.name).stem}.json",
            json.dumps(
                {
                    "version": "5.4.1",
                    "flags": {},
                    "imagePath": f"..\\photos\\{Path(picture.name).name}",
                    "imageData": None,
                    "imageHeight": picture.height,
                    "imageWidth": picture.width,
                    "shapes": [
                        {
                            "label": label.name,
                            "points": [[label.right, label.top], [label.left, label.bottom]],
                            "group_id": None,
                            "shape_type": "rectangle",
                            "flags": {},
                        }
                        for label in picture.labels
                    ],
                }
            ),
        )


def write_csv(pictures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"])
        for picture in pictures:
            for label in picture.labels or [("", "", "", "", "")]:
                table.writerow([picture.name, picture.width, picture.height, *label])


def write_retinanet_csv(pictures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        for picture in pictures:
            for name, *sides in picture.labels or [("", "", "", "", "")]:
                table.writerow([picture.name, *sides, name])


def write_open_images(pictures, path: Path) -> None:
    """An image without objects is not in it. The first label has the code of the first class, and so on."""
    lines = [
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
    ]
    for picture, label in rows(pictures):
        width, height = picture.width, picture.height
        sides = (label.left / width, label.right / width, label.top / height, label.bottom / height)
        lines.append(
            ",".join(
                [
                    Path(picture.name).stem,
                    "xclick",
                    f"/m/{NAMES.index(label.name)}",
                    "1",
                    *(f"{side:.8f}" for side in sides),
                    "0,0,0,0,0",
                ]
            )
        )
    write(path, "\n".join(lines) + "\n")
    write(path.parent / "class-descriptions-boxable.csv", "".join(f"/m/{n},{name}\n" for n, name in enumerate(NAMES)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_label_studio(pictures, path: Path) -> None:
    """With the names of uploads, which begin with eight digits."""
    tasks = []
    for number, picture in enumerate(pictures, start=1):
        regions = [
            {
                "type": "rectanglelabels",
                "original_width": picture.width,
                "original_height": picture.height,
                "image_rotation": 0,
                "value": {
                    "x": label.left / picture.width * 100,
                    "y": label.top / picture.height * 100,
                    "width": (label.right - label.left) / picture.width * 100,
                    "height": (label.bottom - label.top) / picture.height * 100,
                    "rotation": 0,
                    "rectanglelabels": [label.name],
                },
            }
            for label in picture.labels
        ]
        folder, _, name = picture.name.rpartition("/")
        image = f"/data/upload/1/{folder}/0a1b2c3d-{name}" if folder else f"/data/upload/1/0a1b2c3d-{name}"
        tasks.append({"id": number, "data": {"image": image}, "annotations": [{"id": number, "result": regions}]})
    write(path, json.dumps(tasks))


def write_dota(pictures, folder: Path) -> None:
    for picture in pictures:
        lines = ["imagesource:GoogleEarth", "gsd:0.146343590398"]
        for label in picture.labels:
            corners = (
                label.left,
                label.top,
                label.right,
                label.top,
                label.right,
                label.bottom,
                label.left,
                label.bottom,
            )
            lines.append(" ".join([*map(str, corners), label.name, "0"]))
        write(folder / Path(picture.name).with_suffix(".txt"), "\n".join(lines) + "\n")


WRITERS = {  # name of --format -> writes under a folder and says what to give as --annotations
    "coco": lambda pictures, folder: write_coco(pictures, folder / "coco.json"),
    "voc": write_voc,
    "yolo": write_yolo,
    "open_images": lambda pictures, folder: write_open_images(pictures, folder / "boxes.csv"),
    "cvat": lambda pictures, folder: write_cvat(pictures, folder / "annotations.xml"),
    "labelme": write_labelme,
    "label_studio": lambda pictures, folder: write_label_studio(pictures, folder / "tasks.json"),
    "dota": write_dota,
    "csv": lambda pictures, folder: write_csv(pictures, folder / "boxes.csv"),
}
