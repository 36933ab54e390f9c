"""Steps from a folder of labeled images to an exported detector; finished steps of earlier calls are skipped."""

import glob
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from dataset.class_names import class_names_of_records
from dataset.conversion.format_recognition import FORMATS
from dataset.records.labeled_images import LabeledImages
from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import index_records
from efficientdet.configuration.artifact_formats import IN_8_BITS
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.data_checks.findings import as_hparams, counted
from efficientdet.families.published_files import published_files
from efficientdet.families.registry import hyperparameters_of
from efficientdet.quickstart import choices
from efficientdet.quickstart.programs import run_program
from efficientdet.run_log.journal import DEFAULT_FILE_NAME, INTERVAL_STEP, read_log
from efficientdet.weights.downloads import local_path
from program_support.atomic_files import unpacked_zip, write_text
from program_support.checked_fields import at_least, checked, one_of
from program_support.errors import InputError

NO_WEIGHTS = "none"
_FIRST_SIDE = 256  # longer side for the first measurement of the step time
_TIMED_STEPS = 12
_COMPARED = 8  # images on which exported files are compared with the checkpoint
_REPEATED_FOR_MORE_MINUTES = ("train", "evaluate", "export")
_RESUME_ADVICE = "run the same command again to resume"


@checked
class QuickstartConfig:
    """Configuration of a quick start.

    weights: a name or path to start from, or `none`; None: the pretrained weights of the model if available. hparams:
    the user's hyperparameters.
    """

    images: str
    annotations: str | None
    output_dir: str
    model_name: str
    minutes: Annotated[float, at_least(0.1)] = 30.0
    weights: str | None
    formats: tuple[str, ...]
    hparams: str
    format: Annotated[str, one_of(*FORMATS)] | None = None  # format of the labels; None: recognized by content


def quickstart(config: QuickstartConfig) -> None:
    """Convert, choose settings, check the data, train, evaluate and export. Raises InputError."""
    started, folder = time.monotonic(), Path(config.output_dir)
    state = _State(folder / "quickstart.json", asdict(config))
    images = config.images
    if os.path.isfile(images):
        images = state.once("unpack", lambda: unpacked_zip(config.images, folder / "images"))
    state.once(
        "convert",
        lambda: run_program(
            "dataset.create_tfrecord",
            {
                "images": images,
                "annotations": config.annotations,
                "format": config.format,
                "output_dir": folder / "records",
            },
            advice=_RESUME_ADVICE,
        ),
    )
    train, val, test = _pattern(folder, "train"), _records(folder, "val"), _records(folder, "test")
    measured = test or val or train
    chosen = state.once("choose", lambda: _choose(config, folder, measured=measured, spent=state.seconds("choose")))
    for line in chosen["why"]:
        print(f"chose {line}")
    state.once(
        "train",
        lambda: run_program(
            "train",
            {
                "training_file_pattern": train,
                "val_file_pattern": val,
                "training_mode": None if val else "train300",
                "model_dir": folder / "model",
                "model_name": config.model_name,
                "warn_of_lr": False,
                **chosen["flags"],
                **_time_of_training(config.minutes, chosen, others=state.seconds("train")),
            },
            advice=_RESUME_ADVICE,
        ),
    )
    state.once(
        "evaluate",
        lambda: run_program(
            "eval",
            {
                "ckpt": folder / "model",
                "val_file_pattern": measured,
                "report": folder / "evaluation",
                "output_json": folder / "metrics.json",
            },
            advice=_RESUME_ADVICE,
        ),
    )
    compared = [Path(images, name) for name in _labeled(measured, most=_COMPARED).names]
    state.once(
        "export",
        lambda: run_program(
            "export",
            {
                "ckpt": folder / "model",
                "output_dir": folder / "exported",
                "formats": ",".join(config.formats),
                "images": compared,
                "val_file_pattern": measured,
                "int8_images": f"{train}.tfrecord" if {*IN_8_BITS} & {*config.formats} else None,
            },
            advice=_RESUME_ADVICE,
        ),
    )
    _print_summary(
        folder, measured_on="test" if test else "validation" if val else "training", image_folder=compared[0].parent
    )
    print(
        f"finished in {(time.monotonic() - started) / 60:.1f} minutes; to train longer, run the same command with "
        f"--minutes above {config.minutes:g}"
    )


