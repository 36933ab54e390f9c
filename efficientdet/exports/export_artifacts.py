"""Export of a checkpoint to files that are compared with it, evaluated and timed."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import device_name, versions
from efficientdet.evaluation.data_set_evaluator import detect_images, read_evaluator
from efficientdet.exports.exported_file import ExportFormat
from efficientdet.exports.formats import export_formats
from efficientdet.inference.calibration import CalibrationImages, calibration_of_files, calibration_of_records
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from efficientdet.inference.detect import Detect
from efficientdet.options.export import ExportOptions
from object_detection.coco.bootstrap import RESAMPLES, multiplicities, paired_differences, resampled
from object_detection.coco.matching import Comparison
from object_detection.coco.measures import CocoMeasures
from object_detection.geometry.box_geometry import pairwise_iou
from program_support.atomic_files import write_texts
from program_support.checked_fields import checked
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError

TABLE_FILES = ("artifacts.json", "README.md")
_COLUMNS = ("format", "file", "MB", "median ms", "detections", "agree", "score differs by")
_QUALITY = ("AP", "AP50", "AP less the checkpoint's")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """AP of a file on the validation records."""

    ap: float
    ap50: float
    ap_difference: float  # difference from the checkpoint's AP
    ap_difference_interval: tuple[float, ...]  # paired 95 % interval over the images; () if not computed

    @property
    def change(self) -> str:
        """The difference from the checkpoint's AP, with its interval."""
        ends = self.ap_difference_interval
        return f"{self.ap_difference:+.4f}" + (f", 95 % interval {ends[0]:+.4f} to {ends[1]:+.4f}" if ends else "")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A row of the table."""

    format: str
    file: str
    megabytes: float
    median_ms: float | None  # one image, resizing included; None if the file cannot be run here
    compared: int  # detections of the checkpoint
    agreement: float  # fraction that the file finds too: same class, all sides within half a pixel
    score_difference: float  # largest difference of scores
    quality: Quality | None = None


@dataclass(frozen=True, kw_only=True)
class ArtifactTable:
    """The table with its header."""

    model: str
    machine: str
    versions: dict[str, str]
    compared_in: str  # definition of agreement
    checkpoint: Quality | None
    validation_images: int
    calibration_images: int
    artifacts: Sequence[Artifact]

    def write(self, folder: str, description: Description) -> None:
        """Write artifacts.json, and README.md with the table and what its users must know of the model.

        Raises:
            InputError: they cannot be written.
        """
        texts = json.dumps(asdict(self), indent=1) + "\n", "\n".join([*self._card(description), *self._lines()]) + "\n"
        write_texts(folder, dict(zip(TABLE_FILES, texts, strict=True)))

    def _card(self, description: Description) -> list[str]:
        """Return lines about the model."""
        names = [category["name"] for category in description.categories]
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return [
            f"# {self.model}: {shown}",
            "",
            f"Input size {description.hparams['image_size']}, {len(names)} classes. "
            f"Score threshold: {ScoreThresholds.stored_in(description)}.",
            "",
            "```python",
            "import efficientdet",
            "",
            f'detections = efficientdet.load_detector("{self.artifacts[0].file}").predict("image.jpg")',
            "```",
            "",
            *([f"{tiling_note(description)}.", ""] if description.tiling else []),
            "License: not stated; it depends on the training images and on the weights that the training started from.",
            "",
        ]

    def _lines(self) -> list[str]:
        titles: tuple[str, ...] = _COLUMNS
        measured = "AP was not measured; use `--val_file_pattern='records/val-*'` to measure it."
        if self.checkpoint:
            titles += _QUALITY
            measured = (
                f"AP of {self.validation_images} images of the validation records; the checkpoint has "
                f"AP {self.checkpoint.ap:.4f}, AP50 {self.checkpoint.ap50:.4f}."
            )
        return [
            f"{self.machine}; " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
            f"Milliseconds: an image resized and detected, batch 1. Agreement: {self.compared_in}.",
            measured,
            *([f"int8 calibration: {self.calibration_images} images."] if self.calibration_images else []),
            "",
            *(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles))),
            *(f"| {' | '.join(_cells(line)[: len(titles)])} |" for line in self.artifacts),
        ]


def _cells(line: Artifact) -> list[str]:
    quality = line.quality
    return [
        line.format,
        line.file,
        f"{line.megabytes}",
        "-" if line.median_ms is None else f"{line.median_ms}",
        f"{line.compared}",
        f"{line.agreement:.1%}",
        f"{line.score_difference:.2g}",
        *([f"{quality.ap:.4f}", f"{quality.ap50:.4f}", quality.change] if quality else "---"),
    ]


def tiling_note(description: Description) -> str:
    """Return what users of the files of a model that was trained on tiles must know."""
    return (
        f"Trained on {description.tiling}: load_detector, infer.py, eval.py and serve.py detect in them and merge what "
        "they find; other programs, and the web page, are given a complete image and must do this themselves"
    )


BATCHES = (1, 2, 8)  # batch sizes in which files are compared
PIXELS = 0.5  # tolerance of the sides of agreeing detections
SAME_OBJECT_IOU = 0.75  # int8 rounding moves sides; boxes above it are one object's
_FEWEST_RUNS = 3  # timed runs on an image, if its tiles take the time of many images; also runs before the timed ones
_MAX_IMAGES, _MAX_RECORDS = 64, 16  # images of --images and of records that each file is compared on


@checked
class ExportConfig(ExportOptions):
    """Options of an export with resolved paths and formats. Compared are `images`, else records, else random noise."""

    output_dir: str
    records: tuple[str, ...] = ()  # AP is measured on them; (): it is not measured
    calibration_images: tuple[str, ...] = ()  # image files; (): use `calibration_records`
    calibration_records: tuple[str, ...] = ()


class Agreement(NamedTuple):
    """Agreement of two lists of detections of an image."""

    compared: int
    share: float  # fraction of detections of both lists with a partner in the other
    score_difference: float  # largest difference between detections of equal rank


def compare_detections(ours, others, *, pixels: float | None, thresholds: ScoreThresholds | None = None) -> Agreement:
    """Compare the detections of an image with others, ignoring those with scores below the thresholds.

    A detection agrees if it has a partner among the others, of its class and any score, with all four sides within
    `pixels`, or, where these are None, with an IoU of at least SAME_OBJECT_IOU.
    """
    shown, others_shown = (
        np.ones(len(rows.scores), bool) if thresholds is None else rows.scores >= thresholds.of(rows.category_ids)
        for rows in (ours, others)
    )
    count, total = int(shown.sum()), int(shown.sum() + others_shown.sum())
    if not total:
        return Agreement(0, 1.0, 0.0)
    distances = np.abs(ours.boxes[:, None] - others.boxes[None]).max(axis=-1)  # [N, N']
    if pixels is None:
        near = np.asarray(pairwise_iou(ours.boxes, others.boxes)) >= SAME_OBJECT_IOU
    else:
        near = distances <= pixels
    partners = near & (ours.category_ids[:, None] == others.category_ids[None])
    pairs = {}
    for row, others_near in enumerate(partners):  # the best score first
        if candidates := [other for other in np.flatnonzero(others_near).tolist() if other not in pairs]:
            pairs[min(candidates, key=distances[row].__getitem__)] = row
    share = sum(int(shown[row]) + int(others_shown[other]) for other, row in pairs.items()) / total
    common = min(len(ours.scores), len(others.scores), max(count, int(others_shown.sum())))
    difference = np.abs(ours.scores[:common] - others.scores[:common]).max(initial=0.0)
    return Agreement(count, share, float(difference))


class ArtifactComparison:
    """Comparison of exported files with their checkpoint."""

    def __init__(self, restored: Restored, reference: Detect, config: ExportConfig):
        self.restored, self._config = restored, config
        index = index_records(config.records) if config.records else None
        self._images = _images(config, index, restored)
        tiling = restored.description.tiling
        tiles = 1 if tiling is None else len(tiling.tiles((self._images[0].shape[0], self._images[0].shape[1])))
        self._runs = max(min(config.runs, _FEWEST_RUNS), config.runs // tiles)
        self._expected = [reference([image])[0] for image in self._images]
        self.best_score = max((float(rows.scores.max(initial=0.0)) for rows in self._expected), default=0.0)
        self.measures: CocoMeasures | None = None
        if index:
            self._index = index
            self._evaluator = read_evaluator(index, restored.class_names, json_file=config.val_json_file)
            self.measures, self._compared = self._measured(reference, resamples=None)
            interval = self.measures.shown_interval("numbers", "AP")
            print(
                f"checkpoint: AP {self.measures.numbers['AP']:.4f} on {self.measures.images} images"
                + f", 95 % interval {interval}" * bool(interval)
            )
            if not restored.description.score_thresholds:
                self.restored = replace(
                    restored, description=replace(restored.description, score_thresholds=self.measures.score_thresholds)
                )
        self._thresholds: ScoreThresholds | None = ScoreThresholds.stored_in(self.restored.description)
        self.compared = f"detections from the score threshold on ({self._thresholds})"
        print(f"score threshold: {self._thresholds}")
        if not any(len(rows.drawn(self._thresholds.of(rows.category_ids), None).scores) for rows in self._expected):
            self._thresholds, self.compared = None, "all detections, as none reaches the score threshold"
            print(f"comparing {self.compared}; the highest score is {self.best_score:.3g}")

    def artifact(self, form: ExportFormat, path: Path) -> Artifact:
        """Return the table row of a file."""
        detect, agreements = form.open_for(self.restored, path), list[Agreement]()
        if detect:
            for size in BATCHES:
                batches = (self._images[first : first + size] for first in range(0, len(self._images), size))
                detected = [rows for batch in batches for rows in detect(batch)]
                pixels = None if form.calibrates else PIXELS
                agreements += [
                    compare_detections(expected, ours, pixels=pixels, thresholds=self._thresholds)
                    for ours, expected in zip(detected, self._expected, strict=True)
                ]
        compared = sum(agreement.compared for agreement in agreements)
        share = sum(agreement.share * agreement.compared for agreement in agreements) / compared if compared else 1.0
        median = None
        if detect and not form.runs_in:
            median = median_ms(partial(detect, self._images[:1]), runs=self._runs)
        quality = None
        if self.measures and detect:
            measures, matched = self._measured(detect)
            quality = quality_of(measures, self.measures, interval=self._paired_interval(matched))
        return Artifact(
            format=form.name,
            file=path.name,
            megabytes=round(sum(file.stat().st_size for file in form.files(path)) / 1e6, 2),
            median_ms=median,
            compared=compared // len(BATCHES),
            agreement=share,
            score_difference=max((agreement.score_difference for agreement in agreements), default=0.0),
            quality=quality,
        )

    def _measured(self, detect: Detect, *, resamples: int | None = 0) -> tuple[CocoMeasures, Comparison]:
        rows = detect_images(detect, self._index, samples=self._config.eval_samples)
        compared = self._evaluator.compare(rows)
        return self._evaluator.evaluate(rows, resamples=resamples, comparison=compared), compared

    def _paired_interval(self, compared: Comparison) -> tuple[float, ...]:
        """Return the 95 % interval of a file's AP less the checkpoint's; () where the checkpoint's AP has none."""
        assert self.measures is not None  # there are records
        if not self.measures.intervals:
            return ()
        weights, names = multiplicities(self.measures.images, RESAMPLES), compared.names
        samples = (resampled(one, weights) for one in (self._compared, compared))
        change = paired_differences("", *samples, classes=names, images=self.measures.images).numbers.get("AP")
        return (change.low, change.high) if change else ()


