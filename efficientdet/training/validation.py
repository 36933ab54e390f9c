"""Evaluation during training: metrics of the weights, the best weights so far, and validation losses."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from keras import ops

from dataset.input.pipeline import evaluation_dataset
from dataset.input.record_batches import RecordBatches
from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator
from efficientdet.inference.predictor import keras_predictor
from efficientdet.inference.runtimes import Predictor
from efficientdet.training.guards import check_collapse
from efficientdet.training.interruption import StopRequest
from efficientdet.training.run import Run
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.results import DetectionRows
from object_detection.stateless_random import seeds_of
from object_detection.structures import Batch, Objects
from program_support.errors import only_warning

BEST = "emackpt-best"


class Evaluation(NamedTuple):
    """Detections of some weights, and their COCO metrics."""

    measures: CocoMeasures
    rows: DetectionRows

    @property
    def average_precision(self) -> float:
        """The COCO AP, 0 .. 1, or -1 without objects."""
        return self.measures.numbers["AP"]


class Validation:
    """Evaluations of a training; each rank detects in a share of the images, the first computes metrics.

    `stop_request` ends any of the methods between two batches.

    Attributes:
        evaluations: of the last finished epoch, by "averaged" and "raw" weights; empty where it was not evaluated.
        losses: of the last finished epoch; empty without --validate.
        last: the last evaluation of averaged weights.
    """

    def __init__(self, run: Run, stop_request: StopRequest):
        self._run, self._stop_request = run, stop_request
        self.evaluations: Mapping[str, Evaluation] = {}
        self.losses: Mapping[str, float] = {}
        self.last: Evaluation | None = None
        self._step: int | None = None  # of `last`

    def evaluate_epoch(self, epoch: int) -> None:
        """Evaluate averaged and raw weights, store the best, and compute validation losses, where they are due.

        Raises:
            InputError: the AP fell to a small fraction of the best one.
        """
        run, config, progress = self._run, self._run.config, self._run.state.progress
        self.evaluations = {}
        if config.evaluates_after(epoch):
            run.journal.event("evaluation_started", epoch=epoch)
            with run.stopwatch.measuring("evaluation"):
                self.evaluations = self._evaluate()
            weights = max(self.evaluations, key=lambda name: self.evaluations[name].average_precision)
            average_precision = self.evaluations[weights].average_precision
            check_collapse(average_precision, best=progress.best_ap, epoch=epoch)
            if average_precision > progress.best_ap:
                progress.best_ap, progress.best_epoch, progress.evaluations_since_best = average_precision, epoch, 0
                progress.best_seconds = run.seconds
                self._write_best(weights)
            else:
                progress.evaluations_since_best += 1
            run.journal.event("evaluation_finished", epoch=epoch, average_precision=average_precision)
        self.losses = self.mean_losses() if config.validate else {}

    def final(self, *, log: Callable[[str], None]) -> Evaluation:
        """Evaluate the averaged weights; the measures of the first rank have intervals."""
        evaluation = self.averaged()
        if self._run.world.is_first:
            with only_warning("no confidence intervals", log):
                return evaluation._replace(measures=self._coco.evaluate(evaluation.rows, resamples=None))
        return evaluation

    def averaged(self) -> Evaluation:
        """Evaluate the averaged weights, once per step, and store their score thresholds in the state."""
        state = self._run.state
        if self.last is None or self._step != state.step:
            with state.averaged_weights():
                self.last, self._step = self._measure(), state.step
            state.score_thresholds = self.last.measures.score_thresholds
        return self.last

    def mean_losses(self) -> dict[str, float]:
        """Return the losses of the averaged weights by name, without augmentation.

        They are normalized as if all images were one batch, whatever the batch size.
        """
        state = self._run.state
        detector, sums, counts = state.detector, Counter[str](), Counter[str]()
        with state.averaged_weights():
            for batch, row_valid, *_ in self._stop_request.interruptible(self._batches_of_losses):
                batch = _first_rows(batch, int(np.sum(row_valid)))  # the remaining rows are padding
                outputs = detector.training_outputs(batch.images, batch.sizes, training=False)
                seeds = seeds_of(np.asarray(batch.positions), seed=0)  # the same random samples in every evaluation
                targets = detector.targets(batch.objects, outputs if detector.learns_from_outputs else None, seeds)
                sums.update({name: float(value) for name, value in detector.loss_sums(outputs, targets).items()})
                counts.update({name: float(value) for name, value in detector.counts(targets).items()})
            weights = {name: float(value) for name, value in detector.regularization().items()}
        totals = {name: ops.convert_to_tensor(value, "float32") for name, value in counts.items()}
        normalizers = detector.normalizers(totals)
        return {**{name: value / float(normalizers[name]) for name, value in sums.items()}, **weights}

    def _evaluate(self) -> dict[str, Evaluation]:
        """Evaluate the "averaged" weights and, if they differ, the "raw" weights."""
        averaged = {"averaged": self.averaged()}
        return averaged if self._run.state.average is None else {**averaged, "raw": self._measure()}

    def _measure(self) -> Evaluation:
        config, world = self._run.config, self._run.world
        rows = detect_all(
            self._predict,
            self._batches,
            class_names=config.class_names,
            world=world,
            interruptible=self._stop_request.interruptible,
            masks_in_whole_pixels=config.hparams.masks_in_whole_pixels,
        )
        return Evaluation(world.gather(self._coco.evaluate(rows) if world.is_first else None)[0], rows)

    def _write_best(self, weights: str) -> None:
        run, state = self._run, self._run.state
        if run.world.is_first:
            uses_average = weights == "averaged" and state.average is not None
            arrays = state.averages_by_name() if uses_average else state.raw_by_name()
            thresholds = self.evaluations[weights].measures.score_thresholds
            description = replace(state.description(run.description, weights=weights), score_thresholds=thresholds)
            write_arrays(str(Path(run.config.model_dir, BEST)), arrays, description, newest=False)

    @cached_property
    def _predict(self) -> Predictor:
        return keras_predictor(self._run.state.detector, compiled=self._run.runtime.use_xla, constant_weights=False)

    # Pipelines are made once: tracing one takes a second.
    @cached_property
    def _batches(self) -> RecordBatches:
        world = self._run.world
        return self._dataset(world.devices, rank=world.rank, world_size=world.size)

    @cached_property
    def _batches_of_losses(self) -> RecordBatches:
        return self._dataset(1)

    def _dataset(self, devices: int, **place: int) -> RecordBatches:
        inputs, config = self._run.inputs, self._run.config
        assert config.eval_batch_size is not None  # set by `with_batch_sizes`
        settings = inputs.config(config.eval_batch_size * devices, composes=False)
        return evaluation_dataset(inputs.validation_index, settings, samples=config.eval_samples, **place)

    @cached_property
    def _coco(self) -> CocoEvaluator:
        config = self._run.config
        return read_evaluator(self._run.inputs.validation_index, config.class_names, json_file=config.val_json_file)


def _first_rows(batch: Batch, count: int) -> Batch:
    """Return the first images of a batch."""
    objects = Objects(*(values[:count] for values in batch.objects))
    return Batch(*(objects if name == "objects" else values[:count] for name, values in batch._asdict().items()))
