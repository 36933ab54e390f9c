"""Comparison of exported files with their checkpoint: detections, AP, time and quantization error."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds, with_default_thresholds
from efficientdet.evaluation.data_set_evaluator import read_evaluator
from efficientdet.evaluation.other_detections import detect_images
from efficientdet.exports.agreement import compare_detections
from efficientdet.exports.artifact_table import MOST_LOST, Artifact, Quality
from efficientdet.exports.export_config import ExportConfig
from efficientdet.exports.export_format import ExportFormat
from efficientdet.exports.timing import medians_in_turns, split_times, times
from efficientdet.inference.detect import Detect
from efficientdet.onnx_translation.calibration import calibration_of_files, calibration_of_records
from efficientdet.reports.drawing import draw_detections
from object_detection.coco.bootstrap import RESAMPLES, multiplicities, paired_differences, resampled
from object_detection.coco.matching import Comparison
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.run_length_masks import decoded

PIXELS = 0.5  # tolerance of the sides of agreeing detections
_FEWEST_RUNS = 3  # timed runs on an image, if its tiles take the time of many images
_MAX_IMAGES, _MAX_RECORDS = 64, 16  # images of --images and of records that each file is compared on


class ArtifactComparison:
    """Comparison of exported files with their checkpoint."""

    def __init__(self, restored: Restored, reference: Detect, config: ExportConfig):
        restored = replace(restored, description=with_default_thresholds(restored.description, config.threshold))
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
        detect = form.open_for(self.restored, path)
        if detect is None:
            agreements = form.compare_inputs(self.restored, path, self._images, pixels=PIXELS)
        else:
            detected = [rows for size in form.batches for rows in _in_batches(detect, self._images, size)]
            pixels = None if form.calibrates else PIXELS
            agreements = [
                compare_detections(expected, ours, pixels=pixels, thresholds=self._thresholds)
                for ours, expected in zip(detected, self._expected * len(form.batches), strict=True)
            ]
        compared = sum(agreement.compared for agreement in agreements)
        share = sum(agreement.share * agreement.compared for agreement in agreements) / compared if compared else 1.0
        median, p99 = None, None
        if detect and not form.runs_in:
            median, p99 = times(lambda: detect(self._images[:1]), runs=self._runs)
        network_ms, postprocessing_ms = split_times(self.restored, form, path, self._images[0], runs=self._config.runs)
        quality = None
        if self.measures and detect:
            measures, matched = self._measured(detect)
            quality = quality_of(measures, self.measures, interval=self._paired_interval(matched))
        return Artifact(
            format=form.name,
            file=path.name,
            megabytes=round(sum(file.stat().st_size for file in form.files(path)) / 1e6, 2),
            median_ms=median,
            p99_ms=p99,
            network_ms=network_ms,
            postprocessing_ms=postprocessing_ms,
            compared=compared // len(form.batches),
            agreement=share,
            box_difference=max((agreement.box_difference for agreement in agreements), default=0.0),
            score_difference=max((agreement.score_difference for agreement in agreements), default=0.0),
            quality=quality,
            edge_tpu=form.describe(path),
        )

    def drawn_image(self) -> np.ndarray:
        """Return the image with the most detections of the checkpoint, drawn into it; uint8 [h, w, 3]."""
        description = self.restored.description
        thresholds = self._thresholds or ScoreThresholds(overall=0.0)
        drawn = [rows.drawn(thresholds.of(rows.category_ids), 20) for rows in self._expected]
        most = max(range(len(drawn)), key=lambda number: len(drawn[number].scores))
        ids, rows = [entry["id"] for entry in description.categories], drawn[most]
        return draw_detections(
            self._images[most],
            rows.boxes,
            classes=[ids.index(category_id) for category_id in rows.category_ids.tolist()],
            names=[entry["name"] for entry in description.categories],
            scores=rows.scores,
            masks=None if rows.masks is None else [decoded(mask) for mask in rows.masks],
        )

    def milliseconds(self, files: Mapping[ExportFormat, Path]) -> list[float]:
        """Return the median milliseconds per image of files by format, which run in turns."""
        detectors = [form.open_for(self.restored, path) for form, path in files.items()]
        return medians_in_turns([partial(detect, self._images[:1]) for detect in detectors if detect], runs=self._runs)

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


def _in_batches(detect: Detect, images: list[np.ndarray], size: int) -> list:
    return [rows for first in range(0, len(images), size) for rows in detect(images[first : first + size])]


def quality_of(measures: CocoMeasures, reference: CocoMeasures, *, interval: tuple[float, ...] = ()) -> Quality:
    losses = {name: reference.class_ap[name] - ap for name, ap in measures.class_ap.items()}
    return Quality(
        ap=measures.numbers["AP"],
        ap50=measures.numbers["AP50"],
        ap_difference=measures.numbers["AP"] - reference.numbers["AP"],
        ap_difference_interval=interval,
        class_losses={
            name: loss for name, loss in sorted(losses.items(), key=lambda entry: -entry[1]) if loss > MOST_LOST
        },
    )


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