def _time_of_training(minutes: float, chosen: dict[str, Any], *, others: float) -> dict[str, Any]:
    """Return flags of train.py for the length of the training; `others`: seconds of the other steps so far."""
    others += chosen["seconds_after_choice"]
    seconds = choices.training_seconds(minutes, others=others)
    print(f"time: {seconds / 60:.1f} of {minutes:g} minutes for training, about {others / 60:.1f} for the other steps")
    if seconds + others > 60 * minutes:
        print(
            f"warning: --minutes={minutes:g} is too short for this machine; it will take {(seconds + others) / 60:.1f}"
        )
    more = max(1.0, minutes / chosen["minutes"])  # --minutes relative to the call that chose the epochs
    return {"max_minutes": round(seconds / 60, 3), "num_epochs": math.ceil(more * chosen["flags"]["num_epochs"])}


class _State:
    """State file of a quick start: finished steps and chosen settings, with which a second call resumes."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self._path, settings = path, json.loads(json.dumps(settings))
        try:
            self._notes = (
                json.loads(path.read_text(encoding="utf-8"))
                if path.exists()
                else {"asked": settings, "done": {}, "seconds": {}}  # the keys of files of earlier versions
            )
            before, self._done, self._seconds = (self._notes[part] for part in ("asked", "done", "seconds"))
            other = [
                key for key in settings if key not in ("output_dir", "minutes") and before.get(key) != settings[key]
            ]
            longer = settings["minutes"] > before["minutes"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: not a state file of a quick start ({error}); delete it to start over") from error
        if other:
            raise InputError(
                f"{path}: was started with {other[0]} {before.get(other[0])!r}, not {settings[other[0]]!r}; expected "
                "the same, or another --output_dir"
            )
        if longer and "train" in self._done:
            print(f"--minutes raised from {before['minutes']:g} to {settings['minutes']:g}: resuming the training")
            for step in _REPEATED_FOR_MORE_MINUTES:
                self._done.pop(step, None)
        before["minutes"] = settings["minutes"]

    def seconds(self, other_than: str) -> float:
        """Return the seconds of all steps in all calls so far, except the named step."""
        return sum(seconds for step, seconds in self._seconds.items() if step != other_than)

    def once(self, step: str, run: Callable[[], Any]) -> Any:
        """Return the result of a step, which is run unless an earlier call did."""
        if step in self._done:
            print(f"{step}: already done")
        else:
            start_time = time.monotonic()
            self._done[step] = run()
            self._seconds[step] = self._seconds.get(step, 0.0) + round(time.monotonic() - start_time, 1)
            try:
                write_text(self._path, json.dumps(self._notes, indent=1))
            except OSError as error:
                raise InputError(f"{self._path}: cannot be written: {error.strerror}") from error
        return self._done[step]


def _choose(config: QuickstartConfig, folder: Path, *, measured: str, spent: float) -> dict[str, Any]:
    """Return the flags of the training, lines with the reasons, and the estimated seconds of the other steps."""
    start_time, images = time.monotonic(), _labeled(_pattern(folder, "train"))
    weights, weights_reason = _weights(config)
    target_steps = choices.STEPS_FROM_PUBLISHED_WEIGHTS if weights else choices.STEPS_FROM_RANDOM_WEIGHTS
    given = parse_overrides(config.hparams)
    published = max(hyperparameters_of(config.model_name, {}).input_size)
    largest = choices.typical_side(images.sizes)
    own = max(hyperparameters_of(config.model_name, given).input_size)
    first = own if "image_size" in given else min(_FIRST_SIDE, published)
    step_time, start = _measure_step_time(
        config,
        folder,
        {"image_size": first, **given},
        side=first,
        batch=choices.batch_size(len(images), accelerated=False),
    )
    step_time = replace(step_time, batch_size=choices.batch_size(len(images), accelerated=step_time.accelerated))
    after = choices.seconds_after_choice(
        start, formats=len(config.formats), step_time=step_time, measured_images=_count(measured)
    )
    seconds = choices.training_seconds(config.minutes, others=spent + time.monotonic() - start_time + after)
    if "image_size" in given:
        side, side_reason = first, "set by --hparams"
    else:
        side, side_reason = choices.image_side(
            largest, published, step_time, target_steps=target_steps, seconds=seconds
        )
    settings = {"image_size": side, **({} if weights else choices.JITTER), **given}
    suggested = _suggested_settings(config, folder, settings)
    settings |= {key: value for key, value in suggested.items() if key not in given}
    length, length_reason = choices.training_length(
        len(images), step_time, side=side, target_steps=target_steps, seconds=seconds
    )
    learning_rate, rate_reason = choices.learning_rate(step_time.batch_size, from_random_weights=not weights)
    return {
        "flags": {
            "hparams": as_hparams(settings),
            "batch_size": step_time.batch_size,
            "pretrained_ckpt": weights,
            "lr": None if "learning_rate" in given else learning_rate,
            **asdict(length),
        },
        "minutes": config.minutes,
        "seconds_after_choice": after,
        "why": [
            f"weights: {weights_reason}",
            f"input size {side} pixels (longer side): {side_reason} (median of the images: {largest})",
            f"{as_hparams(suggested) or 'anchors and input shape: defaults'}: see {folder}/doctor/doctor.html",
            f"{length_reason}; train.py checks the time every {counted(length.num_examples_per_epoch, 'image', 'images')}",
            f"learning rate {learning_rate:g}: {rate_reason}",
            *(
                []
                if weights
                else [f"{as_hparams(choices.JITTER)}: less scale jitter suits a short training from random weights"]
            ),
        ],
    }


def _weights(config: QuickstartConfig) -> tuple[str | None, str]:
    """Return the weights to start from, None for random weights, and the reason."""
    if config.weights == NO_WEIGHTS:
        return None, "random, set by --weights=none"
    if config.weights:
        return config.weights, "set by --weights"
    if config.model_name not in published_files():
        return None, f"random; there are no pretrained weights for {config.model_name}"
    try:
        local_path(config.model_name)
    except InputError as error:
        return None, f"random; the pretrained weights are not available ({error})"
    return config.model_name, "pretrained on COCO"


def _measure_step_time(
    config: QuickstartConfig, folder: Path, settings: dict[str, Any], *, side: int, batch: int
) -> tuple[choices.StepTime, float]:
    """Time some training steps with an input of this longer side; also return the seconds up to the end of the first "
    "one."""
    start_time, probe = time.time(), folder / "probe"
    shutil.rmtree(probe, ignore_errors=True)
    run_program(
        "train",
        {
            "training_file_pattern": _records(folder, "train"),
            "model_dir": probe,
            "model_name": config.model_name,
            "benchmark": True,
            "benchmark_steps": _TIMED_STEPS,
            "batch_size": batch,
            "log_steps": 1,  # time every step, so that the median excludes the compilation
            "hparams": as_hparams(settings),
        },
        advice=_RESUME_ADVICE,
    )
    log = list(read_log(probe / DEFAULT_FILE_NAME))
    found = {key: value for entry in log for key, value in (entry.get("data") or {}).items()}
    first_step = next(float(entry["timestamp"]) for entry in log if entry.get("step") == INTERVAL_STEP)
    shutil.rmtree(probe, ignore_errors=True)
    if found["load_average"] > 2 * (os.cpu_count() or 1):
        print(
            f"warning: other processes use this machine (load average {found['load_average']:.1f} on {os.cpu_count()} "
            "cores); the input size, chosen from the measured step time, may be smaller than necessary"
        )
    step_time = choices.StepTime(
        seconds=found["latency_training_p50"],
        side=side,
        batch_size=batch,
        accelerated=found["peak_device_memory_bytes"] is not None,
    )
    return step_time, first_step - start_time


