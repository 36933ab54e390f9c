"""Data check report: `doctor.html`, a self-contained page, and its data as `doctor.json`."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dataset.conversion.image_statistics import decode_reduced
from efficientdet.data_checks.examination import RATIOS, SIZES, Examination, class_rows, histogram, numbers, ratios
from efficientdet.data_checks.findings import as_hparams, share
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.html_page import bars, command, image_row, notices, page, paragraph, subheading, table
from program_support.atomic_files import report_write_errors, write_text
from program_support.errors import InputError

PAGE, NUMBERS = "doctor.html", "doctor.json"
_IMAGES = 100
_SIDE = 320  # pixels of a drawn image
_CLASSES = 100  # rows of a table


def write_page(folder: str | Path, examination: Examination) -> Path:
    """Write both files into a folder and return the page's path.

    Raises:
        InputError: they cannot be written.
    """
    contents = {NUMBERS: json.dumps(numbers(examination), indent=1) + "\n", PAGE: check_page(examination)}
    for name, content in contents.items():
        with report_write_errors(path := Path(folder, name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, content)
    return path


def check_page(examination: Examination) -> str:
    """Return the page as HTML."""
    view, warnings = examination.view, len(examination.warnings)
    height, width = view.size
    what = " and ".join(
        f"{len(split.images):,} {split.name} images with {len(split.images.boxes):,} boxes"
        for split in examination.splits
    )

    def listed(level: str) -> str:
        return notices([(level, finding.line) for finding in examination.findings if finding.level == level])

    sections = {
        "Suggested hyperparameters": command(f"--hparams={as_hparams(examination.settings)}")
        if examination.settings
        else "",
        "Notes": listed("note"),
        "Classes": _classes(examination),
        "Object size at the network input": _histogram(examination, view.sides, SIZES, "px"),
        "Aspect ratio of boxes (width / height)": _histogram(examination, ratios(view), RATIOS, ""),
        "Image statistics": _images(examination),
        "Most suspicious images": image_row(_suspicious(examination), quality=70, thumbnails=True),
    }
    figure = f"{warnings} warning{'s' * (warnings != 1)}" if warnings else "No problems found"
    lead = f"{what}. Input of {examination.hparams.name}: {width} x {height} pixels (width x height)."
    return page("Data check", sections, figure=figure, lead=lead, notes=listed("warning"))


def _classes(examination: Examination) -> str:
    rows = sorted(class_rows(examination.view), key=lambda row: -row["objects"])
    total = max(sum(row["objects"] for row in rows), 1)
    shown = [
        (
            row["name"],
            row["objects"],
            share(row["objects"] / total),
            row["images"],
            "" if row["median_size"] is None else f"{row['median_size']:.0f} px",
            "" if row["unmatched"] is None else share(row["unmatched"]),
        )
        for row in rows[:_CLASSES]
    ]
    hidden = len(rows) - _CLASSES
    more = paragraph(f"{hidden} classes with fewer objects are listed in {NUMBERS}.") if hidden > 0 else ""
    return table(("Class", "Objects", "Share", "Images", "Median size", "Unmatched"), shown) + more


def _histogram(examination: Examination, values: np.ndarray, bounds: tuple[float, ...], unit: str) -> str:
    intervals = {_between(each["from"], each["to"], unit): each for each in histogram(examination.view, values, bounds)}
    unmatched = {name: 100 * each["unmatched"] for name, each in intervals.items() if each["unmatched"]}
    counts = {name: each["objects"] for name, each in intervals.items()}
    rest = subheading("Unmatched objects (no anchor with IoU 0.5 or more)") + bars(unmatched, unit="%")
    return subheading("Number of objects") + bars(counts, form=",d") + (rest if unmatched else "")


def _between(low: float, high: float, unit: str) -> str:
    if low == 0:
        return f"below {high:.2g} {unit}"
    return f"{low:.3g} {unit} or more" if high > 1e4 else f"{low:.3g} to {high:.3g} {unit}"


def _images(examination: Examination) -> str:
    parts = []
    for name, split_numbers in numbers(examination)["splits"].items():
        sizes = ", ".join(
            f"{size['width']} x {size['height']} ({size['images']})" for size in split_numbers["common_sizes"]
        )
        facts = [
            ("Images", str(split_numbers["images"])),
            ("Images without objects", str(split_numbers["images_without_objects"])),
            ("Maximum objects per image", str(split_numbers["most_objects"])),
            ("Crowd boxes", str(split_numbers["crowds"])),
            ("Most common sizes (width x height, images)", sizes),
            ("Brightness: minimum, quartiles, maximum (0 to 255)", ", ".join(map(str, split_numbers["brightness"]))),
            ("Images decoded for this check", str(split_numbers["images_read"])),
        ]
        parts.append(subheading(name.capitalize()) + table((), facts))
    return "".join(parts)


def _suspicious(examination: Examination) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the images of all splits that most findings name, drawn with their boxes."""
    ranked = [(split, *one) for split in examination.splits for one in split.suspicious]
    for split, number, reasons in sorted(ranked, key=lambda one: -len(one[2]))[:_IMAGES]:
        images = split.images
        with contextlib.suppress(ValueError, OSError, InputError):
            image = decode_reduced(images.encoded(number), _SIDE)
            mine = images.objects_of(number)
            boxes = images.boxes[mine] * np.tile(np.array(image.shape[:2]) / images.sizes[number], 2)
            where = f"{images.names[number]} ({split.name})" if len(examination.splits) > 1 else images.names[number]
            drawing = draw_detections(image, boxes, classes=images.classes[mine], names=images.class_names.names)
            yield f"{where}: {', '.join(reasons)}", drawing
