"""Settings of a training that are chosen from the data, the measured speed and the data check."""

import functools
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from efficientdet.configuration.model_config import parse_overrides
from efficientdet.data_checks.findings import as_hparams, counted
from efficientdet.families.quickstart_recipe import QuickstartRecipe
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices
from efficientdet.quickstart.initial_weights import InitialWeights
from efficientdet.quickstart.plan import make_plan, measure_step_time, shown_images, tile_settings, usable_side
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.split_records import labeled_images, records_of, records_pattern
from program_support.claimed_outputs import claim_folder
from program_support.errors import InputError

_FIRST_SIDE = 256  # longer side for the first measurement of the step time
_COMPARISON = 1.5  # of a round with the model before it: seconds as a multiple of those of a start of train.py


def choose_settings(
    config: QuickstartConfig, folder: Path, *, weights: InitialWeights, measured: str, spent: float
) -> dict[str, Any]:
    """Return the flags of one or two trainings, lines with the reasons, and the estimated time of the other steps."""
    begin, images = time.monotonic(), labeled_images(records_pattern(folder, "train"))
    defaults = hyperparameters_of(config.model_name, {})
    recipe, published = defaults.family.quickstart, max(defaults.input_size)
    start_recipe, given = recipe.start(weights.kind), parse_overrides(config.hparams)
    of_family = {**recipe.settings, **start_recipe.settings}
    default_side = max(hyperparameters_of(config.model_name, given).input_size)
    first = default_side if "image_size" in given else max(recipe.min_side, min(_FIRST_SIDE, published))
    first_settings = {
        "image_size": _input_shape(recipe, shown_images(images, given).images.sizes, first),
        **of_family,
        "learning_rate": start_recipe.rate.of(choices.batch_size(len(images), accelerated=False)),
        **given,
    }
    step_time, start_seconds = measure_step_time(
        config, folder, first_settings, weights=weights.flags, side=first, images=len(images)
    )
    plan_of = functools.partial(
        make_plan,
        config,
        images,
        recipe=recipe,
        start_recipe=start_recipe,
        step_time=step_time,
        start_seconds=start_seconds,
        measured=measured,
        spent=spent + time.monotonic() - begin,
    )
    plan = plan_of(given)
    if not given.keys() & {"image_size", "tile_size"}:
        image_ms = 1000 * recipe.evaluation_cost * step_time.at(_FIRST_SIDE) / step_time.batch_size
        tiles = tile_settings(images, published, plan.budget, image_ms=image_ms)
        of_family |= tiles
        plan = plan_of(tiles) if tiles else plan
    shown, budget = plan.shown, plan.budget
    of_family |= start_recipe.long_settings if budget.is_long else {}
    side, side_reason = first, "set by --hparams"
    check = functools.partial(_suggested_settings, config, folder, weights=weights.flags)
    shape_of = functools.partial(_input_shape, recipe, shown.images.sizes)
    if "image_size" not in given:
        sides = choices.possible_sides(shown.largest, published, min_side=recipe.min_side)
        sizes = {shape_of(side): side for side in sides}
        usable = usable_side(config, images, sizes, {**of_family, **given}, weights=weights.flags, check=check)
        side, side_reason = choices.image_side(shown.largest, published, budget, usable=usable)
    settings = {"image_size": shape_of(side), **of_family, **given}
    suggested = check(settings)
    settings |= {key: value for key, value in suggested.items() if key not in given}
    batch, rate = step_time.batch_size, start_recipe.rate.of(step_time.batch_size)
    flags = {"batch_size": batch, **weights.flags, "lr": None if "learning_rate" in given else rate}
    trainings, reasons = _trainings(config, settings, flags, budget, images=shown.per_epoch)
    return {
        "weights": asdict(weights),
        "trainings": trainings,
        "minutes": config.minutes,
        "seconds_after_choice": plan.after,
        "needed_minutes": _needed_minutes(config, side, budget, others=plan.others),
        "budget": asdict(budget),
        "why": [
            f"input size {side} pixels (longer side): {side_reason} (median of the "
            f"{'images' if shown.images is images else 'tiles'}: {choices.typical_side(shown.images.sizes)})",
            f"{as_hparams(suggested) or 'anchors and input shape: defaults'}: see {folder}/doctor/doctor.html",
            *reasons,
            f"learning rate {rate:g}: for {weights.kind} weights",
            *([f"{as_hparams(of_family)}: for a short training of {config.model_name}"] if of_family else []),
        ],
    }


