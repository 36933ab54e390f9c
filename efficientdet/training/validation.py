"""Evaluations while a training runs: which weights are best so far, and whether going on is worth it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from keras import ops

from dataset.input.input_config import InputConfig
from dataset.input.pipeline import OriginalImage, evaluation_dataset, original_images
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.training_progress import TrainingProgress
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.evaluation.evaluate import detect_all, read_evaluator, write_measures
from efficientdet.inference.image_rows import BatchDetector
from efficientdet.reports.drawing import draw_detections
from efficientdet.run_log.journal import Journal
from efficientdet.training.guards import check_collapse
from efficientdet.training.interruption import StopWish
from efficientdet.training.state import TrainingState
from object_detection.coco.evaluation import CocoEvaluator, CocoMeasures, shown_measure
from object_detection.coco.results import TESTDEV_FILE_NAME, DetectionRows, results_json, write_results
from object_detection.coco.run_length_masks import decoded
from object_detection.stateless_random import seeds_of
from object_detection.structures import Batch, Objects

BEST = "emackpt-best"
_PICTURES = 4
_DRAWN_FROM = 0.3  # score
_PERCENT = ("AP", "AP50", "AP75", "APs", "APm", "APl")


class Validation:
    """Measures a training state on the validation records; every rank detects its share, the first one counts."""

    def __init__(self, config: TrainingConfig, state: TrainingState, journal: Journal, *, predict: BatchDetector,
                 inputs: InputConfig, description: Description, stop_wish: StopWish,
                 seconds: Callable[[], float]):
        """`stop_wish` ends any of the methods between two batches; `seconds` of training so far."""
        self._config, self._state, self._journal = config, state, journal
        self._predict, self._inputs, self._description, self._stop_wish = predict, inputs, description, stop_wish
        self._seconds = seconds
        self.pictures: list[tuple[str, np.ndarray]] = []  # the last ones drawn, with captions
        self._measured: tuple[int, CocoMeasures, DetectionRows] | None = None  # of the averaged weights after a step
        self._reported_step = -1

    @property
    def samples(self) -> int:
        """How many images an evaluation looks at."""
        return min(self._config.eval_samples or len(self._index), len(self._index))

    @property
    def target_reached(self) -> bool:
        """Whether the best AP is what --target_ap asks for."""
        return 0 < self._config.target_ap <= self._state.progress.best_ap

    @property
    def time_to_target(self) -> float | None:
        """Minutes of training up to the end of the evaluation that reached --target_ap; None where none has, or where a
        training that did not count them did."""
        return self._state.progress.best_seconds / 60 or None if self.target_reached else None

    def reason_to_stop(self, epoch: int) -> str:
        """Why there is no point in going on after an epoch: --target_ap is reached, or --patience evaluations in a row brought
        nothing better. Empty where going on is right."""
        config, progress = self._config, self._state.progress
        if self.target_reached:
            return (f"AP {progress.best_ap:.4f} reaches --target_ap={config.target_ap:g} after epoch {epoch}"
                    f"{minutes_in_words(self.time_to_target)}")
        if 0 < config.patience <= progress.evaluations_since_best:
            return f"no better AP in {config.patience} evaluations: stops after epoch {epoch}"
        return ""

    def evaluate(self, epoch: int) -> float:
        """Measure averaged weights and raw ones, keep the better as emackpt-best if none was; returns the best AP.

        Raises InputError where the AP has collapsed.
        """
        state, progress = self._state, self._state.progress
        averaged = self._measured_average()[0]
        measured = {"averaged": averaged}
        if state.average is not None:
            measured["raw"] = self._measure()[0]
        found = {name: measures.numbers["AP"] for name, measures in measured.items()}
        weights = max(found, key=found.get)
        check_collapse(found[weights], best=progress.best_ap, epoch=epoch)
        progress.evaluations_since_best += 1
        if found[weights] > progress.best_ap:
            progress.best_ap, progress.best_epoch, progress.evaluations_since_best = found[weights], epoch, 0
            progress.best_seconds = self._seconds()
            self._keep_best(weights, measured[weights])
        self._report(epoch)  # last: where there are numbers, the best weights are not older
        if "raw" in found:
            self._journal.curves(state.step, {"validation/AP_raw": found["raw"]})
        self._journal.say(_ap_in_words(epoch, found, progress))
        return found[weights]

    def finish(self, epoch: int) -> CocoMeasures:
        """The averaged weights' numbers at the end, with the table and the submission file."""
        measures, rows = self._measured_average()
        self._report(epoch)
        if self._state.world.is_first:
            write_measures(Path(self._config.model_dir) / "metrics-final.json", measures)
            if self._config.testdev_dir:
                write_results(Path(self._config.testdev_dir) / TESTDEV_FILE_NAME, results_json(rows))
        self._journal.say(measures.table())
        return measures

    def losses(self, epoch: int) -> None:
        """The losses of the averaged weights on the validation records, without augmentation."""
        losses = self.mean_losses()
        self._journal.log((epoch,), {f"val_{name}": value for name, value in losses.items()})
        self._journal.curves(self._state.step, {f"validation/{name}": value for name, value in losses.items()})

    def mean_losses(self) -> dict[str, float]:
        """By name; as of one batch of all images, whatever the number that fits into memory at a time."""
        detector, sums, counts = self._state.detector, Counter(), Counter()
        batches = evaluation_dataset(self._index, self._inputs, samples=self._config.eval_samples)
        with self._state.averaged_weights():
            for batch, row_valid in self._stop_wish.watched(batches):
                batch = _first_rows(batch, int(np.sum(row_valid)))  # the others only fill up
                outputs = detector.training_outputs(batch.images, batch.sizes, training=False)
                seeds = seeds_of(np.asarray(batch.positions), seed=0)  # the same draws in every evaluation
                targets = detector.targets(batch.objects, outputs if detector.learns_from_outputs else None, seeds)
                sums.update({name: float(value) for name, value in detector.loss_sums(outputs, targets).items()})
                counts.update({name: float(value) for name, value in detector.counts(targets).items()})
            weights = {name: float(value) for name, value in detector.regularisation().items()}
        normalisers = detector.normalisers({name: ops.convert_to_tensor(value, "float32") for name, value in counts.items()})
        return {**{name: value / float(normalisers[name]) for name, value in sums.items()}, **weights}

    @property
    def measures(self) -> CocoMeasures | None:
        """The last ones of averaged weights."""
        return self._measured[1] if self._measured else None

    def _measured_average(self) -> tuple[CocoMeasures, DetectionRows]:
        """Of the averaged weights; measured once after a step."""
        state = self._state
        if self._measured is None or self._measured[0] != state.step:
            with state.averaged_weights():
                self._measured = (state.step, *self._measure())
            state.score_thresholds = self._measured[1].score_thresholds
        return self._measured[1:]

    def _report(self, epoch: int) -> None:
        """Write, draw and log what was measured of the averaged weights; once after a step."""
        step, measures, rows = self._measured
        if self._reported_step == step:
            return
        self._reported_step = step
        self._draw(rows)
        if self._state.world.is_first:
            write_measures(Path(self._config.model_dir) / f"metrics-{epoch}.json", measures)
        percent = ",".join(f"{100 * measures.numbers[name]:.2f}" for name in _PERCENT)
        self._journal.say(f"csv format: {epoch},{percent}")
        self._journal.validation(epoch, step=self._state.step, average_precision=measures.numbers["AP"])

    def _draw(self, rows: DetectionRows) -> None:
        """Detections in the first validation images, always the same ones."""
        if not self._state.world.is_first:
            return
        names, ids = self._config.class_names.names, list(self._config.class_names.category_ids)
        self.pictures = []
        for image in self._first_images:
            drawn = np.flatnonzero((rows.image_ids == image.image_id) & (rows.scores >= _DRAWN_FROM))
            classes = [ids.index(category_id) for category_id in rows.category_ids[drawn]]
            self.pictures.append((f"{image.name}, score {_DRAWN_FROM} and above", draw_detections(
                image.pixels, rows.boxes[drawn], classes=classes, names=names, scores=rows.scores[drawn],
                masks=None if rows.masks is None else [decoded(mask) for mask in rows.masks[drawn]])))
        self._journal.pictures(self._state.step, {f"detections/{number}": image
                                                  for number, (_, image) in enumerate(self.pictures)})

    def _measure(self) -> tuple[CocoMeasures, DetectionRows]:
        config, world = self._config, self._state.world
        rows = detect_all(self._predict, self._index, self._inputs, class_names=config.class_names,
                          samples=config.eval_samples, world=world, watched=self._stop_wish.watched,
                          masks_in_whole_pixels=config.hparams.masks_in_whole_pixels)
        return world.gather(self._evaluator.evaluate(rows) if world.is_first else None)[0], rows

    def _keep_best(self, weights: str, measures: CocoMeasures) -> None:
        """The better weights under a name of their own."""
        state = self._state
        if not state.world.is_first:
            return
        arrays = state.averages_by_name() if weights == "averaged" and state.average is not None else state.raw_by_name()
        description = replace(state.description(self._description, weights=weights),
                              score_thresholds=measures.score_thresholds)
        write_arrays(str(Path(self._config.model_dir) / BEST), arrays, description, newest=False)

    @cached_property
    def _index(self) -> RecordIndex:
        return index_records(self._config.val_records)

    @cached_property
    def _first_images(self) -> list[OriginalImage]:
        return list(original_images(self._index, range(min(_PICTURES, len(self._index)))))

    @cached_property
    def _evaluator(self) -> CocoEvaluator:
        return read_evaluator(self._index, self._config.class_names, json_file=self._config.val_json_file)


def minutes_in_words(minutes: float | None) -> str:
    """The time to target as the end of a sentence; empty where it is not known."""
    return "" if minutes is None else f", time to target {minutes:.2f} minutes"


def _ap_in_words(epoch: int, found: Mapping[str, float], progress: TrainingProgress) -> str:
    raw = (f", {shown_measure(found['raw'])} with the raw weights of the last step, which the average follows slowly"
           if "raw" in found else "")
    best = f"; best {progress.best_ap:.4f} (epoch {progress.best_epoch})" if progress.best_epoch else ""
    return f"epoch {epoch}: AP {shown_measure(found['averaged'])} with averaged weights{raw}{best}"


def _first_rows(batch: Batch, count: int) -> Batch:
    """The first images of a batch."""
    objects = Objects(*(values[:count] for values in batch.objects))
    return Batch(*(objects if name == "objects" else values[:count] for name, values in batch._asdict().items()))
