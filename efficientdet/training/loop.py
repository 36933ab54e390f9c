"""A training from first to last: steps, checkpoints, evaluations."""

import errno
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from dataset.input.decoded_cache import DecodedCache
from dataset.input.pipeline import InputConfig, training_dataset
from dataset.progress import Progress
from dataset.records.record_index import index_records
from dataset.records.verify import verify_records
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.efficientdet.hyperparameters import height_and_width
from efficientdet.inference.predict import build_predict
from efficientdet.machine.device import device_name
from efficientdet.machine.distributed import World, join_world
from efficientdet.machine.memory import is_out_of_memory, out_of_memory, with_batch_sizes
from efficientdet.machine.runtime import Runtime, accelerator_count, skip_graph_rewriting, start_runtime
from efficientdet.observing.journal import Interval, Journal, read_curves
from efficientdet.observing.mlperf_log import MlperfLog, NoMlperfLog
from efficientdet.observing.report import FILE_NAME as REPORT
from efficientdet.observing.report import RunSummary, write_report
from efficientdet.observing.stopwatch import Stopwatch, input_stall
from efficientdet.training.calibration import IMAGES, SMALL_BATCH, Calibration, calibration_batch
from efficientdet.training.conventions import with_conventions_of_start
from efficientdet.training.guards import NotFinite, StepFacts, StepGuard
from efficientdet.training.interruption import Interrupted, StopWish, farewell
from efficientdet.training.schedule import CosineSchedule
from efficientdet.training.start import go_on_from, initial_state, resume, trainable_parameters
from efficientdet.training.step import build_train_step
from efficientdet.training.validation import Validation
from object_detection.errors import InputError
from object_detection.structures import Batch, Tensor

_RATE_PER_IMAGES = 0.08 / 64  # the published rate: 0.08 at a global batch of 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_MOST_ROLLBACKS = 3
_COMPILATION_FACTOR = 20.0  # how much longer than others a first step may take
_SECONDS_BETWEEN_EPOCH_SAVES = 10.0  # epochs of a few images would else spend their time on writing


def train(config: TrainingConfig) -> dict[str, float]:
    """Train, evaluate, write everything into model_dir; returns the final COCO numbers (empty without evaluation).

    Raises `Interrupted`, with everything saved, after SIGTERM and Ctrl-C.
    """
    world = join_world()
    runtime = start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla, seed=config.seed,
                            deterministic=config.deterministic)
    config, batch_sizes_said = with_batch_sizes(config, runtime, world)
    skip_graph_rewriting()
    if config.debug:
        tf.config.run_functions_eagerly(True)
    config, lines = with_conventions_of_start(config)
    folder = config.model_dir if world.is_first else None
    try:
        with Journal(folder, file_name=config.log_filename, loggers=() if config.benchmark else config.loggers,
                     settings=config.hparams.to_dict()) as journal:
            for line in lines:
                journal.say(line)
            if batch_sizes_said:
                journal.say(batch_sizes_said)
            return _Training(config, runtime, journal, world).run()
    except (OSError, MemoryError, RuntimeError, tf.errors.OpError) as error:
        if getattr(error, "errno", None) in _FULL or "No space left" in str(error):
            raise InputError(f"{config.model_dir}: no space left on device; the checkpoints in it are whole: make room and "
                             "start again") from error
        if getattr(error, "errno", None) in _NOT_WRITABLE:
            raise InputError(f"{error.filename or config.model_dir}: {error.strerror}; the checkpoints in "
                             f"{config.model_dir} are whole") from error
        if is_out_of_memory(error):
            raise out_of_memory(config, runtime, local_ranks=world.local_size) from error
        raise


class _StartedStep(NamedTuple):
    """A step whose report has not been read."""

    facts: StepFacts
    report: dict[str, Tensor]


def reports_behind() -> int:
    """How many steps are started before the report of one is read: reading waits for an accelerator, which would then wait
    for the next step. On a CPU a step has ended when its call returns."""
    return 1 if accelerator_count() > 0 else 0


