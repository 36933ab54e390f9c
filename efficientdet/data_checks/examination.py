"""Examination of a data set: findings, suggested settings, and the pages `doctor.html` and `doctor.json` of both.

Its quick part is what a training runs on its records before it starts, also for --suggest.
"""

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataset.conversion.image_statistics import ImageStatistics, decode_reduced, measure_images, near_duplicates
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_index import index_records
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.anchor_search import input_findings, tile_findings
from efficientdet.data_checks.findings import Finding, as_hparams, counted, named, share
from efficientdet.data_checks.input_view import InputView, evenly_spaced
from efficientdet.data_checks.label_checks import (
    CROWDS_ADVICE,
    label_findings,
    unusable_classes,
    unusable_objects,
    usable_objects,
)
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.html_page import command, image_row, notices, page, table
from program_support.atomic_files import write_texts
from program_support.errors import InputError
from program_support.progress import Progress

_IMAGES = 100
_SIDE = 320  # pixels of a drawn image
_MANY_ALIKE = 0.05
_COLUMNS = {
    "Images": "images",
    "Without objects": "images_without_objects",
    "Most objects in an image": "most_objects",
    "Crowds": "crowds",
    "Decoded": "images_read",
}
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
    labeled = list(splits.values())
    statistics = [measure_images(images, evenly_spaced(len(images), most=images_read), done=done) for images in labeled]
    pairs = alike_images(labeled, statistics)
    findings, examined = [*alike_image_findings(labeled, pairs)], []
    for number, (name, images, measured) in enumerate(zip(splits, labeled, statistics, strict=True)):
        labels = (
            label_findings(images, hparams, trains=False) if number else quick_findings(images, hparams, fixed=fixed)
        )
        of_split = [*labels, *image_findings(images, measured)]
        reasons = defaultdict(list)
        for finding in of_split:
            for image in finding.images:
                reasons[image].append(finding.about)
        for split, place in (place for pair in pairs for place in pair[:2]):
            if split == number:
                reasons[images.names[place]].append("may be a near-duplicate")
        suspicious = [(place, reasons[image]) for place, image in enumerate(images.names) if image in reasons]
        suspicious.sort(key=lambda one: -len(one[1]))
        examined.append(Split(name=name, images=images, statistics=measured, suspicious=suspicious))
        if number:
            of_split = [replace(finding, line=f"{name}: {finding.line}", settings={}) for finding in of_split]
        findings += of_split
    return Examination(view=InputView.of(labeled[0], hparams), splits=examined, findings=_sorted(findings))


def numbers(examination: Examination) -> dict[str, Any]:
    """Return the content of doctor.json."""
    view = examination.view
    return {
        "model": view.hparams.model_name,
        "input": {"height": view.size[0], "width": view.size[1]},
        "findings": [
            {name: getattr(finding, name) for name in ("about", "level", "line", "settings", "images")}
            for finding in examination.findings
        ],
        "suggested": {"settings": examination.settings, "hparams": as_hparams(examination.settings)},
        "classes": class_rows(view),
        "splits": {split.name: _split_numbers(split) for split in examination.splits},
    }


def class_rows(view: InputView) -> list[dict[str, Any]]:
    """Return for each class its objects, images, median size at the input, and the share without an anchor."""
    images, rows = view.images.images_with(), []
    for number, name in enumerate(view.images.class_names.names):
        mine = view.classes == number
        size = float(np.median(view.sides[mine])) if mine.any() else None
        unmatched = float(view.unmatched[mine].mean()) if mine.any() and view.has_anchors else None
        row = {"name": name, "objects": int(mine.sum()), "images": int(images[number]), "median_size": size}
        rows.append({**row, "unmatched": unmatched})
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
        "suspicious": [{"image": images.names[number], "reasons": reasons} for number, reasons in split.suspicious],
    }


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: not finding.is_warning)


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
    content = json.dumps(numbers(examination), indent=1) + "\n"
    write_texts(folder, {"doctor.json": content, "doctor.html": check_page(examination)})
    return Path(folder, "doctor.html")


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
        "Images": table(("Split", *_COLUMNS), [_split_row(split) for split in examination.splits]),
        "Most suspicious images": image_row(_suspicious(examination), quality=70, thumbnails=True),
    }
    figure = f"{warnings} warning{'s' * (warnings != 1)}" if warnings else "No problems found"
    lead = f"{what}. Input of {view.hparams.name}: {width} x {height} pixels (width x height)."
    return page("Data check", sections, figure=figure, lead=lead, notes=listed("warning"))


