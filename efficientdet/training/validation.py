"""Evaluation during training: metrics of the weights, the best weights so far, and validation losses."""

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from dataset.input.pipeline import evaluation_dataset, original_images
from dataset.input.record_batches import RecordBatches
from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.devices.device import device_name, multiply_adds_per_second, peak_device_memory, peak_host_memory
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator, write_measures
from efficientdet.inference.predictor import keras_predictor
from efficientdet.inference.runtimes import Predictor
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.training_report import RunSummary, write_report
from efficientdet.run_log.journal import read_curves
from efficientdet.training.guards import check_collapse
from efficientdet.training.interruption import StopRequest
from efficientdet.training.run import Run
from model.multiply_adds import training_multiply_adds
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.measures import CocoMeasures, shown_measure
from object_detection.coco.results import TESTDEV_FILE_NAME, DetectionRows, results_json, write_results
from object_detection.coco.run_length_masks import decoded
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
        evaluation: of the last finished epoch; None where it was not evaluated.
        losses: of the last finished epoch; empty without --validate.
        last: the last evaluation of averaged weights.
    """

    def __init__(self, run: Run, stop_request: StopRequest):
        self._run, self._stop_request = run, stop_request
        self.evaluation: Evaluation | None = None
        self.losses: Mapping[str, float] = {}
        self.last: Evaluation | None = None
        self._step: int | None = None  # of `last`

    def evaluate_epoch(self, epoch: int) -> None:
        """Evaluate the averaged weights, store the best, and compute validation losses, where they are due.

        Raises:
            InputError: the AP fell to a small fraction of the best one.
        """
        run, config, progress = self._run, self._run.config, self._run.state.progress
        self.evaluation = None
        if config.evaluates_after(epoch):
            run.journal.event("evaluation_started", epoch=epoch)
            with run.stopwatch.measuring("evaluation"):
                self.evaluation = self.averaged()
            average_precision = self.evaluation.average_precision
            check_collapse(average_precision, best=progress.best_ap, epoch=epoch)
            if average_precision > progress.best_ap:
                progress.best_ap, progress.best_epoch, progress.evaluations_since_best = average_precision, epoch, 0
                progress.best_seconds = run.seconds
                self._write_best()
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

    def _write_best(self) -> None:
        run, state = self._run, self._run.state
        if run.world.is_first:
            arrays = state.raw_by_name() if state.average is None else state.averages_by_name()
            description = state.description(run.description, weights="averaged")
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


_DRAWN_IMAGES = 4
_DRAWN_FROM = 0.3  # score
_DRAWN_SIDE = 400  # pixels; images are enlarged to at least this


def _only_warns(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method of the Reporter: a report that fails does not end the training."""

    @functools.wraps(method)
    def warning(self: "Reporter", *arguments: Any, **named: Any) -> None:
        with only_warning("the report is incomplete", self._run.journal.print):
            method(self, *arguments, **named)

    return warning


