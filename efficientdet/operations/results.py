"""Result types of the Python interface: frozen dataclasses, shown as lines of text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientdet.data_checks.findings import Finding, as_hparams

if TYPE_CHECKING:  # train.py starts without COCO evaluation
    from object_detection.coco.bootstrap import Difference
    from object_detection.coco.score_calibration import ScoreCalibration

_MAX_SHOWN = 6  # entries of a mapping


@dataclass(frozen=True, repr=False)
class _Result:
    """Base of results: shows the fields that are set."""

    def _rows(self) -> Iterator[tuple[str, str]]:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.repr and value is not None and value != {} and value != ():
                yield item.name, _shown(value)

    def __repr__(self) -> str:
        rows = list(self._rows())
        width = max(len(name) for name, _ in rows)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        shown = [f"{key} {_shown(one)}" for key, one in list(value.items())[:_MAX_SHOWN]]
        return ", ".join([*shown, *(["..."] if len(value) > _MAX_SHOWN else [])])
    return ", ".join(map(_shown, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class ConversionResult(_Result):
    """Records that `efficientdet.convert` wrote.

    Attributes:
        output_dir: folder of the records; `train`, `evaluate` and `examine` accept it.
        images: number of images in each split.
        boxes: number of boxes in each split.
        class_names: names of the classes.
        reports: `<split>.report.json` of each split: counts, fixed and skipped images and boxes.
    """

    output_dir: Path
    images: dict[str, int]
    boxes: dict[str, int]
    class_names: tuple[str, ...]
    reports: dict[str, Path] = field(repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class ExaminationResult(_Result):
    """Findings of `efficientdet.examine`.

    Attributes:
        findings: each with `level` ("warning" or "note"), `line` (the sentence), `settings` and `images`.
        settings: suggested hyperparameters; `train(..., hparams=result.settings)` uses them.
        page: doctor.html, the report; None without output_dir.
        numbers: doctor.json, the same findings for programs; None without output_dir.
    """

    findings: tuple[Finding, ...]
    settings: dict[str, Any]
    page: Path | None
    numbers: Path | None = field(repr=False)

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield from ((finding.level, finding.line) for finding in self.findings)
        if self.settings:
            yield "settings", as_hparams(self.settings)
        if self.page:
            yield "page", str(self.page)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(_Result):
    """Files and numbers of a training.

    Attributes:
        model_dir: folder of the checkpoints; `evaluate`, `export` and `load_detector` accept it.
        numbers: the 12 COCO measures of the last evaluation; empty without one.
        saved_model: SavedModel of the averaged weights; None under JAX and with benchmark=True.
        report: report.html with the curves of the training.
        log: one JSON entry per line.
    """

    model_dir: Path
    numbers: dict[str, float]
    saved_model: Path | None
    report: Path | None
    log: Path


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluationResult(_Result):
    """COCO measures of a detector, each from 0 to 1, or -1 where there is nothing to measure.

    Attributes:
        numbers: AP, AP50, AP75, ... of boxes.
        mask_numbers: AP, AP50, AP75, ... of masks; empty without masks.
        class_ap: AP of each class by name.
        images: number of evaluated images.
        detections: number of detections.
        intervals: 95 % interval (low, high) of each of "numbers", "class_ap" and those of masks, by name.
        score_thresholds: "overall" and "classes": score thresholds with the best F1.
        score_calibration: errors and maps in `classes` by name, and `table()`; None without calibrate_scores=True.
        report: report.html, or None if no report was requested.
        suspects: suspects.html, beside the labels as proposed; None if they were not requested.
    """

    numbers: dict[str, float]
    mask_numbers: dict[str, float]
    class_ap: dict[str, float]
    images: int
    detections: int
    intervals: dict[str, dict[str, tuple[float, float]]] = field(repr=False)
    score_thresholds: dict[str, Any] = field(repr=False)
    score_calibration: "ScoreCalibration | None" = field(repr=False)
    report: Path | None
    suspects: Path | None


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportResult(_Result):
    """Exported files, each compared with the checkpoint.

    Attributes:
        files: file of each format; `load_detector` accepts all except "onnx-raw", "web" and "cvat".
        agreement: fraction of the checkpoint's detections that the file of each format also finds.
        median_ms: median time per image of each format, in milliseconds.
        ap: AP of each format on the records of val_file_pattern; empty without records.
        table: README.md, which lists all of these.
    """

    files: dict[str, Path]
    agreement: dict[str, float]
    median_ms: dict[str, float]
    ap: dict[str, float]
    table: Path


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonResult(_Result):
    """Detectors compared with the first one on the same images.

    Attributes:
        numbers: the 12 COCO measures of each detector.
        differences: of each pair, by name "FIRST -> SECOND", the difference of each measure: `value`, `low` and `high`
            (95 % interval) and `probability` that the second is better.
        class_differences: the same of each class, by its name: AP, AP50, AP75 and AP by object size.
        page: compare.html, the report.
        json: compare.json, the same for programs.
    """

    numbers: dict[str, dict[str, float]]
    differences: "dict[str, dict[str, Difference]]"
    class_differences: "dict[str, dict[str, dict[str, Difference]]]" = field(repr=False)
    page: Path
    json: Path = field(repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class MonitorResult(_Result):
    """AP estimated on unlabeled images, and what differs from the reference.

    Attributes:
        images: number of images.
        reference_ap: AP on the labeled images of the reference.
        ap: estimated AP; None where it cannot be estimated, as the images are unlike all of the reference.
        precision: the same at the detector's score thresholds and IoU 0.5.
        recall: the same.
        intervals: 90 % intervals (low, high) of `ap`, `precision` and `recall`; empty without estimates.
        drift: p-value of each statistic that differs, with all statistics taken into account.
        alarm: the images differ, or the estimate is probably below half of the reference's AP.
        page: monitor.html.
        json: monitor.json, the same for programs.
    """

    images: int
    reference_ap: float
    ap: float | None
    precision: float | None
    recall: float | None
    intervals: dict[str, tuple[float, float]]
    drift: dict[str, float]
    alarm: bool
    page: Path
    json: Path = field(repr=False)
