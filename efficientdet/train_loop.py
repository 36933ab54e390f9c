"""A training from first to last: weights, steps, averages, checkpoints, evaluations."""

import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from dataset.pipeline import InputConfig, evaluation_dataset, training_dataset
from dataset.record_index import RecordIndex, index_records
from efficientdet.build import build_detector
from efficientdet.checkpoint import Description, write_arrays
from efficientdet.config import TrainingConfig
from efficientdet.evaluate import detect_all, read_evaluator, write_measures
from efficientdet.hyperparameters import height_and_width
from efficientdet.journal import Interval, Journal
from efficientdet.optimizer import build_optimizer
from efficientdet.predict import build_predict
from efficientdet.progress import Progress
from efficientdet.runtime import Runtime, accelerator_count, skip_graph_rewriting, start_runtime
from efficientdet.schedule import CosineSchedule
from efficientdet.train_step import build_train_step
from efficientdet.training_state import TrainingState
from efficientdet.weight_average import WeightAverage
from efficientdet.weights import load_backbone, load_what_fits, read_source
from model.dense_detector import DenseDetector
from model.detector import named_variables
from object_detection.coco_evaluation import CocoEvaluator
from object_detection.coco_results import TESTDEV_FILE_NAME, results_json, write_results
from object_detection.errors import InputError
from object_detection.structures import Batch

_IMAGES_TO_SEE_A_POSITIVE = 1000
_RATE_PER_IMAGES = 0.08 / 64  # the published rate: 0.08 at a global batch of 64
_PRETRAINED = "imagenet"


def train(config: TrainingConfig) -> dict[str, float]:
    """Train, evaluate, write everything into model_dir; returns the final COCO numbers (empty without evaluation)."""
    runtime = start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla, seed=config.seed)
    skip_graph_rewriting()
    if config.debug:
        tf.config.run_functions_eagerly(True)
    with Journal(config.model_dir, file_name=config.log_filename, curves=not config.benchmark) as journal:
        return _Training(config, runtime, journal).run()