class Reporter:
    """Reporter of one run."""

    def __init__(self, run: Run, validation: Validation):
        self._run, self._validation = run, validation
        self._folder = Path(run.config.model_dir)
        self._drawn: list[tuple[str, np.ndarray]] = []  # captions and images
        self._reported: Evaluation | None = None

    @_only_warns
    def report_epoch(self, epoch: int) -> None:
        """Report the results of an epoch, and write the page if there are new ones."""
        run, validation, progress = self._run, self._validation, self._run.state.progress
        if evaluation := validation.evaluation:
            with run.stopwatch.measuring("evaluation"):
                best = f"; best {progress.best_ap:.4f} (epoch {progress.best_epoch})" if progress.best_epoch else ""
                run.journal.print(f"epoch {epoch}: AP {shown_measure(evaluation.average_precision)}{best}")
                self._report_averaged(epoch, evaluation)
        if losses := validation.losses:
            run.journal.log((epoch,), {f"val_{name}": value for name, value in losses.items()})
            run.journal.curves(run.state.step, {f"validation/{name}": value for name, value in losses.items()})
        if evaluation or not run.config.evaluates:
            self.write_page()

    @_only_warns
    def report_final(self, epoch: int, evaluation: Evaluation) -> None:
        """Report the final metrics of the averaged weights with a table, and write the submission file."""
        config = self._run.config
        self._run.journal.print(evaluation.measures.table())
        self._report_averaged(epoch, evaluation)
        if self._run.world.is_first:
            write_measures(self._folder / "metrics-final.json", evaluation.measures)
            if config.testdev_dir:
                write_results(Path(config.testdev_dir, TESTDEV_FILE_NAME), results_json(evaluation.rows))

    @_only_warns
    def write_page(self) -> None:
        """Write the report page of the training so far."""
        run, config = self._run, self._run.config
        if not run.world.is_first:
            return
        measures, goal = self._reported.measures if self._reported else None, ""
        if config.target_ap:
            reached = (
                f"reached, time to target {run.time_to_target:.2f} minutes" if run.target_reached else "not reached"
            )
            goal = f"target AP {config.target_ap:g} {reached}"
        write_report(
            config.model_dir,
            RunSummary(
                title=f"{config.hparams.name} on {Path(config.records[0]).name.split('-')[0]} records",
                facts=run.facts,
                goal=goal,
                curves=read_curves(self._folder / config.log_filename),
                numbers=measures.numbers if measures else {},
                per_class=measures.class_ap if measures else {},
                seconds=run.stopwatch.totals(),
                images=self._drawn,
            ),
        )

    @_only_warns
    def end(self, *, loss: float | None) -> None:
        """Log the averages of the run; for a benchmark also facts about the machine."""
        run, config, goal = self._run, self._run.config, {}
        if loss is None and run.state.step >= run.last_step:
            run.journal.print(
                f"no steps left: all {run.state.step} are done; the same command with a larger --num_epochs"
                f"{' or --max_minutes' if config.max_minutes else ''} continues the training"
            )
        if config.target_ap and config.evaluates:
            goal["target_mAP"] = round(100 * config.target_ap, 2)  # percent, the unit of the log's APs
            if (minutes := run.time_to_target) is not None:
                goal["time_to_target"] = minutes
        run.journal.finish(
            training_loss=loss,
            seconds=run.stopwatch.now() - run.begun,
            devices=run.world.size * run.world.devices,
            input_wait=run.stopwatch.recent_share("input"),
            goal=goal,
        )
        if config.benchmark:
            run.journal.log((), self._machine_facts())

    def _report_averaged(self, epoch: int, evaluation: Evaluation) -> None:
        """Log, write and draw an evaluation of the averaged weights, once."""
        if self._reported and evaluation.rows is self._reported.rows:
            return
        self._reported, run = evaluation, self._run
        run.journal.print(evaluation.measures.csv_line(epoch))
        run.journal.validation(epoch, step=run.state.step, average_precision=evaluation.average_precision)
        if run.world.is_first:
            # Those of the last epoch too, which a repeated command may report together with its intervals
            write_measures(self._folder / f"metrics-{epoch}.json", replace(evaluation.measures, intervals={}))
            self._draw(evaluation.rows)

    @_only_warns
    def _draw(self, rows: DetectionRows) -> None:
        """Draw detections in the first validation images, the same images in each evaluation."""
        names, ids = self._run.config.class_names.names, list(self._run.config.class_names.category_ids)
        self._drawn, index = [], self._run.inputs.validation_index
        for image in original_images(index, range(min(_DRAWN_IMAGES, len(index)))):
            drawn = np.flatnonzero((rows.image_ids == image.image_id) & (rows.scores >= _DRAWN_FROM))
            factor = math.ceil(_DRAWN_SIDE / max(image.pixels.shape[:2]))  # labels would cover a small image
            pixels = draw_detections(
                _enlarged(image.pixels, factor),
                factor * rows.boxes[drawn],
                classes=[ids.index(category_id) for category_id in rows.category_ids[drawn]],
                names=names,
                scores=rows.scores[drawn],
                masks=rows.masks if rows.masks is None else [_enlarged(decoded(rows.masks[i]), factor) for i in drawn],
            )
            self._drawn.append((f"{image.name}, score {_DRAWN_FROM} and above", pixels))
        self._run.journal.images(
            self._run.state.step, {f"detections/{number}": image for number, (_, image) in enumerate(self._drawn)}
        )

    def _machine_facts(self) -> dict:
        """Return facts about the machine: device, load, peak memory and arithmetic throughput.

        Memory is the largest of all processes. Throughput is measured in all processes at the same time.
        """
        run = self._run
        peaks = run.world.gather((peak_host_memory(), peak_device_memory()))  # the product below takes more
        host, device = zip(*peaks, strict=True)
        rates = run.world.gather(multiply_adds_per_second(run.runtime.precision))
        return {
            "device": device_name(),
            "load_average": round(os.getloadavg()[0], 2),
            "peak_host_memory_bytes": max(host),
            "peak_device_memory_bytes": None if None in device else max(device),
            "multiply_adds_per_image": training_multiply_adds(run.state.detector.trained_network()),
            "machine_multiply_adds_per_second": sum(rates),
        }


def _enlarged(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Repeat each row and column `factor` times."""
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)
