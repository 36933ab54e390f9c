"""Reports of a training: facts and metrics in its log, drawn detections, and the report page."""

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dataset.input.pipeline import original_images
from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.provenance import checksums, code_version, machine, read_provenance
from efficientdet.devices.device import device_name, peak_device_memory, peak_host_memory
from efficientdet.devices.matrix_product import multiply_adds_per_second
from efficientdet.evaluation.data_set_evaluator import write_measures
from efficientdet.reports.drawing import draw_detections
from efficientdet.reports.training_report import RunSummary, write_report
from efficientdet.run_log.journal import read_curves
from efficientdet.training.listener import Listener
from efficientdet.training.run import Run
from efficientdet.training.validation import Evaluation, Evaluator, Validation, minutes_in_words
from efficientdet.weights.downloads import local_path
from model.multiply_adds import training_multiply_adds
from object_detection.coco.measures import CocoMeasures, shown_measure
from object_detection.coco.results import TESTDEV_FILE_NAME, DetectionRows, results_json, write_results
from object_detection.coco.run_length_masks import decoded
from program_support.errors import only_warning

START_FILES = ("config.json", "classes.json")
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


class Reporter(Listener):
    """Reporter of one run."""

    def __init__(self, run: Run, validation: Validation, evaluator: Evaluator):
        self._run, self._validation, self._evaluator = run, validation, evaluator
        self._folder = Path(run.config.model_dir)
        self._drawn: list[tuple[str, np.ndarray]] = []  # captions and images
        self._reported: Evaluation | None = None

    @_only_warns
    def epoch_finished(self, epoch: int) -> None:
        """Report the results of an epoch, and write the page if there are new ones."""
        run = self._run
        if evaluations := self._validation.evaluations:
            with run.stopwatch.measuring("evaluation"):
                self._report_evaluations(epoch, evaluations)
        if losses := self._validation.losses:
            run.journal.log((epoch,), {f"val_{name}": value for name, value in losses.items()})
            run.journal.curves(run.state.step, {f"validation/{name}": value for name, value in losses.items()})
        if evaluations or not run.config.evaluates:
            self.write_page()

    def final_evaluation(self, epoch: int, evaluation: Evaluation) -> None:
        """Report the final metrics of the averaged weights with a table, and write the submission file."""
        self._report_averaged(epoch, evaluation)
        self._report_final(evaluation)

    @_only_warns
    def _report_final(self, evaluation: Evaluation) -> None:
        config = self._run.config
        self._run.journal.print(evaluation.measures.table())
        if self._run.world.is_first:
            write_measures(self._folder / "metrics-final.json", evaluation.measures)
            if config.testdev_dir:
                write_results(Path(config.testdev_dir) / TESTDEV_FILE_NAME, results_json(evaluation.rows))

    @_only_warns
    def write_page(self) -> None:
        """Write the report page of the training so far."""
        run, config, validation = self._run, self._run.config, self._validation
        if not run.world.is_first:
            return
        measures, goal = self._reported.measures if self._reported else None, ""
        if config.target_ap:
            minutes = minutes_in_words(validation.time_to_target)
            goal = f"target AP {config.target_ap:g} " + (
                f"reached{minutes}" if validation.target_reached else "not reached"
            )
        write_report(
            config.model_dir,
            RunSummary(
                title=f"{config.hparams.name} on {Path(config.records[0]).name.split('-')[0]} records",
                facts=_facts(run),
                goal=goal,
                curves=read_curves(self._folder / config.log_filename),
                numbers=measures.numbers if measures else {},
                per_class=measures.class_ap if measures else {},
                seconds=run.stopwatch.totals(),
                images=self._drawn,
            ),
        )

    def end(self, *, loss: float | None) -> None:
        """Log the averages of the run; for a benchmark also facts about the machine."""
        self._log_averages(loss)
        if self._run.config.benchmark:
            self._run.journal.log((), _machine_facts(self._run))

    @_only_warns
    def _log_averages(self, loss: float | None) -> None:
        run, config, goal = self._run, self._run.config, {}
        if loss is None and run.state.step >= run.last_step:
            run.journal.print(
                f"no steps left: all {run.state.step} are done; the same command with a larger --num_epochs"
                f"{' or --max_minutes' if config.max_minutes else ''} continues the training"
            )
        if config.target_ap and config.evaluates:
            goal["target_mAP"] = round(100 * config.target_ap, 2)  # percent, the unit of the log's APs
            if (minutes := self._validation.time_to_target) is not None:
                goal["time_to_target"] = minutes
        run.journal.finish(
            training_loss=loss,
            seconds=run.stopwatch.now() - run.begun,
            devices=run.world.size * run.world.devices,
            input_wait=run.stopwatch.recent_share("input"),
            goal=goal,
        )

    def _report_evaluations(self, epoch: int, evaluations: Mapping[str, Evaluation]) -> None:
        run, progress, averaged = self._run, self._run.state.progress, evaluations["averaged"]
        self._report_averaged(epoch, averaged)
        line = f"epoch {epoch}: AP {shown_measure(averaged.average_precision)} with averaged weights"
        if "raw" in evaluations:
            raw = evaluations["raw"].average_precision
            run.journal.curves(run.state.step, {"validation/AP_raw": raw})
            line += f", {shown_measure(raw)} with raw weights"
        best = f"; best {progress.best_ap:.4f} (epoch {progress.best_epoch})" if progress.best_epoch else ""
        run.journal.print(line + best)

    @_only_warns
    def _report_averaged(self, epoch: int, evaluation: Evaluation) -> None:
        """Write, draw and log an evaluation of the averaged weights, once."""
        if self._reported and evaluation.rows is self._reported.rows:
            return
        self._reported, run = evaluation, self._run
        if run.world.is_first:
            self._draw(evaluation.rows)
            # Those of the last epoch too, which a repeated command may report together with its intervals
            measures = replace(evaluation.measures, intervals={})
            write_measures(self._folder / f"metrics-{epoch}.json", measures)
        run.journal.print(evaluation.measures.csv_line(epoch))
        run.journal.validation(epoch, step=run.state.step, average_precision=evaluation.average_precision)

    @_only_warns
    def _draw(self, rows: DetectionRows) -> None:
        """Draw detections in the first validation images, the same images in each evaluation."""
        names, ids = self._run.config.class_names.names, list(self._run.config.class_names.category_ids)
        self._drawn = []
        index = self._evaluator.index
        for image in original_images(index, range(min(_DRAWN_IMAGES, len(index)))):
            drawn = np.flatnonzero((rows.image_ids == image.image_id) & (rows.scores >= _DRAWN_FROM))
            classes = [ids.index(category_id) for category_id in rows.category_ids[drawn]]
            factor = math.ceil(_DRAWN_SIDE / max(image.pixels.shape[:2]))  # labels would cover a small image
            self._drawn.append(
                (
                    f"{image.name}, score {_DRAWN_FROM} and above",
                    draw_detections(
                        _enlarged(image.pixels, factor),
                        factor * rows.boxes[drawn],
                        classes=classes,
                        names=names,
                        scores=rows.scores[drawn],
                        masks=None
                        if rows.masks is None
                        else [_enlarged(decoded(mask), factor) for mask in rows.masks[drawn]],
                    ),
                )
            )
        self._run.journal.images(
            self._run.state.step, {f"detections/{number}": image for number, (_, image) in enumerate(self._drawn)}
        )


