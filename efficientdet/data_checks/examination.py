"""Examination of a data set: findings, suggested settings, and the statistics behind both."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dataset.conversion.image_statistics import measure_images
from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.anchor_search import input_findings
from efficientdet.data_checks.findings import Finding, as_hparams
from efficientdet.data_checks.image_checks import (
    Statistics,
    alike_image_findings,
    alike_images,
    image_findings,
    split_findings,
)
from efficientdet.data_checks.input_view import InputView
from efficientdet.data_checks.label_checks import label_findings
from efficientdet.data_checks.tile_checks import tile_findings
from efficientdet.families.hyperparameters import Hyperparameters

SIZES = (0, 8, 16, 32, 64, 128, 256, 512, 1 << 16)  # pixels of a side at the network's input
RATIOS = (0, 1 / 4, 1 / 2, 2 / 3, 0.9, 1.1, 3 / 2, 2, 4, 1e9)  # width / height
_SHOWN = 100


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
        "sizes": histogram(view, view.sides, SIZES),
        "aspect_ratios": histogram(view, ratios(view), RATIOS),
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


def ratios(view: InputView) -> np.ndarray:
    """Return the aspect ratio (width / height) of each object at the input, [M]."""
    sides = view.boxes[:, 2:] - view.boxes[:, :2]
    return sides[:, 1] / np.maximum(sides[:, 0], 1e-6)


def histogram(view: InputView, values: np.ndarray, bounds: Sequence[float]) -> list[dict[str, Any]]:
    """Return the number of objects between successive bounds, and the share of them without an anchor."""
    rows = []
    for low, high in itertools.pairwise(bounds):
        mine = (values >= low) & (values < high)
        rows.append({"from": low, "to": high, "objects": int(mine.sum()), "unmatched": _unmatched(view, mine)})
    return rows


def _split_numbers(split: Split) -> dict[str, Any]:
    images, brightness = split.images, [measured.brightness for measured in split.statistics.values() if measured]
    sizes, counts = np.unique(images.sizes, axis=0, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:10]
    return {
        "images": len(images),
        "objects": len(images.boxes),
        "crowds": int(images.crowd.sum()),
        "images_without_objects": int(np.sum(images.counts() == 0)),
        "most_objects": int(images.counts().max(initial=0)),
        "boxes_left_out": list(images.left_out),
        "images_left_out": list(images.images_left_out),
        "images_read": len(split.statistics),
        "common_sizes": [
            {"height": int(sizes[i][0]), "width": int(sizes[i][1]), "images": int(counts[i])} for i in common
        ],
        "brightness": np.percentile(brightness, [0, 25, 50, 75, 100]).round(1).tolist() if brightness else [],
        "suspicious": [
            {"image": images.names[number], "reasons": reasons} for number, reasons in split.suspicious[:_SHOWN]
        ],
    }


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: not finding.is_warning)


def _sample(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int)) if count else np.zeros(0, int)
