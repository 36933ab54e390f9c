"""What a training says of itself: to the log at its start, to MLPerf's, and on the page of its report."""

import os
from pathlib import Path

import keras

from efficientdet.devices.device import device_name, peak_device_memory, peak_host_memory
from efficientdet.devices.matrix_product import multiply_adds_per_second
from efficientdet.reports.training_report import FILE_NAME, RunSummary, write_report
from efficientdet.run_log.journal import read_curves
from efficientdet.training.run import Run
from efficientdet.training.start import trainable_parameters
from efficientdet.training.validation import Validation, minutes_in_words
from model.detector import named_variables
from model.multiply_adds import training_multiply_adds


def announce(run: Run) -> None:
    """The facts into the log; model and classes beside the checkpoints."""
    run.journal.log((), _facts(run))
    if run.world.is_first:
        run.description.write(Path(run.config.model_dir) / "config.json")
        run.config.class_names.write(Path(run.config.model_dir) / "classes.json")
    if not run.config.val_records and run.config.training_mode != "train300" and not run.config.benchmark:
        run.journal.say("no --val_file_pattern: trains without evaluating")


def announce_to_mlperf(run: Run, *, validation_samples: int) -> None:
    """What the training is made with, and the weights that it starts from, to MLPerf's log."""
    family = run.config.hparams.family
    run.mlperf.hyperparameters(
        _mlperf_hyperparameters(run, validation_samples=validation_samples)
        | family.mlperf_values(run.config.hparams, batch_norm_images=run.config.batch_size * run.config.bn_group))
    run.mlperf.weights_initialized(family.mlperf_tensors(named_variables(run.state.detector.network)))


def _mlperf_hyperparameters(run: Run, *, validation_samples: int) -> dict:
    """As MLPerf's log names them; samples are images."""
    config, schedule = run.config, run.schedule
    return {"seed": config.seed, "global_batch_size": run.images_a_step,
            "gradient_accumulation_steps": config.accumulate_steps, "train_samples": len(run.index),
            "eval_samples": validation_samples, "opt_name": config.hparams.optimizer,
            "opt_base_learning_rate": schedule.peak_learning_rate, "opt_weight_decay": config.hparams.weight_decay,
            "opt_learning_rate_warmup_epochs": config.hparams.lr_warmup_epoch,
            "opt_learning_rate_warmup_factor": schedule.warmup_init / schedule.peak_learning_rate,
            "opt_learning_rate_warmup_steps": schedule.warmup_steps}


def write_run_report(run: Run, validation: Validation) -> None:
    """The page of this training as far as it is."""
    if not run.world.is_first:
        return
    config, measures = run.config, validation.measures
    write_report(config.model_dir, RunSummary(
        title=f"{config.hparams.name} on {Path(config.records[0]).name.split('-')[0]} records", facts=_facts(run),
        goal=_goal_in_words(run, validation),
        curves=read_curves(Path(config.model_dir) / config.log_filename), numbers=measures.numbers if measures else {},
        per_class=measures.class_ap if measures else {}, seconds=run.stopwatch.totals(), pictures=validation.pictures))


def announce_end(run: Run, validation: Validation, *, loss: float | None, seconds: float) -> None:
    """The averages of the run into the log, and for a benchmark what they are to be seen beside."""
    if loss is None and run.state.step >= run.last_step:
        run.journal.say(f"no step was left: all {run.state.step} are done; the same command with a larger --num_epochs"
                        f"{' or --max_minutes' if run.config.max_minutes else ''} continues the training")
    run.journal.finish(training_loss=loss, seconds=seconds, devices=run.world.size,
                       input_wait=run.stopwatch.recent_share("input"), goal=_goal_numbers(run, validation))
    if run.config.benchmark:
        run.journal.log((), _surroundings(run))


def _surroundings(run: Run) -> dict:
    """The machine, the memory of the process that took most, the arithmetic of an image, and how much of it the machine does,
    all processes at once."""
    host, device = zip(*run.world.gather((peak_host_memory(), peak_device_memory())), strict=True)  # the product takes more
    rates = run.world.gather(multiply_adds_per_second(run.runtime.precision))
    return {"device": device_name(), "load_average": round(os.getloadavg()[0], 2), "peak_host_memory_bytes": max(host),
            "peak_device_memory_bytes": None if None in device else max(device),
            "multiply_adds_per_image": training_multiply_adds(run.state.detector.trained_network()),
            "machine_multiply_adds_per_second": sum(rates)}


def _goal_numbers(run: Run, validation: Validation) -> dict[str, float]:
    """The AP that was asked for, in per cent as in the log, and the minutes to it; empty where none was."""
    if not run.config.target_ap or not run.config.evaluates:
        return {}
    minutes = validation.time_to_target
    return {"target_mAP": round(100 * run.config.target_ap, 2), **({} if minutes is None else {"time_to_target": minutes})}


def _goal_in_words(run: Run, validation: Validation) -> str:
    if not run.config.target_ap:
        return ""
    reached = "reached" + minutes_in_words(validation.time_to_target) if validation.target_reached else "not reached"
    return f"target AP {run.config.target_ap:g} {reached}"


def announce_report(run: Run) -> None:
    """Where the page is."""
    run.journal.say(f"report: {Path(run.config.model_dir) / FILE_NAME}")


def _facts(run: Run) -> dict:
    """What a reader of the log or the report should know of this run."""
    config = run.config
    return {
        "model": config.hparams.name, "image_size": config.hparams.input_size,
        "classes": len(config.class_names), "trainable_parameters": trainable_parameters(run.state),
        "records": len(run.index), "batch_size": config.batch_size, "accumulate_steps": config.accumulate_steps,
        "ranks": run.world.size, "steps_per_epoch": run.steps_per_epoch, "epochs": config.last_epoch,
        "peak_learning_rate": run.schedule.peak_learning_rate, "precision": run.runtime.precision,
        "use_xla": run.runtime.use_xla, "backend": keras.backend.backend(), "seed": config.seed,
        "deterministic": config.deterministic}