def training_provenance(run: Run, measures: CocoMeasures | None) -> dict[str, Any]:
    """Return what a finished training was made from, and its result: the files, their contents, settings and code."""
    config = run.config
    weights = {name: getattr(config, name) for name in ("pretrained_ckpt", "backbone_init")}
    sources = {
        "records": config.records,
        "val_records": config.val_records,
        "val_json_file": [config.val_json_file],
        **{name: [checkpoint_prefix(local_path(path))] for name, path in weights.items() if path},
    }
    files = {name: checksums(filter(None, paths)) for name, paths in sources.items() if any(paths)}
    earlier = read_provenance(Path(config.model_dir, "ckpt-final")) if run.first_step else None
    earlier_records, records = (
        (earlier or {}).get("earlier_records", []),
        (earlier or {}).get("files", {}).get("records"),
    )
    if records and {*records.values()} != {*files["records"].values()}:
        earlier_records = [*earlier_records, records]
    if earlier_records:
        run.journal.print(
            f"warning: the weights were trained on other records before, up to step {run.first_step} or earlier; "
            "provenance.json names both"
        )
    return {
        "code": code_version(),
        "machine": machine() | {"processes": run.world.size, "devices": run.world.devices},
        "options": config.options,
        "hparams": config.hparams.to_dict(),
        "batch_size": config.batch_size,
        "seed": config.seed,
        "deterministic": config.deterministic,
        "resumed_after_step": run.first_step,
        "last_step": run.state.step,
        "files": files,
        **({"earlier_records": earlier_records} if earlier_records else {}),
        "weights": checksums([Path(config.model_dir, "ckpt-final")]),
        "metrics": measures.to_json() if measures else {},
    }


def _enlarged(pixels: np.ndarray, factor: int) -> np.ndarray:
    """Repeat each row and column `factor` times."""
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def report_start(run: Run) -> None:
    """Log the facts of the run, and write model and classes beside the checkpoints."""
    config, folder = run.config, Path(run.config.model_dir)
    run.journal.log((), _facts(run))
    if run.world.is_first:
        run.description.write(folder / START_FILES[0])
        config.class_names.write(folder / START_FILES[1])
    if not config.val_records and config.training_mode != "train300" and not config.benchmark:
        run.journal.print("no --val_file_pattern: training without evaluation")


def _facts(run: Run) -> dict:
    """Return the facts of this run for the log and the report."""
    config, trained = run.config, run.state.detector.network.trainable_variables
    return {
        "model": config.hparams.name,
        "image_size": config.hparams.input_size,
        "classes": len(config.class_names),
        "trainable_parameters": sum(math.prod(variable.shape) for variable in trained),
        "records": len(run.inputs.index),
        "batch_size": config.batch_size,
        "accumulate_steps": config.accumulate_steps,
        "ranks": run.world.size,
        "steps_per_epoch": run.steps_per_epoch,
        "epochs": config.last_epoch,
        "peak_learning_rate": run.schedule.peak_learning_rate,
        "precision": run.runtime.precision,
        "use_xla": run.runtime.use_xla,
        "backend": keras.backend.backend(),
        "seed": config.seed,
        "deterministic": config.deterministic,
    }


def _machine_facts(run: Run) -> dict:
    """Return facts about the machine: device, load, peak memory and arithmetic throughput.

    Memory is the largest of all processes. Throughput is measured in all processes at the same time.
    """
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
