"""The doctor's page: `doctor.html`, one file that needs no network, and `doctor.json` beside it."""

import contextlib
import heapq
import json
from pathlib import Path

import numpy as np

from dataset.conversion.image_statistics import small_picture
from dataset.files.image_files import encode_image
from efficientdet.data_checks.examination import RATIOS, SIZES, Examination, class_rows, histogram, numbers, ratios
from efficientdet.data_checks.findings import NOTE, as_hparams, share
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.html_page import bars, command, document, heading, notices, paragraph, picture, row, section, table
from program_support.atomic_files import telling_write_errors, write_text
from program_support.errors import InputError

PAGE, NUMBERS = "doctor.html", "doctor.json"
_PICTURES = 100
_SIDE = 320  # pixels of a drawn image
_CLASSES = 100  # rows of a table


def write_page(folder: str | Path, examination: Examination) -> Path:
    """Write both files into a folder; returns the page's path. Raises InputError where they cannot be written."""
    contents = {NUMBERS: json.dumps(numbers(examination), indent=1) + "\n", PAGE: page(examination)}
    for name, content in contents.items():
        with telling_write_errors(path := Path(folder, name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, content)
    return path


def page(examination: Examination) -> str:
    """The whole document as HTML."""
    view, warnings = examination.view, len(examination.warnings)
    height, width = view.size
    what = " and ".join(f"{len(split.images)} {split.name} images with {len(split.images.boxes)} boxes"
                        for split in examination.splits)
    figure = f"{warnings} thing{'s' * (warnings != 1)} to fix" if warnings else "Nothing alarming"
    return document("Data doctor", [
        heading("Data doctor", figure=figure, lead=f"{what}, as {examination.hparams.name} sees them at {width} x {height}."),
        notices([(finding.level, finding.line) for finding in examination.findings if finding.level != NOTE]),
        section("Settings that fix it", _settings(examination)),
        section("Also seen", notices([(finding.level, finding.line) for finding in examination.findings
                                      if finding.level == NOTE])),
        section("Classes", _classes(examination)),
        section("Sizes at the network's input", _histogram(examination, view.sides, SIZES, "px")),
        section("Width by height", _histogram(examination, ratios(view), RATIOS, "")),
        section("Images", _images(examination)),
        section("The most suspicious images", _suspicious(examination))])


def _settings(examination: Examination) -> str:
    if not examination.trials:
        return ""
    rows = [(as_hparams(trial.settings) or "as it is", share(trial.unmatched), share(trial.unmatched_in_training),
             share(trial.padding), f"{trial.cost:.2f}") for trial in examination.trials]
    columns = ("setting", "no anchor", "no anchor in training", "padding", "work")
    told = paragraph("No anchor: the share of objects that overlap none by half, as evaluation shows them, and at the scales "
                     "that training draws. Work: the number of anchors beside that of the first line.")
    suggested = command(f"--hparams={as_hparams(examination.settings)}") if examination.settings else ""
    return suggested + told + table(columns, rows)


def _classes(examination: Examination) -> str:
    rows = sorted(class_rows(examination.view), key=lambda found: -found["objects"])
    total = max(sum(found["objects"] for found in rows), 1)
    shown = [(found["name"], found["objects"], share(found["objects"] / total), found["images"],
              "" if found["median_size"] is None else f"{found['median_size']:.0f} px",
              "" if found["unmatched"] is None else share(found["unmatched"])) for found in rows[:_CLASSES]]
    more = paragraph(f"{len(rows) - _CLASSES} classes with fewer objects are in {NUMBERS}.") if len(rows) > _CLASSES else ""
    return table(("class", "objects", "share", "images", "median size", "no anchor"), shown) + more


def _histogram(examination: Examination, values: np.ndarray, bounds: tuple[float, ...], unit: str) -> str:
    found = histogram(examination.view, values, bounds)
    names = [_between(each["from"], each["to"], unit) for each in found]
    unmatched = {name: 100 * each["unmatched"] for name, each in zip(names, found, strict=True) if each["unmatched"]}
    return (bars({name: each["objects"] for name, each in zip(names, found, strict=True)}, form="d")
            + (paragraph("Of these no anchor overlaps by half:") + bars(unmatched, unit=" %") if unmatched else ""))


def _between(low: float, high: float, unit: str) -> str:
    if low == 0:
        return f"below {high:.2g} {unit}"
    return f"{low:.3g} {unit} and more" if high > 1e4 else f"{low:.3g} to {high:.3g} {unit}"


def _images(examination: Examination) -> str:
    parts = []
    for name, found in numbers(examination)["splits"].items():
        sizes = ", ".join(f"{size['width']} x {size['height']} ({size['images']})" for size in found["common_sizes"])
        facts = [("images", str(found["images"])), ("without an object", str(found["images_without_objects"])),
                 ("most objects", str(found["most_objects"])), ("crowds", str(found["crowds"])), ("sizes", sizes),
                 ("brightness: least, quarter, half, three quarters, most", ", ".join(map(str, found["brightness"]))),
                 ("images read", str(found["images_read"]))]
        parts.append(paragraph(name) + table((), facts))
    return "".join(parts)


def _suspicious(examination: Examination) -> str:
    """The oddest of all splits, drawn with their boxes."""
    ranked = [[(-len(reasons), place, split, number, reasons) for place, (number, reasons) in enumerate(split.suspicious)]
              for split in examination.splits]
    drawn = []
    for *_, split, number, reasons in list(heapq.merge(*ranked, key=lambda found: found[:2]))[:_PICTURES]:
        images = split.images
        with contextlib.suppress(ValueError, OSError, InputError):
            image = small_picture(images.encoded(number), _SIDE)
            mine = images.objects_of(number)
            boxes = images.boxes[mine] * np.tile(np.array(image.shape[:2]) / images.sizes[number], 2)
            drawing = draw_detections(image, boxes, classes=images.classes[mine], names=images.class_names.names)
            where = f"{images.names[number]} ({split.name})" if len(examination.splits) > 1 else images.names[number]
            drawn.append(picture(f"{where}: {', '.join(reasons)}", encode_image(drawing, "JPEG", quality=70)))
    return row(drawn)
