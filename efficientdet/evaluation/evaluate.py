"""COCO evaluation of a detector on records."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataset.input.pipeline import evaluation_dataset
from dataset.records.record_index import RecordIndex, index_records
from efficientdet.checkpoints.description import DESCRIPTION_SUFFIX, store_thresholds
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.agreement import require_agreement
from efficientdet.devices.device import replicate
from efficientdet.devices.distributed import World, join_world
from efficientdet.evaluation.data_set_evaluator import (
    detect_all,
    read_evaluator,
    read_results,
    rows_of_detector,
    write_measures,
)
from efficientdet.evaluation.evaluation_report import error_plots, worst_images, write_evaluation_report
from efficientdet.families.inputs import input_config
from efficientdet.inference.checkpoint_model import build_predict, load_model
from efficientdet.inference.detect import Detector
from efficientdet.options.evaluate import EvaluateOptions
from object_detection.coco.bootstrap import RESAMPLES
from object_detection.coco.error_analysis import ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.results import TESTDEV_FILE_NAME, DetectionRows, results_json, write_results
from object_detection.coco.score_calibration import MIN_OBJECTS, calibrate_scores
from program_support.atomic_files import report_write_errors
from program_support.checked_fields import checked
from program_support.plugins import load_plugin

# Paths on the machine of a process, and hyperparameters, which are those of the model
RANK_FIELDS = ("records", "val_file_pattern", "hparams")
_PLOTTED_IMAGES = 20  # images in a report


@checked
class EvaluationConfig(EvaluateOptions):
    """Options of an evaluation with resolved model and records."""

    model: ModelConfig  # its class names are the data's
    records: tuple[str, ...]  # () only for `results` and a val_json_file
    open_file: Callable[[], Detector] | None = None  # for an exported file


def evaluate_checkpoint(config: EvaluationConfig) -> CocoMeasures | None:
    """Evaluate a checkpoint or other detections, print the metrics and write the requested files.

    Ranks share the images of a checkpoint; other detections are evaluated by the first rank.
    """
    with join_world() as world:
        if not config.results and not config.open_file:
            return _evaluate(config, world)
        return _evaluate_others(config) if world.is_first else None


def _evaluate_others(config: EvaluationConfig) -> CocoMeasures:
    """Evaluate the detections of an exported file or of another program."""
    index, class_names = index_records(config.records) if config.records else None, config.model.class_names
    assert class_names is not None  # the data's
    evaluator = read_evaluator(index, class_names, json_file=config.val_json_file)
    if config.results:
        rows = read_results(config.results, index, evaluator.ground_truth, class_names, samples=config.eval_samples)
    else:
        assert config.open_file is not None  # there are no results
        assert index is not None  # an exported file needs images
        rows = rows_of_detector(
            config.open_file(), str(config.ckpt_path), index, class_names, samples=config.eval_samples
        )
    return _finish(config, evaluator, rows, index=index)


def _evaluate(config: EvaluationConfig, world: World) -> CocoMeasures | None:
    restored, runtime = load_model(config.model, silent=not world.is_first)
    index = index_records(config.records)
    require_agreement(config, world, rank_fields=RANK_FIELDS, index=index)
    evaluator = read_evaluator(index, restored.class_names, json_file=config.val_json_file) if world.is_first else None
    batch_size = config.batch_size * world.devices
    inputs = input_config(
        restored.hparams,
        class_names=restored.class_names,
        batch_size=batch_size,
        num_threads=0 if config.enable_map_parallelization else 1,
    )
    replicate(restored.detector.network, batch_size=batch_size)
    predict = build_predict(
        restored.detector,
        compiled=runtime.use_xla,
        runtime=config.model.runtime,
        int8_images=config.model.int8_images,
        resize=restored.resize,
    )
    rows = detect_all(
        predict,
        evaluation_dataset(index, inputs, samples=config.eval_samples, rank=world.rank, world_size=world.size),
        class_names=restored.class_names,
        world=world,
        masks_in_whole_pixels=restored.hparams.masks_in_whole_pixels,
    )
    if evaluator is None:  # the first process has the evaluator
        return None
    return _finish(config, evaluator, rows, index=index, model=restored, world_size=world.size)


def _finish(
    config: EvaluationConfig,
    evaluator: CocoEvaluator,
    rows: DetectionRows,
    *,
    index: RecordIndex | None,
    model: Restored | None = None,
    world_size: int = 1,
) -> CocoMeasures:
    """Evaluate, print the metrics and write the requested files; model: None for other detections."""
    if config.testdev_dir:
        with report_write_errors(path := Path(config.testdev_dir, TESTDEV_FILE_NAME)):
            write_results(path, results_json(rows))
    comparison = evaluator.compare(rows)
    measures = evaluator.evaluate(rows, resamples=config.bootstrap, comparison=comparison)
    if config.calibrate_scores:
        measures = measures.with_score_calibration(calibrate_scores(comparison))
    print(measures.table())
    if measures.images == 1 and config.bootstrap != 0:
        print("\nno 95 % intervals: a single image has no spread")
    elif config.bootstrap is None and not measures.intervals:
        print(f"\nno 95 % intervals: they would take more than about 10 seconds; --bootstrap={RESAMPLES} computes them")
    number = re.search(r"-(\d+)$", config.model.ckpt_path or "")
    print(f"\n{measures.numbers} {measures.csv_line(int(number[1]) if number else 0)}")
    _report_thresholds(config, measures)
    if config.output_json:
        with report_write_errors(config.output_json):
            write_measures(config.output_json, measures)
    if index is None:
        return measures
    numbers = record_numbers(index, samples=config.eval_samples, world_size=world_size)
    number_of = dict(zip(rows.evaluated_ids.tolist(), numbers, strict=True))
    if config.suspects:
        write_suspects = load_plugin("efficientdet.label_checks", "suspects")
        print(f"\n{write_suspects(config.suspects, evaluator, comparison, rows, index=index, number_of=number_of)}")
    if config.report:
        analysis = ErrorAnalysis(comparison=comparison)
        plots = error_plots(
            [("", analysis, rows)], index, number_of=number_of, chosen=worst_images([analysis], _PLOTTED_IMAGES)
        )
        name, facts = _described(config, model)
        write_evaluation_report(config.report, f"Evaluation of {name}", measures, analysis, plots=plots, facts=facts)
        print(f"report: {Path(config.report) / 'report.html'}")
    return measures


def _described(config: EvaluationConfig, model: Restored | None) -> tuple[str, dict[str, str]]:
    """Return the name of what is evaluated and the settings for the report."""
    path, files = config.results or str(config.model.ckpt_path or config.ckpt_path), len(config.records)
    facts: dict[str, Any] = {"detections of": path}
    if model is not None:
        facts |= {
            "model": model.hparams.name,
            "weights": model.description.weights,
            "step": model.description.global_step,
            "input size": model.hparams.image_size,
            "runtime": config.model.runtime,
        }
    facts["records"] = config.records[0] + (f" and {files - 1} more" if files > 1 else "")
    facts["ground truth"] = config.val_json_file or "the records"
    name = str(model.hparams.name) if model else Path(path).name
    return name, {key: str(value) for key, value in facts.items()}


def _report_thresholds(config: EvaluationConfig, measures: CocoMeasures) -> None:
    """Print the score thresholds and the calibration of the scores; store them with the checkpoint if requested."""
    if measures.score_calibration:
        print(f"\n{measures.score_calibration.table()}")
    if not measures.score_thresholds:
        if config.store_thresholds:
            print(f"\nno score threshold is stored: expected {MIN_OBJECTS} objects or more, and a correct detection")
        return
    overall, classes = measures.score_thresholds["overall"], measures.score_thresholds["classes"].values()
    by_class = f", {min(classes):g} to {max(classes):g} by class" if classes else ""
    stored = ""
    if config.store_thresholds:
        assert config.model.ckpt_path is not None  # an evaluation requires --ckpt
        store_thresholds(config.model.ckpt_path, measures.score_thresholds)
        stored = f"; stored in {config.model.ckpt_path}{DESCRIPTION_SUFFIX}"
    print(f"\nscore threshold of the best F1: {overall:g}{by_class}{stored}")


def record_numbers(index: RecordIndex, *, samples: int, world_size: int) -> list[int]:
    """Return the numbers of the records of `detect_all` in the order of its `evaluated_ids`, rank by rank."""
    numbers = range(min(samples or len(index), len(index)))
    return [number for rank in range(world_size) for number in numbers[rank::world_size]]
