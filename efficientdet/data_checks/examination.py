"""Examination of a data set: findings, suggested settings, and the pages `doctor.html` and `doctor.json` of both."""

import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataset.conversion.image_split import ImageStatistics, decode_reduced, measure_images, near_duplicates
from dataset.records.labeled_records import LabeledImages
from efficientdet.data_checks.anchor_search import input_findings
from efficientdet.data_checks.findings import Finding, as_hparams, counted, named, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.data_checks.label_checks import label_findings
from efficientdet.data_checks.tile_checks import tile_findings
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.html_page import command, image_row, notices, page, paragraph, subheading, table
from program_support.atomic_files import report_write_errors, write_text
from program_support.errors import InputError
from program_support.progress import Progress

SIZES = (0, 8, 16, 32, 64, 128, 256, 512, 1 << 16)  # pixels of a side at the network's input
_SHOWN = 100
_IMAGES = 100
_SIDE = 320  # pixels of a drawn image
_CLASSES = 100  # rows of a table
_MANY_ALIKE = 0.05
Statistics = Mapping[int, ImageStatistics | None]
Pair = tuple[tuple[int, int], tuple[int, int], bool]


@dataclass(frozen=True, kw_only=True)
class Split:
    """An examined split of a data set."""

    name: str
    images: LabeledImages
    statistics: Statistics
    # Image numbers and reasons, the most suspicious first
    suspicious: list[tuple[int, list[str]]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Content of the page and the JSON file; `view` is the view of the training images."""

    hparams: Hyperparameters
    view: InputView
    splits: Sequence[Split]
    findings: Sequence[Finding]

    @property
    def settings(self) -> dict[str, Any]:
        """The hyperparameters that fix the findings."""
        return {key: value for finding in self.findings for key, value in finding.settings.items()}

    @property
    def warnings(self) -> list[Finding]:
        """The findings that reduce accuracy or speed."""
        return [finding for finding in self.findings if finding.is_warning]


def quick_findings(images: LabeledImages, hparams: Hyperparameters, *, fixed: Collection[str] = ()) -> list[Finding]:
    """Return findings from labels and sizes without decoding images, warnings first; keep `fixed` hyperparameters."""
    found = input_findings(InputView.of(images, hparams), fixed=fixed)
    findings = [*found, *tile_findings(images, hparams), *label_findings(images, hparams)]
    kept = ({key: value for key, value in one.settings.items() if key not in fixed} for one in findings)
    return _sorted([replace(one, settings=settings) for one, settings in zip(findings, kept, strict=True)])


def examine(
    splits: Mapping[str, LabeledImages],
    hparams: Hyperparameters,
    *,
    fixed: Collection[str] = (),
    images_read: int,
    done: Callable[[], None] = lambda: None,
) -> Examination:
    """Examine the training images, the first of `splits`, and the other splits.

    No other values are suggested for `fixed` hyperparameters. All boxes are examined; at most `images_read` images of
    each split are decoded. `done` is called after each.
    """
    statistics = [measure_images(images, _sample(len(images), images_read), done=done) for images in splits.values()]
    pairs = alike_images(list(splits.values()), statistics)
    training, *others = splits.values()
    common = [*alike_image_findings(list(splits.values()), pairs)]
    for other in others:
        common += split_findings(training, other)
    findings, examined = common, []
    for number, ((name, images), measured) in enumerate(zip(splits.items(), statistics, strict=True)):
        labels = (
            label_findings(images, hparams, trains=False) if number else quick_findings(images, hparams, fixed=fixed)
        )
        of_split = [*labels, *image_findings(images, measured)]
        alike = [images.names[place] for pair in pairs for split, place in pair[:2] if split == number]
        reasons = defaultdict(list)
        for finding in of_split:
            for image in finding.images:
                reasons[image].append(finding.about)
        for image in alike:
            reasons[image].append("may be a near-duplicate")
        suspicious = [(place, reasons[image]) for place, image in enumerate(images.names) if image in reasons]
        suspicious.sort(key=lambda one: -len(one[1]))
        examined.append(Split(name=name, images=images, statistics=measured, suspicious=suspicious))
        if number:
            of_split = [replace(finding, line=f"{name}: {finding.line}", settings={}) for finding in of_split]
        findings = findings + of_split
    view = InputView.of(training, hparams)
    return Examination(hparams=hparams, view=view, splits=examined, findings=_sorted(findings))


def numbers(examination: Examination) -> dict[str, Any]:
    """Return the content of doctor.json."""
    view = examination.view
    return {
        "model": examination.hparams.model_name,
        "input": {"height": view.size[0], "width": view.size[1]},
        "findings": [
            {
                "about": finding.about,
                "level": finding.level,
                "line": finding.line,
                "settings": dict(finding.settings),
                "images": list(finding.images),
            }
            for finding in examination.findings
        ],
        "suggested": {"settings": examination.settings, "hparams": as_hparams(examination.settings)},
        "classes": class_rows(view),
        "sizes": size_histogram(view),
        "splits": {split.name: _split_numbers(split) for split in examination.splits},
    }


def class_rows(view: InputView) -> list[dict[str, Any]]:
    """Return for each class its objects, images, median size at the input, and the share without an anchor."""
    images, rows = view.images.images_with(), []
    for number, name in enumerate(view.images.class_names.names):
        mine = view.classes == number
        size = float(np.median(view.sides[mine])) if mine.any() else None
        row = {"name": name, "objects": int(mine.sum()), "images": int(images[number]), "median_size": size}
        rows.append({**row, "unmatched": _unmatched(view, mine)})
    return rows


def _unmatched(view: InputView, objects: np.ndarray) -> float | None:
    """Return the share of objects, a mask [M], without an anchor; None if there are no objects or no anchors."""
    return float(view.unmatched[objects].mean()) if objects.any() and view.has_anchors else None


def size_histogram(view: InputView) -> list[dict[str, Any]]:
    """Return the number of objects with sides between successive SIZES, and the share of them without an anchor."""
    rows = []
    for low, high in itertools.pairwise(SIZES):
        mine = (view.sides >= low) & (view.sides < high)
        rows.append({"from": low, "to": high, "objects": int(mine.sum()), "unmatched": _unmatched(view, mine)})
    return rows


def _split_numbers(split: Split) -> dict[str, Any]:
    images = split.images
    return {
        "images": len(images),
        "objects": len(images.boxes),
        "crowds": int(images.crowd.sum()),
        "images_without_objects": int(np.sum(images.counts() == 0)),
        "most_objects": int(images.counts().max(initial=0)),
        "boxes_left_out": list(images.left_out),
        "images_left_out": list(images.images_left_out),
        "images_read": len(split.statistics),
        "suspicious": [
            {"image": images.names[number], "reasons": reasons} for number, reasons in split.suspicious[:_SHOWN]
        ],
    }


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: not finding.is_warning)


def _sample(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int)) if count else np.zeros(0, int)


def image_findings(images: LabeledImages, statistics: Statistics) -> Iterator[Finding]:
    """Yield findings about the images of a split; `statistics` are measurements of the images that were read."""
    undecodable = [number for number, measured in statistics.items() if measured is None]
    other_size = [
        number for number, measured in statistics.items() if measured and measured.size != tuple(images.sizes[number])
    ]
    differ = "differ in size from their labels (another image, or EXIF rotation)"
    for about, what, numbers in (
        ("undecodable images", "cannot be decoded", undecodable),
        ("images of another size", differ, other_size),
    ):
        if numbers:
            names = [images.names[number] for number in sorted(numbers)]
            yield Finding(about, True, f"{len(names)} of {len(statistics)} {what}: {named(names)}", images=names)


def alike_images(splits: Sequence[LabeledImages], statistics: Sequence[Statistics]) -> list[Pair]:
    """Return pairs of identical or similar images, each as two (split, number) and whether their files are identical.

    Identical files are found among all images with digests in the records, near-duplicates among the images that were
    read.
    """
    first: dict[str, tuple[int, int]] = {}
    pairs: dict[tuple[tuple[int, int], tuple[int, int]], bool] = {}
    thumbnails: dict[tuple[int, int], np.ndarray] = {}
    for split, images in enumerate(splits):
        for number, stored in enumerate(images.digests):
            measured = statistics[split].get(number)
            if measured is not None:
                thumbnails[split, number] = measured.thumbnail
            digest = stored.decode("ascii", "replace") or (measured.digest.hex() if measured else "")
            if digest and (other := first.setdefault(digest, (split, number))) != (split, number):
                pairs[other, (split, number)] = True
    places = [*thumbnails]
    for i, j in near_duplicates([*thumbnails.values()]):
        pairs.setdefault((places[i], places[j]), False)
    return [(one, other, equal) for (one, other), equal in sorted(pairs.items())]


def alike_image_findings(splits: Sequence[LabeledImages], pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Yield findings about copies and near-duplicates across splits, which raise the measured AP, and in one split."""
    for equal, what in ((True, "with identical files"), (False, "that look alike (possible near-duplicates)")):
        across, within = (
            [
                f"{splits[one[0]].names[one[1]]} and {splits[other[0]].names[other[1]]}"
                for one, other, same in pairs
                if same == equal and (one[0] != other[0]) == in_both
            ]
            for in_both in (True, False)
        )
        about = "copies" if equal else "near-duplicates"
        if across:
            harm = "the AP will be too high" if equal else "if they show the same scene, the AP will be too high"
            yield Finding(
                f"{about} in both splits",
                True,
                f"{counted(len(across), 'pair', 'pairs')} of a training and a validation image {what}: "
                f"{named(across)}; {harm}; keep each pair in one split",
                images=across,
            )
        if within:
            line = f"{counted(len(within), 'pair', 'pairs')} of images of one split {what}: {named(within)}"
            yield Finding(about, len(within) > _MANY_ALIKE * sum(map(len, splits)), line, images=within)


def split_findings(training: LabeledImages, validation: LabeledImages) -> Iterator[Finding]:
    """Yield findings about classes that only one of the two splits has."""
    counts = [np.bincount(images.classes, minlength=len(images.class_names)) for images in (training, validation)]
    names = np.array(training.class_names.names)
    for mine, other, what in ((1, 0, "validation"), (0, 1, "training")):
        alone = (counts[mine] > 0) & (counts[other] == 0)
        lost = counts[mine][alone].sum() / max(counts[mine].sum(), 1)
        # One or two objects of a rare class may be due to chance; only a less likely difference is a warning.
        unlikely = alone & (counts[mine] / max(counts[mine].sum(), 1) * counts[other].sum() > 10)
        if alone.any():
            listed = [f"{name} ({count})" for name, count in zip(names[alone], counts[mine][alone], strict=True)]
            yield Finding(
                "classes in one split",
                what == "validation" and bool(unlikely.any()),
                f"{counted(alone.sum(), 'class has', 'classes have')} objects only in the {what} images "
                f"({share(lost)} of their objects): {named(listed)}",
            )


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
