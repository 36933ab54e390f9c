"""Evaluation during training: metrics of the weights, the best weights so far, and early stopping."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from keras import ops

from dataset.input.input_config import InputConfig
from dataset.input.pipeline import evaluation_dataset
from dataset.input.record_batches import RecordBatches
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator
from efficientdet.inference.runtimes import Predictor
from efficientdet.training.guards import check_collapse
from efficientdet.training.interruption import StopRequest
from efficientdet.training.listener import Listener
from efficientdet.training.run import Run
from efficientdet.training.state import TrainingState
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


class Evaluator:
    """Evaluator of a training state on validation records; each rank detects a share, the first computes metrics."""

    def __init__(
        self,
        config: TrainingConfig,
        state: TrainingState,
        *,
        predict: Predictor,
        inputs: InputConfig,
        stop_request: StopRequest,
    ):
        """Prepare the evaluation; `stop_request` ends any of the methods between two batches."""
        self._config, self._state, self._predict = config, state, predict
        self._inputs, self._stop_request = inputs, stop_request
        self._last: tuple[tuple[int, int], Evaluation] | None = None  # state's version, averaged weights

    @property
    def samples(self) -> int:
        """Number of images of an evaluation."""
        return min(self._config.eval_samples or len(self.index), len(self.index))

    @property
    def last(self) -> CocoMeasures | None:
        """The last measures of averaged weights."""
        return self._last[1].measures if self._last else None

    @cached_property
    def index(self) -> RecordIndex:
        """The validation records."""
        return index_records(self._config.val_records)

    def evaluate(self) -> dict[str, Evaluation]:
        """Evaluate the "averaged" weights and, if they differ, the "raw" weights."""
        averaged = {"averaged": self.averaged()}
        return averaged if self._state.average is None else {**averaged, "raw": self._measure()}

    def averaged(self) -> Evaluation:
        """Evaluate the averaged weights, once per step, and store their score thresholds in the state."""
        state = self._state
        if self._last is None or self._last[0] != state.version:
            with state.averaged_weights():
                self._last = state.version, self._measure()
            state.score_thresholds = self._last[1].measures.score_thresholds
        return self._last[1]

    def final(self, *, log: Callable[[str], None]) -> Evaluation:
        """Evaluate the averaged weights; the measures of the first rank have intervals."""
        evaluation = self.averaged()
        if self._state.world.is_first:
            with only_warning("no confidence intervals", log):
                return evaluation._replace(measures=self._coco.evaluate(evaluation.rows, resamples=None))
        return evaluation

    def mean_losses(self) -> dict[str, float]:
        """Return the losses of the averaged weights by name, without augmentation.

        They are normalized as if all images were one batch, whatever the batch size.
        """
        detector, sums, counts = self._state.detector, Counter[str](), Counter[str]()
        with self._state.averaged_weights():
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

    def _measure(self) -> Evaluation:
        config, world = self._config, self._state.world
        rows = detect_all(
            self._predict,
            self._batches,
            class_names=config.class_names,
            world=world,
            interruptible=self._stop_request.interruptible,
            masks_in_whole_pixels=config.hparams.masks_in_whole_pixels,
        )
        return Evaluation(world.gather(self._coco.evaluate(rows) if world.is_first else None)[0], rows)

    # Pipelines are made once: tracing one takes a second.
    @cached_property
    def _batches(self) -> RecordBatches:
        world = self._state.world
        inputs = replace(self._inputs, batch_size=self._inputs.batch_size * world.devices)
        samples = self._config.eval_samples
        return evaluation_dataset(self.index, inputs, samples=samples, rank=world.rank, world_size=world.size)

    @cached_property
    def _batches_of_losses(self) -> RecordBatches:
        return evaluation_dataset(self.index, self._inputs, samples=self._config.eval_samples)

    @cached_property
    def _coco(self) -> CocoEvaluator:
        return read_evaluator(self.index, self._config.class_names, json_file=self._config.val_json_file)


class Validation(Listener):
    """Evaluations after epochs: the best weights, the plateau schedule and early stopping follow their AP.

    Attributes:
        evaluations: of the last finished epoch, by "averaged" and "raw" weights; empty where it was not evaluated.
        losses: of the last finished epoch; empty without --validate.
    """

    def __init__(self, run: Run, evaluator: Evaluator):
        self._run, self._evaluator = run, evaluator
        self.evaluations: Mapping[str, Evaluation] = {}
        self.losses: Mapping[str, float] = {}

    def epoch_finished(self, epoch: int) -> None:
        """Evaluate averaged and raw weights, and compute validation losses, where they are due.

        Raises:
            InputError: the AP fell to a small fraction of the best one.
        """
        run, config, progress = self._run, self._run.config, self._run.state.progress
        self.evaluations = {}
        if config.evaluates_after(epoch):
            run.journal.event("evaluation_started", epoch=epoch)
            with run.stopwatch.measuring("evaluation"):
                self.evaluations = self._evaluator.evaluate()
            weights = max(self.evaluations, key=lambda name: self.evaluations[name].average_precision)
            average_precision = self.evaluations[weights].average_precision
            check_collapse(average_precision, best=progress.best_ap, epoch=epoch)
            if average_precision > progress.best_ap:
                progress.best_ap, progress.best_epoch, progress.evaluations_since_best = average_precision, epoch, 0
                progress.best_seconds = run.seconds
                self._write_best(weights)
            else:
                progress.evaluations_since_best += 1
                self._follow_plateau()
            run.journal.event("evaluation_finished", epoch=epoch, average_precision=average_precision)
        self.losses = self._evaluator.mean_losses() if config.validate else {}

    @property
    def target_reached(self) -> bool:
        """True if the best AP reaches --target_ap."""
        return 0 < self._run.config.target_ap <= self._run.state.progress.best_ap

    @property
    def time_to_target(self) -> float | None:
        """Minutes of training until the end of the evaluation that reached --target_ap.

        None if none has reached it, or if a training without a record of time did.
        """
        return self._run.state.progress.best_seconds / 60 or None if self.target_reached else None

    def reason_to_stop(self, epoch: int) -> str:
        """Return the reason to stop after an epoch: --target_ap is reached, or AP has not improved for --patience.

        Empty where the training should continue.
        """
        config, progress = self._run.config, self._run.state.progress
        if not config.evaluates:
            return ""
        if self.target_reached:
            return (
                f"AP {progress.best_ap:.4f} reaches --target_ap={config.target_ap:g} after epoch {epoch}"
                f"{minutes_in_words(self.time_to_target)}"
            )
        if 0 < config.patience <= progress.evaluations_since_best:
            return f"AP has not improved in {config.patience} evaluations: stopping after epoch {epoch}"
        return ""

    def _follow_plateau(self) -> None:
        """With lr_decay_method=plateau, lower the learning rate after `lr_patience` evaluations without a best."""
        run, config, progress = self._run, self._run.config, self._run.state.progress
        if config.follows_ap and progress.evaluations_since_best % config.hparams.lr_patience == 0:
            progress.rate_factor *= config.hparams.lr_drop_factor
            run.journal.print(
                f"AP has not improved in {progress.evaluations_since_best} evaluations: the learning rate is now "
                f"{run.learning_rate:g}"
            )

    def _write_best(self, weights: str) -> None:
        run, state = self._run, self._run.state
        if run.world.is_first:
            uses_average = weights == "averaged" and state.average is not None
            arrays = state.averages_by_name() if uses_average else state.raw_by_name()
            thresholds = self.evaluations[weights].measures.score_thresholds
            description = replace(state.description(run.description, weights=weights), score_thresholds=thresholds)
            write_arrays(str(Path(run.config.model_dir) / BEST), arrays, description, newest=False)


def minutes_in_words(minutes: float | None) -> str:
    """Return the time to target as the end of a sentence; empty if it is unknown."""
    return "" if minutes is None else f", time to target {minutes:.2f} minutes"


def _first_rows(batch: Batch, count: int) -> Batch:
    """Return the first images of a batch."""
    objects = Objects(*(values[:count] for values in batch.objects))
    return Batch(*(objects if name == "objects" else values[:count] for name, values in batch._asdict().items()))