def _input_shape(recipe: QuickstartRecipe, sizes: np.ndarray, side: int) -> int | str:
    """Return `image_size` with this longer side: a square, or the shape of most images."""
    return choices.stretched_shape(side, sizes, min_side=recipe.min_side) if recipe.stretches else side


def continue_settings(
    config: QuickstartConfig, folder: Path, chosen: dict[str, Any], *, start: Path, number: int, spent: float
) -> dict[str, Any]:
    """Return the choice of a round that continues from the model of round `number`, `chosen`, with its input size.

    The records of the round are in the folder. `start`: folder of the model; `spent`: the seconds of its steps so far.

    Raises:
        InputError: an earlier version chose, which did not store what is needed.
    """
    if (earlier := chosen.get("budget")) is None:
        raise InputError(
            f"{folder}: the model was trained by an earlier version; expected another --output_dir, and "
            "--weights=FOLDER/model to start from it"
        )
    start_time, images = time.monotonic(), labeled_images(records_pattern(folder, "train"))
    flags = {**chosen["trainings"][-1], "backbone_init": None}
    settings = parse_overrides(flags["hparams"])
    _suggested_settings(config, folder, settings, weights={"pretrained_ckpt": str(start)})
    after = chosen["seconds_after_choice"]
    if number == 1:  # later choices include it
        after += _COMPARISON * earlier["start_seconds"]
    changes = {
        "step_time": choices.StepTime(**earlier["step_time"]),
        "seconds": choices.training_seconds(config.minutes, others=spent + after + time.monotonic() - start_time),
        "smaller_input_first": False,
    }
    if flags["lr"] and chosen["weights"]["kind"] != "detector":
        flags["lr"] = choices.CONTINUED_RATE * flags["lr"]
    per_epoch = shown_images(images, settings).per_epoch
    trainings, reasons = _trainings(config, settings, flags, choices.Budget(**earlier | changes), images=per_epoch)
    return {
        **chosen,
        "weights": asdict(InitialWeights("detector", f"model of round {number}")),
        "trainings": trainings,
        "minutes": config.minutes,
        "seconds_after_choice": after,
        "needed_minutes": 0,
        "why": [f"input size, anchors and hyperparameters of round {number}, from whose model it starts", *reasons],
    }


def _needed_minutes(config: QuickstartConfig, side: int, budget: choices.Budget, *, others: float) -> int:
    """Return and print the minutes that a good AP needs, 0 if no more. others: seconds of the other steps."""
    steps, required = budget.steps(side), budget.required_steps(side)
    if steps >= required:
        return 0
    needed = math.ceil((others + budget.seconds * required / steps) / 60)
    print(
        f"warning: the training has time for about {steps:.0f} steps of the {required} that a good AP needs at "
        f"{side} pixels, which need about --minutes={needed}"
    )
    return needed


def _trainings(
    config: QuickstartConfig, settings: dict[str, Any], flags: dict[str, Any], budget: choices.Budget, *, images: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the flags of each training, the last with the input of the settings, and lines with the reasons."""
    size = hyperparameters_of(config.model_name, settings).input_size
    inputs, trainings, reasons = budget.inputs(size), [], []
    for height, width in inputs:
        length, reason = choices.training_length(
            images, budget, side=max(height, width), seconds=budget.seconds / len(inputs)
        )
        checked = counted(length.num_examples_per_epoch, "image", "images")
        reasons.append(f"at {width}x{height} pixels {reason}; train.py checks the time every {checked}")
        is_last = (height, width) == size
        overrides = {} if is_last else {"image_size": f"{width}x{height}", "lr_end_factor": choices.FIRST_LR_END_FACTOR}
        trainings.append({**flags, "hparams": as_hparams(settings | overrides), **asdict(length)})
    return trainings, ["; then ".join(reasons)]


def _suggested_settings(
    config: QuickstartConfig, folder: Path, settings: dict[str, Any], *, weights: dict[str, str]
) -> dict[str, Any]:
    """Run the data check and return the settings that it suggests in addition to these and to those of the weights."""
    run_program(
        "doctor",
        {
            "records": records_pattern(folder, "train"),
            "val_records": records_of(folder, "val"),
            "model_name": config.model_name,
            "hparams": as_hparams(settings),
            "pretrained_ckpt": weights.get("pretrained_ckpt"),
            "output_dir": claim_folder(folder / "doctor"),
        },
    )
    suggested = json.loads((folder / "doctor" / "doctor.json").read_text(encoding="utf-8"))["suggested"]["settings"]
    # Flips and rotations are left out: their effect on the AP has not been measured
    return {key: value for key, value in suggested.items() if not key.startswith("input_rand_")}