class _Training:
    """One training; methods in the order in which they happen."""

    def __init__(self, config: TrainingConfig, runtime: Runtime, journal: Journal, world: World):
        self.config, self.runtime, self.journal, self.world = config, runtime, journal, world
        self.index = verify_records(index_records(config.records), when=config.verify_records,
                                    max_bad_fraction=config.max_bad_fraction, say=journal.say,
                                    category_ids=config.class_names.category_ids)
        self.images_a_step = config.batch_size * config.accumulate_steps * world.size
        examples = config.num_examples_per_epoch or len(self.index)
        self.steps_per_epoch = config.benchmark_steps if config.benchmark else math.ceil(examples / self.images_a_step)
        self.schedule = CosineSchedule.from_epochs(
            self._peak_learning_rate(), warmup_init=config.hparams.lr_warmup_init,
            warmup_epochs=config.hparams.lr_warmup_epoch, num_epochs=config.hparams.num_epochs,
            steps_per_epoch=self.steps_per_epoch)
        self.description = Description(
            model_name=config.hparams.model_name, hparams=config.hparams.to_dict(),
            categories=config.class_names.to_categories(), weights="raw and averaged",
            steps_per_epoch=self.steps_per_epoch)
        self.store = CheckpointStore(config.model_dir)
        self.stopwatch = Stopwatch()
        self.mlperf = MlperfLog(config.mlperf_log) if config.mlperf_log and world.is_first else NoMlperfLog()
        self.mlperf.starts(platform=f"{world.size} x {device_name()}")
        self.saved_at, self.saved_step, self.calibrated_step = time.monotonic(), 0, -1
        self.stopping = False  # agreed by all ranks
        self.told_of_stall = False
        self.reports_behind = reports_behind()
        self.cache = DecodedCache(say=journal.say) if config.cache == "decoded" else None

    def run(self) -> dict[str, float]:
        """Everything, in order."""
        started = time.monotonic()
        config = self.config
        self.state = initial_state(config, precision=self.runtime.precision, world=self.world, say=self.journal.say)
        self.state.align()
        resume(self.state, config, store=self.store, images_a_step=self.images_a_step, say=self.journal.say)
        self.first_step = self.saved_step = self.state.step
        self._announce()
        with StopWish(self.world, saved_step=lambda: self.saved_step,
                      unsaved_steps=lambda: self.state.step - self.saved_step) as self.stop_wish:
            self._build()
            try:
                last_loss = self._epochs()
                self.mlperf.run_stops(success=not config.target_ap or self.validation.target_reached)
                numbers = {} if config.benchmark else self._finish()
            except Interrupted:
                if not config.benchmark:
                    self._save_what_is_not()
                    self.journal.say(f"asked to stop: {farewell(self.saved_step)}")
                raise
        self.journal.finish(training_loss=last_loss, seconds=time.monotonic() - started, devices=self.world.size,
                            input_wait=self.stopwatch.recent_share("input"))
        return numbers

    def _build(self) -> None:
        """What a step, an evaluation and a calibration are done with."""
        config = self.config
        self.step = build_train_step(self.state.detector, self.state.optimizer, self.state.average,
                                     compiled=self.runtime.use_xla, world=self.world,
                                     accumulate_steps=config.accumulate_steps)
        self.validation = Validation(
            config, self.state, self.journal, inputs=self._input_config(config.eval_batch_size),
            predict=build_predict(self.state.detector, compiled=self.runtime.use_xla), description=self.description,
            stop_wish=self.stop_wish)
        self.calibration = Calibration(self.state.detector, use_xla=self.runtime.use_xla)
        self.mlperf.hyperparameters(self._mlperf_hyperparameters())
        self.mlperf.run_starts()

    def _peak_learning_rate(self) -> float:
        """As asked for; without being asked the published rate for this many images a step."""
        config, rule = self.config, _RATE_PER_IMAGES * self.images_a_step
        rate = config.hparams.learning_rate
        if config.lr_per_64 is not None:
            rate = config.lr_per_64 * self.images_a_step / 64
        if rate is not None and rate > 2 * rule:
            self.journal.say(f"warning: the learning rate {rate:g} is {rate / rule:.1f} times the published one for "
                             f"{self.images_a_step} images a step ({rule:g})")
        return rule if rate is None else rate

    def _mlperf_hyperparameters(self) -> dict:
        config, schedule = self.config, self.schedule
        return {"seed": config.seed, "global_batch_size": self.images_a_step,
                "gradient_accumulation_steps": config.accumulate_steps, "train_samples": len(self.index),
                "eval_samples": self.validation.samples if config.evaluates else 0, "opt_name": "sgd",
                "opt_base_learning_rate": schedule.peak_learning_rate, "opt_weight_decay": config.hparams.weight_decay,
                "opt_learning_rate_warmup_epochs": config.hparams.lr_warmup_epoch,
                "opt_learning_rate_warmup_factor": schedule.warmup_init / schedule.peak_learning_rate,
                "opt_learning_rate_warmup_steps": schedule.warmup_steps}

    def _facts(self) -> dict:
        """What a reader of the log or the report should know of this run."""
        config = self.config
        return {
            "model": config.hparams.name, "image_size": height_and_width(config.hparams.image_size),
            "classes": len(config.class_names), "trainable_parameters": trainable_parameters(self.state),
            "records": len(self.index), "batch_size": config.batch_size, "accumulate_steps": config.accumulate_steps,
            "ranks": self.world.size, "steps_per_epoch": self.steps_per_epoch, "epochs": config.last_epoch,
            "peak_learning_rate": self.schedule.peak_learning_rate, "precision": self.runtime.precision,
            "use_xla": self.runtime.use_xla, "backend": keras.backend.backend(), "seed": config.seed,
            "deterministic": config.deterministic}

    def _announce(self) -> None:
        config = self.config
        self.journal.log((), self._facts())
        if self.world.is_first:
            self.description.write(Path(config.model_dir) / "config.json")
            config.class_names.write(Path(config.model_dir) / "classes.json")
        if not config.val_records and config.training_mode != "train300" and not config.benchmark:
            self.journal.say("no --val_file_pattern: trains without evaluating")

    def _input_config(self, batch_size: int) -> InputConfig:
        hparams = self.config.hparams
        cores = (os.cpu_count() or 4) // self.world.local_size  # the ranks of a machine share them
        spare = 2 if accelerator_count() > 0 and self.config.set_num_threads else 0
        threads = max(2, cores - spare) if spare or self.world.local_size > 1 else 0
        return InputConfig.letterboxed(
            image_size=height_and_width(hparams.image_size), batch_size=batch_size,
            category_ids=self.config.class_names.category_ids,
            max_instances_per_image=hparams.max_instances_per_image, seed=self.config.seed,
            jitter_min=hparams.jitter_min, jitter_max=hparams.jitter_max,
            flip_probability=0.5 if hparams.input_rand_hflip else 0.0,
            pad_to_batch_maximum=not self.runtime.use_xla and keras.backend.backend() == "tensorflow",
            use_fake_data=self.config.use_fake_data,
            num_threads=threads if self.config.enable_map_parallelization else 1)

    def _batches(self) -> Iterator[Batch]:
        """From the image on that comes next."""
        inputs = self._input_config(self.config.batch_size * self.config.accumulate_steps)
        return iter(training_dataset(self.index, inputs, first_position=self.state.standing.images_seen,
                                     rank=self.world.rank, world_size=self.world.size, cache=self.cache))

    def _epochs(self) -> float:
        """All steps that are left; returns the mean loss of the last epoch."""
        config, state = self.config, self.state
        epochs = 1 if config.benchmark else config.last_epoch
        total = epochs * self.steps_per_epoch
        batches, guard, loss = self._batches(), StepGuard(images_a_step=self.images_a_step), math.nan
        with Progress("train", total=total, steps_per_epoch=self.steps_per_epoch, done=state.step,
                      silent=not self.world.is_first) as progress:
            self._finish_epoch()
            while not self._goal_is_reached() and state.step < total:
                self.mlperf.epoch_starts(state.step // self.steps_per_epoch + 1)
                try:
                    loss = self._one_epoch(batches, guard=guard, progress=progress)
                except NotFinite as error:
                    self._roll_back(error)
                    self._finish_epoch()
                    progress.go_back(state.step)
                    batches, guard = self._batches(), StepGuard(images_a_step=self.images_a_step)
                    continue
                self.mlperf.epoch_stops(state.step // self.steps_per_epoch)
                self.mlperf.throughput(self._images_per_second(), epoch=state.step // self.steps_per_epoch)
                if not config.benchmark:
                    with progress.pausing():
                        self._end_epoch(state.step // self.steps_per_epoch)
                        self._finish_epoch()
        return loss

    def _goal_is_reached(self) -> bool:
        """Whether there is no point in going on; tells why."""
        config, standing = self.config, self.state.standing
        epoch = self.state.step // self.steps_per_epoch
        if config.evaluates and self.validation.target_reached:
            self.journal.say(f"AP {standing.best_ap:.4f} reaches --target_ap={config.target_ap:g} after epoch {epoch}")
        elif config.evaluates and self.validation.out_of_patience:
            self.journal.say(f"no better AP in {config.patience} evaluations: stops after epoch {epoch}")
        else:
            return False
        return True

    def _images_per_second(self) -> float:
        """Since the start of this process, evaluation and checkpoints not counted."""
        totals = self.stopwatch.totals()
        steps = self.state.step - self.first_step
        return steps * self.images_a_step / max(totals.get("input", 0.0) + totals.get("compute", 0.0), 1e-9)

    def _one_epoch(self, batches: Iterator[Batch], *, guard: StepGuard, progress: Progress) -> float:
        """The steps to the next multiple of steps_per_epoch; logs, and returns the mean loss."""
        config, state = self.config, self.state
        end = (state.step // self.steps_per_epoch + 1) * self.steps_per_epoch
        sums: dict[str, float] = {}
        first, watch = state.step, self.stopwatch
        logged, watch_at = first, watch.lap()
        waiting: deque[_StartedStep] = deque()

        def must_wait() -> bool:  # for all reports, as what comes next needs a state that is known to be sound
            return self.stopping or state.step == end or bool(
                config.checkpoint_steps and state.step % config.checkpoint_steps == 0)

        while state.step < end or waiting:
            compiles = state.step <= self.first_step + self.reports_behind
            with self.world.deadline(_COMPILATION_FACTOR if compiles else 1.0):
                if not waiting or not must_wait():
                    try:
                        waiting.append(self._start_step(batches))
                    except InputError:
                        self._keep_what_is_done(waiting, guard)
                        raise
                if len(waiting) <= self.reports_behind and not must_wait():
                    continue
                facts, report = self._finish_step(waiting.popleft(), guard)
            for name, value in report.items():
                sums[name] = sums.get(name, 0.0) + value
            progress.show(loss=report["loss"], lr=facts.learning_rate, input=f"{watch.recent_share('input'):.0%}")
            progress.advance(images=self.images_a_step)
            if config.lr_tb:
                self.journal.curves(facts.step, {"learning_rate": facts.learning_rate})
            if config.time_history and (facts.step % config.log_steps == 0 or facts.step == end):
                watch_at, seconds = watch.lap(), watch.lap() - watch_at
                self.journal.interval(Interval(logged, facts.step, (facts.step - logged) * self.images_a_step, seconds))
                logged = facts.step
            self.stopping = self.stopping or report["stop_wishes"] > 0
            if not waiting and state.step < end:
                self._between_steps()
        means = {name: value / (end - first) for name, value in sums.items()}
        means["learning_rate"] = facts.learning_rate
        self.journal.curves(end, {f"train/{name}": value for name, value in means.items()})
        if not self.told_of_stall and (warning := input_stall(watch.recent_share("input"))):
            self.told_of_stall = True
            self.journal.say(warning)
        self.journal.curves(end, {f"time/{name}_seconds": value for name, value in watch.totals().items()})
        return means["loss"]

    def _start_step(self, batches: Iterator[Batch]) -> "_StartedStep":
        """Next batch and step; on an accelerator it has only begun when this returns."""
        state = self.state
        with self.stopwatch.measuring("input"):
            batch = next(batches)
        rate = self.schedule(state.step) * state.standing.rate_factor
        with self.stopwatch.measuring("compute"):
            report = self.step(batch, rate, self.stop_wish.wished)
        state.step += 1
        state.standing.images_seen += self.images_a_step
        return _StartedStep(StepFacts(step=state.step, learning_rate=rate, image_ids=batch.image_ids.numpy()), report)

    def _keep_what_is_done(self, waiting: deque["_StartedStep"], guard: StepGuard) -> None:
        """Before a record that cannot be used ends the training; of several ranks the others know nothing of it."""
        if self.world.size == 1 and not self.config.benchmark:
            while waiting:
                self._finish_step(waiting.popleft(), guard)
            self._save_what_is_not()

    def _finish_step(self, started: "_StartedStep", guard: StepGuard) -> tuple[StepFacts, dict[str, float]]:
        """Wait for the report, and check it."""
        with self.stopwatch.measuring("compute"):
            report = {name: float(value) for name, value in started.report.items()}
        guard.check(report, started.facts)
        return started.facts, report

    def _between_steps(self) -> None:
        """In the middle of an epoch: save where it is due, and stop where any rank was asked to."""
        if self.stopping:
            raise self.stop_wish.interrupted()
        if self.config.checkpoint_steps and self.state.step % self.config.checkpoint_steps == 0 and not self.config.benchmark:
            self._save()

    def _end_epoch(self, epoch: int) -> None:
        """Save before what takes long, and stop where any rank was asked to."""
        state = self.state
        state.average_batch_statistics()
        state.standing.unfinished_epoch = epoch
        if self.config.evaluates_after(epoch) or self._ends_period(epoch):
            self._save()
        if self.stopping:
            raise self.stop_wish.interrupted()

    def _finish_epoch(self) -> None:
        """What an epoch whose steps are done still needs, perhaps left to this process by one that was killed: calibration,
        evaluation, and a checkpoint that says they are done. Until then all of it can be done again with the same outcome.
        """
        config, state = self.config, self.state
        epoch = state.standing.unfinished_epoch
        if not epoch:
            return
        due, period_ends = config.evaluates_after(epoch), self._ends_period(epoch)
        if due or period_ends:
            self._calibrate()
        if due:
            self.mlperf.evaluation_starts(epoch)
            with self.stopwatch.measuring("evaluation"):
                average_precision = self.validation.evaluate(epoch)
            self.mlperf.evaluation_stops(epoch, accuracy=average_precision)
        if config.validate:
            self.validation.losses(epoch)
        if period_ends and state.average is not None:
            self._save_average(epoch)
        state.standing.unfinished_epoch = 0
        if period_ends or due or config.checkpoint_steps or self._long_since_saved():
            self._save()
        if due or not config.evaluates:
            self._write_report()
        self.world.meet()

    def _ends_period(self, epoch: int) -> bool:
        return epoch % self.config.checkpoint_period == 0

    def _calibrate(self) -> None:
        """Once after a step, before anything measures or writes the averaged weights."""
        config, size = self.config, height_and_width(self.config.hparams.image_size)
        images, asked_for = config.calibration_images, config.calibration_images is not None
        if not asked_for:
            images = min(IMAGES, len(self.index)) if config.batch_size < SMALL_BATCH else 0
        batch_size = calibration_batch(size, images, training_batch=config.batch_size)
        worthwhile = images > 0 and (asked_for or batch_size >= 2 * config.batch_size)
        if not worthwhile or self.calibrated_step == self.state.step:
            return
        inputs = replace(self._input_config(batch_size), use_fake_data=False)
        batches = islice(training_dataset(self.index, inputs, cache=self.cache), images // batch_size)
        with self.stopwatch.measuring("calibration"):
            self.state.change_averages(lambda: self.calibration(self.stop_wish.watched(batches)))
        self.calibrated_step = self.state.step

    def _long_since_saved(self) -> bool:
        """By the first rank's clock."""
        return self.world.gather(time.monotonic() - self.saved_at > _SECONDS_BETWEEN_EPOCH_SAVES)[0]

    def _save(self) -> None:
        """Everything that a resumed training needs; all ranks take part."""
        self._write(self.store.save)
        self.saved_at, self.saved_step = time.monotonic(), self.state.step

    def _save_what_is_not(self) -> None:
        if self.saved_step != self.state.step:
            self._save()

    def _write(self, write: Callable[[dict, Description], object]) -> None:
        """The state, by the first rank; none goes on before it has."""
        with self.stopwatch.measuring("checkpoints"):
            arrays = self.state.arrays()
            if self.world.is_first:
                write(arrays, self.state.description(self.description, weights="raw and averaged"))
            self.world.meet()

    def _save_average(self, epoch: int) -> None:
        if self.world.is_first:
            write_arrays(str(Path(self.config.model_dir) / "ema_weights" / f"emackpt-{epoch}"),
                         self.state.averages_by_name(), self.state.description(self.description, weights="averaged"))

    def _roll_back(self, error: NotFinite) -> None:
        """Back to the last checkpoint with half the rate, where that is wanted and not tried too often."""
        standing = self.state.standing
        rollbacks, factor = standing.rollbacks + 1, standing.rate_factor / 2
        if self.config.on_nan != "rollback" or rollbacks > _MOST_ROLLBACKS:
            raise error
        self.journal.say(f"warning: {error}")
        for source in self.store.readable_lineage():
            if not isinstance(source, InputError):
                go_on_from(self.state, source, self.config, store=self.store, images_a_step=self.images_a_step,
                           say=self.journal.say)
                break
        else:
            raise error
        self.state.standing.rollbacks, self.state.standing.rate_factor = rollbacks, factor
        self.calibrated_step, self.saved_step = -1, self.state.step
        self.world.meet()  # the first step after a long read would else begin for some before others
        self.journal.say(f"rollback {rollbacks} of {_MOST_ROLLBACKS}: back to step {self.state.step}, learning rate times "
                         f"{factor:g}")

    def _finish(self) -> dict[str, float]:
        """The last checkpoint, the exported model and, where wanted, the final numbers."""
        config, state = self.config, self.state
        self.stop_wish.heed()
        self._save_what_is_not()  # before the calibration: with more epochs the training goes on as if it had not ended here
        self._calibrate()
        self._write(partial(write_arrays, str(Path(config.model_dir) / "ckpt-final")))
        with state.averaged_weights():
            if self.world.is_first and keras.backend.backend() == "tensorflow":
                from efficientdet.export.saved_model import export_saved_model

                export_saved_model(state.detector, str(Path(config.model_dir) / "emackpt-final"),
                                   description=state.description(self.description, weights="averaged"))
        self.stop_wish.heed()
        measures = None
        if config.evaluates:
            with self.stopwatch.measuring("evaluation"):
                measures = self.validation.finish(state.step // self.steps_per_epoch)
        self._write_report()
        self.journal.say(f"report: {Path(config.model_dir) / REPORT}")
        return measures.numbers if measures else {}

    def _write_report(self) -> None:
        """The page of this training as far as it is."""
        if not self.world.is_first:
            return
        config, measures = self.config, self.validation.measures
        write_report(config.model_dir, RunSummary(
            title=f"{config.hparams.name} on {Path(config.records[0]).name.split('-')[0]} records", facts=self._facts(),
            curves=read_curves(Path(config.model_dir) / config.log_filename), numbers=measures.numbers if measures else {},
            per_class=measures.class_ap if measures else {}, seconds=self.stopwatch.totals(),
            pictures=self.validation.pictures))