class _Training:
    """One training; methods in the order in which they happen."""

    def __init__(self, config: TrainingConfig, runtime: Runtime, journal: Journal):
        self.config, self.runtime, self.journal = config, runtime, journal
        self.index = index_records(config.records)
        examples = config.num_examples_per_epoch or len(self.index)
        self.steps_per_epoch = config.benchmark_steps if config.benchmark else math.ceil(examples / config.batch_size)
        self.schedule = CosineSchedule.from_epochs(
            self._peak_learning_rate(), warmup_init=config.hparams.lr_warmup_init,
            warmup_epochs=config.hparams.lr_warmup_epoch, num_epochs=config.hparams.num_epochs,
            steps_per_epoch=self.steps_per_epoch)
        self.description = Description(
            model_name=config.hparams.name, hparams=config.hparams.to_dict(),
            categories=config.class_names.to_categories(), weights="raw and averaged",
            steps_per_epoch=self.steps_per_epoch)

    def run(self) -> dict[str, float]:
        """Everything, in order."""
        started = time.monotonic()
        self.state = self._initial_state()
        self._resume()
        self._announce()
        step = build_train_step(self.state.detector, self.state.optimizer, self.state.average,
                                compiled=self.runtime.use_xla)
        self.predict = build_predict(self.state.detector, compiled=self.runtime.use_xla)
        last_loss = self._epochs(step)
        numbers = {}
        if not self.config.benchmark:
            self._save("ckpt-final")
            with self.state.averaged_weights():
                self._export()
                if self.config.evaluates:
                    numbers = self._evaluate(epoch=self.config.last_epoch, final=True)
        self.journal.finish(training_loss=last_loss, seconds=time.monotonic() - started, devices=1)
        return numbers

    def _peak_learning_rate(self) -> float:
        if self.config.hparams.learning_rate is not None:
            return self.config.hparams.learning_rate
        return _RATE_PER_IMAGES * self.config.batch_size

    def _initial_state(self) -> TrainingState:
        config = self.config
        file_weights = config.backbone_init and (config.backbone_init == _PRETRAINED or config.backbone_init.endswith(".h5"))
        detector = build_detector(config.hparams, num_classes=len(config.class_names), precision=self.runtime.precision,
                                  backbone_weights=config.backbone_init if file_weights else None)
        if config.backbone_init and not file_weights:
            self._say_all(load_backbone(detector.network, read_source(config.backbone_init)))
        if config.pretrained_ckpt:
            source = read_source(config.pretrained_ckpt)
            self._say_all(load_what_fits(detector.network, source, class_names=config.class_names))
        if expression := config.hparams.var_freeze_expr:
            self._freeze(detector, expression)
        decay = config.hparams.moving_average_decay
        average = WeightAverage(list(named_variables(detector.network).values()), decay=decay) if decay else None
        optimizer = build_optimizer(config.hparams, precision=self.runtime.precision)
        optimizer.build(detector.network.trainable_variables)
        return TrainingState(detector, optimizer, average)

    def _freeze(self, detector: DenseDetector, expression: str) -> None:
        """Weights whose name begins with the expression are neither trained nor decayed."""
        frozen = [variable for name, variable in named_variables(detector.network).items()
                  if variable.trainable and re.match(expression, name)]
        if not frozen:
            raise InputError(f"hparam var_freeze_expr is {expression!r}: matches the beginning of no weight's name, such "
                             f"as {next(iter(named_variables(detector.network)))}")
        for variable in frozen:
            variable.trainable = False
        left = len(detector.network.trainable_variables)
        if not left:
            raise InputError(f"hparam var_freeze_expr is {expression!r}: leaves nothing to train")
        self.journal.say(f"var_freeze_expr freezes {len(frozen)} weights, {left} stay trainable")

    def _resume(self) -> None:
        """Go on from model_dir/ckpt, if there is one, at the step it was written after."""
        prefix = Path(self.config.model_dir) / "ckpt"
        if not Path(f"{prefix}.index").exists() or self.config.benchmark:
            return
        source = read_source(str(prefix))
        if source.description is None or source.class_names != self.config.class_names:
            raise InputError(f"{prefix}: was written for other classes; use another --model_dir or remove it")
        self.state.restore(source.arrays, prefix=str(prefix))
        self.journal.say(f"resumes from {prefix} after step {self.state.step} "
                         f"(epoch {self.state.step // self.steps_per_epoch})")

    def _announce(self) -> None:
        config = self.config
        network = self.state.detector.network
        trainable = sum(math.prod(variable.shape) for variable in network.trainable_variables)
        self.journal.log((), {
            "model": config.hparams.name, "image_size": height_and_width(config.hparams.image_size),
            "classes": len(config.class_names), "trainable_parameters": trainable, "records": len(self.index),
            "batch_size": config.batch_size, "steps_per_epoch": self.steps_per_epoch, "epochs": config.last_epoch,
            "peak_learning_rate": self.schedule.peak_learning_rate, "precision": self.runtime.precision,
            "use_xla": self.runtime.use_xla, "backend": keras.backend.backend(), "seed": config.seed})
        self.description.write(Path(config.model_dir) / "config.json")
        config.class_names.write(Path(config.model_dir) / "classes.json")

    def _say_all(self, lines: list[str]) -> None:
        for line in lines:
            self.journal.say(line)

    def _input_config(self, batch_size: int) -> InputConfig:
        hparams = self.config.hparams
        accelerated = accelerator_count() > 0
        threads = max(2, (os.cpu_count() or 4) - 2) if accelerated and self.config.set_num_threads else 0
        return InputConfig(
            image_size=height_and_width(hparams.image_size), batch_size=batch_size,
            category_ids=self.config.class_names.category_ids,
            max_instances_per_image=hparams.max_instances_per_image, seed=self.config.seed,
            jitter_min=hparams.jitter_min, jitter_max=hparams.jitter_max,
            flip_probability=0.5 if hparams.input_rand_hflip else 0.0,
            pad_to_batch_maximum=not self.runtime.use_xla and keras.backend.backend() == "tensorflow",
            use_fake_data=self.config.use_fake_data,
            num_threads=threads if self.config.enable_map_parallelization else 1)

    def _epochs(self, step) -> float:
        """All steps that are left; returns the mean loss of the last epoch."""
        config, state = self.config, self.state
        epochs = 1 if config.benchmark else config.last_epoch
        total = epochs * self.steps_per_epoch
        batches = iter(training_dataset(self.index, self._input_config(config.batch_size), start_step=state.step))
        watch = _LossWatch(batch_size=config.batch_size)
        loss = math.nan
        with Progress("train", total=total, steps_per_epoch=self.steps_per_epoch, done=state.step) as progress:
            while state.step < total:
                loss = self._one_epoch(step, batches, watch=watch, progress=progress)
                epoch = state.step // self.steps_per_epoch
                if not config.benchmark:
                    self._after_epoch(epoch)
        return loss

    def _one_epoch(self, step, batches: Iterator[Batch], *, watch: "_LossWatch", progress: Progress) -> float:
        """The steps to the next multiple of steps_per_epoch; logs, and returns the mean loss."""
        config, state = self.config, self.state
        end = (state.step // self.steps_per_epoch + 1) * self.steps_per_epoch
        sums: dict[str, float] = {}
        first, clock = state.step, time.monotonic()
        logged, logged_at = first, clock
        while state.step < end:
            rate = self.schedule(state.step)
            report = {name: float(value) for name, value in step(_next_batch(batches), rate).items()}
            state.step += 1
            watch.check(report, step=state.step, rate=rate)
            for name, value in report.items():
                sums[name] = sums.get(name, 0.0) + value
            progress.show(loss=report["loss"], lr=rate)
            progress.advance(images=config.batch_size)
            if config.lr_tb:
                self.journal.curves(state.step, {"learning_rate": rate})
            if config.time_history and (state.step % config.log_steps == 0 or state.step == end):
                now = time.monotonic()
                self.journal.interval(Interval(logged, state.step, (state.step - logged) * config.batch_size, now - logged_at))
                logged, logged_at = state.step, now
        means = {name: value / (end - first) for name, value in sums.items()}
        means["learning_rate"] = rate
        self.journal.curves(end, {f"train/{name}": value for name, value in means.items()})
        return means["loss"]

    def _after_epoch(self, epoch: int) -> None:
        config = self.config
        if epoch % config.checkpoint_period == 0:
            self._save("ckpt")
            if self.state.average is not None:
                self._save_average(epoch)
        due = epoch % config.checkpoint_period == 0 and epoch >= max(config.eval_start_epoch, 1)
        if config.training_mode == "traineval" and config.evaluates and due and epoch < config.last_epoch:
            with self.state.averaged_weights():
                self._evaluate(epoch=epoch)
        if config.validate:
            with self.state.averaged_weights():
                self._validate(epoch)

    def _save(self, name: str) -> None:
        """Everything that a resumed training needs."""
        description = dataclasses.replace(self.description, global_step=self.state.step)
        write_arrays(str(Path(self.config.model_dir) / name), self.state.arrays(), description)

    def _save_average(self, epoch: int) -> None:
        description = dataclasses.replace(self.description, weights="averaged", global_step=self.state.step)
        write_arrays(str(Path(self.config.model_dir) / "ema_weights" / f"emackpt-{epoch}"),
                     self.state.averages_by_name(), description)

    def _export(self) -> None:
        """The averaged weights as a SavedModel, where the backend can write one."""
        if keras.backend.backend() == "tensorflow":
            from efficientdet.export import export_saved_model

            description = dataclasses.replace(self.description, weights="averaged", global_step=self.state.step)
            export_saved_model(self.state.detector, str(Path(self.config.model_dir) / "emackpt-final"),
                               description=description)

    def _evaluate(self, *, epoch: int, final: bool = False) -> dict[str, float]:
        config = self.config
        rows = detect_all(self.predict, self._val_index, self._input_config(config.eval_batch_size),
                          class_names=config.class_names, samples=config.eval_samples)
        if config.testdev_dir and final:
            write_results(Path(config.testdev_dir) / TESTDEV_FILE_NAME, results_json(rows))
        measures = self._evaluator.evaluate(rows)
        self.journal.say(measures.table() if final else f"epoch {epoch} " + " ".join(
            f"{name}={value:.4f}" for name, value in measures.numbers.items()))
        percent = ",".join(f"{100 * measures.numbers[name]:.2f}" for name in ("AP", "AP50", "AP75", "APs", "APm", "APl"))
        self.journal.say(f"csv format: {epoch},{percent}")
        self.journal.validation(epoch, step=self.state.step, average_precision=measures.numbers["AP"])
        write_measures(Path(config.model_dir) / ("metrics-final.json" if final else f"metrics-{epoch}.json"), measures)
        return measures.numbers

    @cached_property
    def _val_index(self) -> RecordIndex:
        return index_records(self.config.val_records)

    @cached_property
    def _evaluator(self) -> CocoEvaluator:
        return read_evaluator(self._val_index, self.config.class_names, json_file=self.config.val_json_file)

    def _validate(self, epoch: int) -> None:
        """The losses of the averaged weights on the validation records, without augmentation."""
        detector, sums, count = self.state.detector, {}, 0
        config = self._input_config(self.config.eval_batch_size)
        for batch, row_valid in evaluation_dataset(self._val_index, config,
                                                   samples=self.config.eval_samples):
            if not np.asarray(row_valid).all():
                continue  # rows that only fill up the last batch would count as empty images
            targets = detector.assign(batch.objects)
            terms = detector.loss_terms(batch, targets, detector.count_positives(targets) + 1.0, training=False)
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            count += 1
        if count:
            means = {name: value / count for name, value in sums.items()}
            self.journal.log((epoch,), {f"val_{name}": value for name, value in means.items()})
            self.journal.curves(self.state.step, {f"validation/{name}": value for name, value in means.items()})


def _next_batch(batches: Iterator[Batch]) -> Batch:
    """The next batch; a record that cannot be used (unknown category, undecodable image) is the user's to mend."""
    try:
        return next(batches)
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        raise InputError(f"a training record cannot be used: {error.message}") from error


class _LossWatch:
    """Stops a training that cannot succeed."""

    def __init__(self, *, batch_size: int):
        self._batch_size, self._images, self._positives = batch_size, 0, 0.0

    def check(self, report: dict[str, float], *, step: int, rate: float) -> None:
        """Raises InputError where the loss is not finite, or where the first 1,000 images had no positive anchor."""
        if not math.isfinite(report["loss"]):
            terms = ", ".join(f"{name} {value:.4g}" for name, value in report.items() if name.endswith("loss"))
            raise InputError(f"step {step}: the loss is not finite ({terms}; gradient norm {report['gradient_norm']:.4g}, "
                             f"learning rate {rate:.4g}): lower --lr, lengthen --warmup_epochs, or use --precision=float32")
        self._positives += report["positives"]
        self._images += self._batch_size
        if not self._positives and self._images >= _IMAGES_TO_SEE_A_POSITIVE:
            raise InputError(f"no positive anchor in the first {self._images} images: the records hold no boxes (were they "
                             "made from captions_*.json?) or none that any anchor overlaps (see hparam anchor_scale)")
