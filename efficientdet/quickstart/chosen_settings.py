"""Settings of a training that are chosen from the data, the measured speed and the data check."""

import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from dataset.input.tiling import Tiling, seen_in_tiles, tile_counts, tiles_per_epoch
from dataset.records.labeled_records import LabeledImages
from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.data_checks.anchor_search import SMALL, smallest_usable_size, suggested_tile, typical_tile_count
from efficientdet.data_checks.findings import as_hparams, counted
from efficientdet.exports.formats import need_calibration
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.preset_values import QuickstartRecipe
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices
from efficientdet.quickstart.choices import InitialWeights
from efficientdet.quickstart.output_folder import image_count, labeled_images, records_of, records_pattern
from efficientdet.quickstart.programs import result_of, run_program
from efficientdet.weights.downloads import local_path
from program_support.claimed_outputs import claim_folder
from program_support.errors import InputError

_FIRST_SIDE = 256  # longer side for the first measurement of the step time
_COMPARISON = 3.0  # of a round with the model before it: seconds as a multiple of those of a start of train.py
_START = 5.5  # seconds of train.py up to the end of its first step, as a multiple of those to build the network
_BUSY = 2  # load average per core from which the measured speed is too low


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
        **given,
    }
    step_time, start_seconds = estimate_step_time(
        hyperparameters_of(config.model_name, first_settings), side=first, images=images
    )
    plan_of = functools.partial(
        make_plan,
        config,
        images,
        recipe=recipe,
        weights=weights,
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
        **_step_numbers(side, budget, others=plan.others),
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
    if flags["lr"] and number == 1:
        flags["lr"] = choices.CONTINUED_RATE * flags["lr"]
    per_epoch = shown_images(images, settings).per_epoch
    trainings, reasons = _trainings(config, settings, flags, choices.Budget(**earlier | changes), images=per_epoch)
    return {
        **chosen,
        "weights": asdict(InitialWeights("detector", f"model of round {number}")),
        "trainings": trainings,
        "minutes": config.minutes,
        "seconds_after_choice": after,
        "required_steps": 0,
        "why": [f"input size, anchors and hyperparameters of round {number}, from whose model it starts", *reasons],
    }


def _step_numbers(side: int, budget: choices.Budget, *, others: float) -> dict[str, float]:
    """Return the steps that a good AP needs and the seconds of one; warn if they do not fit.

    others: seconds of the other steps.
    """
    steps, required = budget.steps(side), budget.required_steps(side)
    if steps < required:
        needed = math.ceil((others + budget.seconds * required / steps) / 60)
        print(
            f"warning: the training has time for about {steps:.0f} steps of the {required} that a good AP needs at "
            f"{side} pixels, which need about --minutes={needed}"
        )
    return {"required_steps": required, "seconds_per_step": budget.seconds / steps}


def _trainings(
    config: QuickstartConfig, settings: dict[str, Any], flags: dict[str, Any], budget: choices.Budget, *, images: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the flags of each training, the last with the input of the settings, and lines with the reasons."""
    size = hyperparameters_of(config.model_name, settings).input_size
    inputs, trainings, reasons = budget.inputs(size), [], []
    calibration = None if budget.step_time.accelerated else choices.CALIBRATION_IMAGES
    for height, width in inputs:
        length, reason = choices.training_length(
            images, budget, side=max(height, width), seconds=budget.seconds / len(inputs)
        )
        checked = counted(length.num_examples_per_epoch, "image", "images")
        reasons.append(f"at {width}x{height} pixels {reason}; train.py checks the time every {checked}")
        is_last = (height, width) == size
        overrides = {} if is_last else {"image_size": f"{width}x{height}", "lr_end_factor": choices.FIRST_LR_END_FACTOR}
        hparams = as_hparams(settings | overrides)
        trainings.append({**flags, "hparams": hparams, "calibration_images": calibration, **asdict(length)})
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


def estimate_step_time(hparams: Hyperparameters, *, side: int, images: LabeledImages) -> tuple[choices.StepTime, float]:
    """Estimate the time of a training step with an input of this longer side, and of train.py up to its first step.

    The training measures its steps and adapts their number. A step takes its multiply-adds at a part of the speed of
    `measure_machine`; tracing it takes a multiple of the time in which the network is built.
    """
    accelerated, build_seconds, image_seconds = result_of(
        measure_machine, hparams, int(images.classes.max(initial=0)) + 1
    )
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        print(
            f"warning: other processes use this machine (load average {load:.1f} on {cores} cores); the input size, "
            "chosen from the estimated step time, may be smaller than necessary"
        )
    batch, recipe = choices.batch_size(len(images), accelerated=accelerated), hparams.family.quickstart
    step_time = choices.StepTime(
        seconds=batch * image_seconds / recipe.efficiency,
        side=side,
        batch_size=batch,
        accelerated=accelerated,
        fixed_share=recipe.fixed_share,
    )
    return step_time, _START * build_seconds


def measure_machine(hparams: Hyperparameters, num_classes: int) -> tuple[bool, float, float]:
    """Return whether there is an accelerator, the seconds to build a network, and those of its multiply-adds.

    The last are those of a training step, per image, at the speed of products of matrices, or of a block with a
    depthwise convolution if the network has one. Runs operations of the backend.
    """
    import keras  # the start does not wait for it

    from efficientdet.devices.device import multiply_adds_per_second, separable_multiply_adds_per_second
    from efficientdet.devices.runtime import accelerator_count
    from model.multiply_adds import training_multiply_adds

    accelerated, begin = accelerator_count() > 0, time.monotonic()
    network = build_detector(hparams, num_classes=num_classes).trained_network()
    count, seconds = training_multiply_adds(network), time.monotonic() - begin
    is_separable = any(isinstance(layer, keras.layers.DepthwiseConv2D) for layer in network._flatten_layers())
    speed_of = separable_multiply_adds_per_second if is_separable else multiply_adds_per_second
    return accelerated, seconds, count / speed_of("mixed_float16" if accelerated else "float32")


_MAGNIFICATION = 2  # most input pixels per image pixel: small objects in tiles are worth it


class ShownImages(NamedTuple):
    """Training images with the sizes and boxes of what the network is shown.

    largest: longer side in pixels of the largest input that is worth it. per_epoch: number of images or tiles.
    """

    images: LabeledImages
    largest: int
    per_epoch: int


def shown_images(images: LabeledImages, settings: Mapping[str, Any]) -> ShownImages:
    """Return the images, or their tiles if the settings have a `tile_size`."""
    tiling = Tiling.of_hyperparameters(settings)
    if tiling is None:
        return ShownImages(images, choices.typical_side(images.sizes), len(images))
    return ShownImages(
        seen_in_tiles(images, tiling), _MAGNIFICATION * max(tiling.size), int(tiles_per_epoch(images, tiling).sum())
    )


def evaluated_count(pattern: str, settings: Mapping[str, Any]) -> int:
    """Return the number of images of records, or of all of their tiles."""
    tiling = Tiling.of_hyperparameters(settings)
    return image_count(pattern) if tiling is None else int(tile_counts(labeled_images(pattern).sizes, tiling).sum())


def tile_settings(images: LabeledImages, published: int, budget: choices.Budget, *, image_ms: float) -> dict[str, Any]:
    """Return the `tile_size` if objects are too small in the complete images at every input that fits into the time.

    Prints the gain and the cost. image_ms: milliseconds of detection in an input of 256 pixels.
    """
    side, _ = choices.image_side(choices.typical_side(images.sizes), published, budget)
    share, tile = budget.object_share, suggested_tile(images)
    if share is None or tile is None or share * side >= SMALL:
        return {}
    settings, pixels = {"tile_size": tile}, share * choices.typical_side(images.sizes)
    tiles = typical_tile_count(images, settings)
    print(
        f"tiles of {tile}x{tile} pixels of the images: the median object of the smallest class has {pixels:.0f}, "
        f"in an input of {side} that shows a complete image {share * side:.0f}; an image has {tiles} tiles, detection "
        f"takes about {tiles * image_ms:.0f} ms with an input of 256; --hparams=tile_size=0 trains without tiles"
    )
    return settings


def usable_side(
    config: QuickstartConfig,
    images: LabeledImages,
    sizes: dict[int | str, int],
    settings: dict[str, Any],
    *,
    weights: dict[str, str],
    check: Callable[[dict[str, Any]], Any],
) -> int:
    """Return the smallest side at which most objects match anchors, or contain the center of one.

    sizes: values of `image_size` and their sides, ascending. check: prints what the data check advises.

    Raises:
        InputError: there is none.
    """
    hparams, fixed = _with_weights_settings(hyperparameters_of(config.model_name, settings), weights)
    fixed |= settings.keys() & parse_overrides(config.hparams).keys()
    search = functools.partial(smallest_usable_size, fixed=fixed)
    boxes = replace(images, encoded=bytes)  # the search reads no image, and open records cannot be sent
    if (size := result_of(search, boxes, hparams, cast(list[str], list(sizes)))) is not None:
        return sizes[size]
    largest = list(sizes)[-1]
    check({"image_size": largest, **settings})
    raise InputError(
        f"most objects match no anchor at any input up to {largest} pixels, so that {config.model_name} would not "
        "learn them; see the advice above: set the size by --hparams=image_size=, or train on tiles of the images"
    )


def _with_weights_settings(hparams: Hyperparameters, weights: dict[str, str]) -> tuple[Hyperparameters, frozenset[str]]:
    """Return hyperparameters with those of the pretrained detector, and the keys that it determines."""
    if "pretrained_ckpt" not in weights:
        return hparams, frozenset()
    family, stated = hparams.family, {}
    if description := read_description(checkpoint_prefix(local_path(weights["pretrained_ckpt"]))):
        stated = description.hparams
    known = {
        key: stated[key] for key in family.conventions if key in stated and key not in family.adaptable_conventions
    }
    return with_overrides(hparams, known), frozenset(family.conventions)


class Plan(NamedTuple):
    """Images or tiles for the network, and the budget of the training.

    after: seconds of the steps after the choice; others: of all steps but training.
    """

    shown: ShownImages
    budget: choices.Budget
    after: float
    others: float


def make_plan(
    config: QuickstartConfig,
    images: LabeledImages,
    settings: dict[str, Any],
    *,
    recipe: QuickstartRecipe,
    weights: InitialWeights,
    step_time: choices.StepTime,
    start_seconds: float,
    measured: str,
    spent: float,
) -> Plan:
    """Return the plan for complete images, or for tiles of a `tile_size` in the settings.

    measured: pattern of the records that the AP is measured on. spent: seconds so far.
    """
    shown = shown_images(images, settings)
    # export.py evaluates checkpoint and files, or only eval.py
    passes = 2 + len(config.formats) if need_calibration(config.formats) else 1
    after = choices.seconds_after_choice(
        start_seconds,
        formats=len(config.formats),
        evaluated_images=passes * evaluated_count(measured, settings),
        step_time=step_time,
        evaluation_cost=recipe.evaluation_cost,
    )
    others = spent + after
    budget = choices.Budget(
        step_time=step_time,
        seconds=choices.training_seconds(config.minutes, others=others),
        start_seconds=start_seconds,
        target_steps=recipe.start(weights.kind).steps,
        object_share=choices.object_share(shown.images),
        min_side=recipe.min_side,
        smaller_input_first=weights.kind != "detector",  # more pixels gain more then (docs/measurements/accuracy.md)
    )
    return Plan(shown, budget, after, others)