def _classes(examination: Examination) -> str:
    rows = [
        (
            row["name"],
            row["objects"],
            row["images"],
            "" if row["median_size"] is None else f"{row['median_size']:.0f} px",
            "" if row["unmatched"] is None else share(row["unmatched"]),
        )
        for row in class_rows(examination.view)
    ]
    return table(("Class", "Objects", "Images", "Median size", "Unmatched"), rows)


def _split_row(split: Split) -> tuple[str | int, ...]:
    numbers = _split_numbers(split)
    return split.name, *(numbers[name] for name in _COLUMNS.values())


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


_FILES, _RECORDS = 8, 1000  # numbers of files and records in the sample, evenly spaced: shards are shuffled


def with_suggestions(config: TrainingConfig, *, log: Callable[[str], None]) -> TrainingConfig:
    """Check a sample of the records and log the findings; return the configuration, with --suggest fixed.

    Findings are warnings and suggestions. A hyperparameter that the user set keeps its value. Records that cannot be
    read are reported later, when all are indexed and verified.

    Raises:
        InputError: no object can be used.
    """
    if config.benchmark:
        return config
    actionable = [finding for finding in _findings_at_start(config) if finding.is_warning or finding.settings]
    suggested = {
        key: value
        for finding in actionable
        for key, value in finding.settings.items()
        if key not in config.hparams_given
    }
    for finding in actionable:
        log(f"{finding.level}: {finding.line}")
    if not suggested:
        return config
    if not config.suggest:
        log(f"--suggest, or --hparams={as_hparams(suggested)}, applies it")
        return config
    log(f"--suggest sets {as_hparams(suggested)}")
    hparams, given = with_overrides(config.hparams, suggested), config.hparams_given.union(suggested)
    return dataclasses.replace(config, hparams=hparams, hparams_given=given)


def _findings_at_start(config: TrainingConfig) -> Iterator[Finding]:
    """Yield findings about a sample of the records; of those for validation about classes whose AP is not measured."""
    if sample := _examined(config, config.records, trains=True):
        images, is_complete = sample
        findings = quick_findings(images, config.hparams, fixed=config.hparams_given)
        yield from (finding for finding in findings if is_complete or finding.about != "absent classes")
    if not config.evaluates or config.val_json_file:  # a COCO json replaces the labels of the records
        return
    if sample := _examined(config, config.val_records, trains=False):
        yield from unusable_classes(sample[0], config.hparams, trains=False)


def _examined(config: TrainingConfig, paths: Sequence[str], *, trains: bool) -> tuple[LabeledImages, bool] | None:
    """Return a sample of the records and whether it is all of them; None if they cannot be read.

    All are read if the sample has a class without usable objects.

    Raises:
        InputError: no object is usable.
    """
    chosen = paths[:: -(-len(paths) // _FILES)]
    try:
        index = index_records(chosen)
        numbers = evenly_spaced(len(index), most=_RECORDS)
        images = labeled_records(index, config.class_names, numbers)
        is_complete = len(chosen) == len(paths) and len(numbers) == len(index)
        is_usable = usable_objects(images, config.hparams, trains=trains).any()
        if not is_complete and (not is_usable or any(unusable_classes(images, config.hparams, trains=trains))):
            images, is_complete = labeled_records(index_records(paths), config.class_names), True
    except InputError:
        return None
    if not usable_objects(images, config.hparams, trains=trains).any():
        raise InputError(_nothing_usable(images, config, paths, trains=trains))
    return images, is_complete


def _nothing_usable(images: LabeledImages, config: TrainingConfig, paths: Sequence[str], *, trains: bool) -> str:
    where = f"{paths[0]}{' and others' if len(paths) > 1 else ''}"
    without = "" if trains else ", or --training_mode=train300, which does not evaluate"
    if not len(images.boxes):
        return f"{where}: the {len(images)} images have no objects; expected records with labels{without}"
    use, kinds = (
        "trained on" if trains else "counted in the AP",
        unusable_objects(images, config.hparams, trains=trains),
    )
    return f"{where}: none of the {len(images.boxes)} objects can be {use} ({kinds}); {CROWDS_ADVICE}{without}"