def _suggested_settings(config: QuickstartConfig, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Run the data check and return the settings that it suggests in addition to these."""
    run_program(
        "doctor",
        {
            "records": _records(folder, "train"),
            "val_records": _records(folder, "val"),
            "model_name": config.model_name,
            "hparams": as_hparams(settings),
            "output_dir": folder / "doctor",
        },
        advice=_RESUME_ADVICE,
    )
    return json.loads((folder / "doctor" / "doctor.json").read_text(encoding="utf-8"))["suggested"]["settings"]


def _print_summary(folder: Path, *, measured_on: str, image_folder: Path) -> None:
    numbers = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    artifact = folder / "exported" / "detector.onnx"
    print(f"\nAP {numbers['AP']:.3f}, AP50 {numbers['AP50']:.3f} on the {measured_on} images")
    for path, what in (
        ("doctor/doctor.html", "data check"),
        ("model/report.html", "training report"),
        ("evaluation/report.html", "evaluation report"),
        ("exported/artifacts.md", "exported files"),
    ):
        print(f"  {folder / path}: {what}")
    if artifact.exists():
        annotated = folder / "annotated"
        print(
            f"annotate images:  python infer.py --model={artifact} --image_path={image_folder} "
            f"--output_dir={annotated}\nin the browser:   python serve.py --model={artifact}"
        )


def _labeled(pattern: str, *, most: int | None = None) -> LabeledImages:
    """Return the images of the records, or the first `most`."""
    records = sorted(glob.glob(pattern))
    index = index_records(records)
    names = class_names_of_records(records)
    assert names is not None
    return labeled_records(index, names, range(len(index))[:most])


def _count(pattern: str) -> int:
    return len(index_records(sorted(glob.glob(pattern))))


def _records(folder: Path, part: str) -> str | None:
    """Return the pattern of the records of train, val or test; None if there are none."""
    pattern = _pattern(folder, part)
    return pattern if glob.glob(pattern) else None


def _pattern(folder: Path, part: str) -> str:
    return f"{folder}/records/{part}-*"
