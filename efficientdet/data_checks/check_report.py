"""The data check: examine images, print the findings, write `doctor.html`, a self-contained page, and `doctor.json`."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dataset.conversion.image_statistics import decode_reduced
from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.examination import Examination, class_rows, examine, numbers, size_histogram
from efficientdet.data_checks.findings import as_hparams, share
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.html_page import command, image_row, notices, page, paragraph, subheading, table
from program_support.atomic_files import report_write_errors, write_text
from program_support.errors import InputError
from program_support.progress import Progress

_IMAGES = 100
_SIDE = 320  # pixels of a drawn image
_CLASSES = 100  # rows of a table


def check_data(
    splits: Mapping[str, LabeledImages],
    hparams: Hyperparameters,
    *,
    fixed: frozenset[str],
    images_read: int,
    output_dir: str | None,
) -> tuple[Examination, Path | None]:
    """Examine splits, see `examine`; print and return the findings, with the path of the page, if there is one."""
    total = sum(min(len(images), images_read) for images in splits.values())
    with Progress("doctor", total=total, noun="image", slow_start=True) as bar:
        examination = examine(splits, hparams, fixed=fixed, images_read=images_read, done=lambda: bar.advance(images=1))
    for finding in examination.findings:
        print(f"{finding.level:8} {finding.line}")
    if not examination.warnings:
        print("no problems found")
    if examination.settings:
        print(f"suggested: --hparams={as_hparams(examination.settings)}")
    page = write_page(output_dir, examination) if output_dir else None
    print(f"wrote    {page}" if page else "with --output_dir=FOLDER a page shows the images")
    return examination, page


def write_page(folder: str | Path, examination: Examination) -> Path:
    """Write both files into a folder and return the page's path.

    Raises:
        InputError: they cannot be written.
    """
    contents = {
        "doctor.json": json.dumps(numbers(examination), indent=1) + "\n",
        "doctor.html": check_page(examination),
    }
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
        "Object size at the network input": _sizes(examination),
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
    more = paragraph(f"{hidden} classes with fewer objects are listed in doctor.json.") if hidden > 0 else ""
    return table(("Class", "Objects", "Share", "Images", "Median size", "Unmatched"), shown) + more


def _sizes(examination: Examination) -> str:
    rows = [
        (
            f"{row['from']} px or more" if row["to"] > 1e4 else f"{row['from']} to {row['to']} px",
            row["objects"],
            "" if row["unmatched"] is None else share(row["unmatched"]),
        )
        for row in size_histogram(examination.view)
    ]
    return table(("Side", "Objects", "No anchor with IoU 0.5 or more"), rows)


def _images(examination: Examination) -> str:
    parts = []
    for name, split_numbers in numbers(examination)["splits"].items():
        facts = [
            ("Images", str(split_numbers["images"])),
            ("Images without objects", str(split_numbers["images_without_objects"])),
            ("Maximum objects per image", str(split_numbers["most_objects"])),
            ("Crowd boxes", str(split_numbers["crowds"])),
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