def quality_of(measures: CocoMeasures, reference: CocoMeasures, *, interval: tuple[float, ...] = ()) -> Quality:
    """Return AP and its difference from the reference's."""
    return Quality(
        ap=measures.numbers["AP"],
        ap50=measures.numbers["AP50"],
        ap_difference=measures.numbers["AP"] - reference.numbers["AP"],
        ap_difference_interval=interval,
    )


def median_ms(run: Callable[[], object], *, runs: int) -> float:
    """Return the median time of a run in milliseconds."""
    ends = [time.perf_counter()]
    for _ in range(_FEWEST_RUNS + runs):
        run()
        ends.append(time.perf_counter())
    return round(1e3 * float(np.median(np.diff(ends)[_FEWEST_RUNS:])), 2)


def _images(config: ExportConfig, index: RecordIndex | None, restored: Restored) -> list[np.ndarray]:
    """Return the images of --images, else those of the records, else noise."""
    if config.images:
        chosen = calibration_of_files(config.images, most=_MAX_IMAGES)
        if len(chosen.names) < len(config.images):
            print(f"comparing on {len(chosen.names)} of {len(config.images)} images, evenly spaced")
        return list(chosen.read())
    if index:
        return list(calibration_of_records(index, most=_MAX_RECORDS).read())
    height, width = restored.detector.image_size
    return list(np.random.default_rng(0).integers(0, 256, (2, height * 3 // 4, width, 3), np.uint8))


_LEAST_AGREEMENT = 0.98
_TRAINED = 0.05  # highest score below which a detector is considered untrained


def export_artifacts(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    """Export every format, compare, evaluate and time it; write the table to README.md and artifacts.json.

    Raises:
        InputError: a file cannot be written, or is the user's.
        RuntimeError: a float32 file of a trained checkpoint has other detections in images than the checkpoint.
    """
    folder, formats = Path(config.output_dir), export_formats()
    files = [file for name in config.formats for file in formats[name].files(folder / formats[name].file)]
    names = {file.relative_to(folder).parts[0] for file in files} | {formats[name].file for name in config.formats}
    with claimed_outputs(*(folder / name for name in (*sorted(names), *TABLE_FILES))):
        return _export(model, config)


def _export(model: ModelConfig, config: ExportConfig) -> ArtifactTable:
    calibration = _calibration(config)
    restored, _ = load_model(model)
    formats = [export_formats()[name] for name in config.formats]
    for form in formats:
        form.check(restored.detector)
    comparison = ArtifactComparison(restored, checkpoint_detector(restored).detect, config)
    restored = comparison.restored
    if restored.description.tiling:
        print(f"note: {tiling_note(restored.description)}")
    lines = []
    for form in formats:
        path = Path(config.output_dir, form.file)
        try:
            form.write(restored, path, calibration)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
        lines.append(comparison.artifact(form, path))
        print(f"wrote {path}: {_summary(lines[-1], form)}")
    table = ArtifactTable(
        model=restored.description.model_name,
        machine=device_name(),
        versions=versions(),
        checkpoint=None if comparison.measures is None else quality_of(comparison.measures, comparison.measures),
        compared_in=f"{comparison.compared}: the fraction found by both checkpoint and file, of the same class and "
        f"with all sides within {PIXELS} pixels (int8: with an IoU of {SAME_OBJECT_IOU} or more), in batches of "
        + ", ".join(map(str, BATCHES)),
        validation_images=comparison.measures.images if comparison.measures else 0,
        calibration_images=len(calibration.names),
        artifacts=lines,
    )
    table.write(config.output_dir, restored.description)
    wrong = [
        line
        for line, form in zip(lines, formats, strict=True)
        if not form.calibrates and (line.agreement < _LEAST_AGREEMENT or line.score_difference > form.score_tolerance)
    ]
    if wrong and (comparison.best_score < _TRAINED or not (config.images or config.records)):
        print(
            f"warning: {wrong[0].file} does not find all detections of the checkpoint, whose highest score is "
            f"{comparison.best_score:.3f}: rounding changes the order of uncertain boxes; compare on images of the "
            "data with --images"
        )
    elif wrong:
        raise RuntimeError(
            f"{wrong[0].file} does not find the detections of the checkpoint; see "
            f"{config.output_dir}/README.md for the differences"
        )
    return table


def _calibration(config: ExportConfig) -> CalibrationImages:
    if config.calibration_records:
        return calibration_of_records(index_records(config.calibration_records), most=config.int8_samples)
    return calibration_of_files(config.calibration_images, most=config.int8_samples)


def _summary(line: Artifact, form: ExportFormat) -> str:
    quality = f", AP {line.quality.ap:.4f} ({line.quality.change})" if line.quality else ""
    time_of_one = f"not timed (needs {form.runs_in})" if line.median_ms is None else f"{line.median_ms} ms per image"
    return f"{line.agreement:.1%} of {line.compared} detections agree, {time_of_one}{quality}"
