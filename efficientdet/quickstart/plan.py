"""The plan of a quick start: images or tiles for the network, and the time of everything on this machine."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from dataset.input.tiling import Tiling, seen_in_tiles, tile_counts, tiles_per_epoch
from dataset.records.labeled_images import LabeledImages
from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.data_checks.anchor_search import smallest_usable_size
from efficientdet.data_checks.findings import as_hparams
from efficientdet.data_checks.tile_checks import SMALL, suggested_tile, typical_tile_count
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.quickstart_recipe import QuickstartRecipe, StartRecipe
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices
from efficientdet.quickstart.initial_weights import use_no_accelerator
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.split_records import image_count, labeled_images, records_pattern
from efficientdet.run_log.journal import DEFAULT_FILE_NAME, INTERVAL_STEP, read_log
from efficientdet.weights.downloads import local_path
from program_support.atomic_files import unfinished_folder
from program_support.errors import InputError

_TIMED_STEPS = 12


def measure_step_time(
    config: QuickstartConfig, folder: Path, settings: dict[str, Any], *, weights: dict[str, str], side: int, images: int
) -> tuple[choices.StepTime, float]:
    """Time a training step with an input of this longer side; also return the seconds until the first step ended.

    The weights are loaded as in the training, which refuses settings that change what they mean. The batch size is that
    of a training on `images` images with the machine's devices, the measured one that of a CPU.
    """
    start_time = time.time()
    with unfinished_folder(folder / "timing") as timing:
        run_program(
            "train",
            {
                "training_file_pattern": records_pattern(folder, "train"),
                "model_dir": timing,
                "model_name": config.model_name,
                **weights,
                "warn_of_lr": False,
                "benchmark": True,
                "benchmark_steps": _TIMED_STEPS,
                "batch_size": choices.batch_size(images, accelerated=False),
                "log_steps": 1,  # time every step, so that the median excludes the compilation
                "hparams": as_hparams(settings),
            },
        )
        log = list(read_log(timing / DEFAULT_FILE_NAME))
    logged = {key: value for entry in log for key, value in (entry.get("data") or {}).items()}
    first_step = next(float(entry["timestamp"]) for entry in log if entry.get("step") == INTERVAL_STEP)
    if logged["load_average"] > 2 * (os.cpu_count() or 1):
        print(
            f"warning: other processes use this machine (load average {logged['load_average']:.1f} on {os.cpu_count()} "
            "cores); the input size, chosen from the measured step time, may be smaller than necessary"
        )
    accelerated = logged["peak_device_memory_bytes"] is not None
    step_time = choices.StepTime(
        seconds=logged["latency_training_p50"],
        side=side,
        batch_size=choices.batch_size(images, accelerated=accelerated),
        accelerated=accelerated,
        fixed_share=hyperparameters_of(config.model_name, {}).family.quickstart.fixed_share,
    )
    return step_time, first_step - start_time


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
    use_no_accelerator()
    if (size := smallest_usable_size(images, hparams, cast(list[str], list(sizes)), fixed=fixed)) is not None:
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
    start_recipe: StartRecipe,
    step_time: choices.StepTime,
    start_seconds: float,
    measured: str,
    spent: float,
) -> Plan:
    """Return the plan for complete images, or for tiles of a `tile_size` in the settings.

    measured: pattern of the records that the AP is measured on. spent: seconds so far.
    """
    shown = shown_images(images, settings)
    after = choices.seconds_after_choice(
        start_seconds,
        formats=len(config.formats),
        measured_images=evaluated_count(measured, settings),
        step_time=step_time,
        evaluation_cost=recipe.evaluation_cost,
    )
    others = spent + after
    budget = choices.Budget(
        step_time=step_time,
        seconds=choices.training_seconds(config.minutes, others=others),
        start_seconds=start_seconds,
        target_steps=start_recipe.steps,
        object_share=choices.object_share(shown.images),
        min_side=recipe.min_side,
        smaller_input_first=start_recipe.smaller_input_first,
    )
    return Plan(shown, budget, after, others)
