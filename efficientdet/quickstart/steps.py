"""Steps from a folder of labeled images to an exported detector; finished steps of earlier calls are skipped."""

import functools
import json
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from efficientdet.exports.formats import export_formats
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices
from efficientdet.quickstart.chosen_settings import choose_settings, continue_settings
from efficientdet.quickstart.cross_validation import (
    FOLDER,
    evaluate_folds,
    fold_folder,
    shown_interval,
    store_thresholds_of_folds,
)
from efficientdet.quickstart.initial_weights import InitialWeights, weights_of_run
from efficientdet.quickstart.output_folder import (
    METRICS,
    START,
    STATE,
    exported_model,
    refuse_foreign_output,
    sole_quickstart,
)
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.round_history import (
    compare_with_start,
    history_entry,
    print_round,
    read_history,
    write_history,
)
from efficientdet.quickstart.rounds import (
    check_round,
    claim_round_folder,
    discard_round,
    keep_start,
    model_folders,
    replace_model,
    round_to_run,
)
from efficientdet.quickstart.split_records import fold_pattern, labeled_images, records_of, records_pattern
from efficientdet.quickstart.state import State, source_fingerprint, source_folder, source_of_round
from program_support.claimed_outputs import claim_folder
from program_support.errors import InputError

_COMPARED = 8  # images on which exported files are compared with the checkpoint


def quickstart(config: QuickstartConfig) -> None:
    """Convert, choose settings, check the data, train, evaluate and export.

    Raises:
        InputError: the data or a setting cannot be used.
    """
    folder = Path(config.output_dir)
    with sole_quickstart(folder):
        latest, is_shown = 0, False
        while not config.folds:  # labels may have changed since an interrupted round began
            number = round_to_run(folder, fingerprint=source_fingerprint(config), minutes=config.minutes)
            if number in (None, latest):
                break
            latest, is_shown = number, _run_round(config, folder, number=number)
        if not is_shown:
            _run_steps(config, folder)


def _run_steps(config: QuickstartConfig, folder: Path) -> None:
    start_time, state = time.monotonic(), State(folder / STATE, asdict(config))
    refuse_foreign_output(folder)
    weights = weights_of_run(config, folder, state=state)
    images = source_folder(config, folder, state=state)
    state.once("convert", lambda: _convert(config, folder, images=images))
    val, test = records_of(folder, "val"), records_of(folder, "test")
    measured = test or val or records_pattern(folder, "train")
    chosen = state.once(
        "choose",
        lambda: choose_settings(config, folder, weights=weights, measured=measured, spent=state.seconds("choose")),
    )
    for line in chosen["why"]:
        print(f"chose {line}")
    summary = None
    if folds := config.folds:
        for fold in range(folds):
            _train_in_stages(config, folder, chosen, state=state, fold=fold)
        summary = state.once("evaluate_folds", lambda: evaluate_folds(folder, folds))
    _train_in_stages(config, folder, chosen, state=state, epochs=summary and summary["epochs"])
    state.once("evaluate", lambda: _evaluate(config, folder, measured=measured, is_held_out=bool(test or val)))
    compared = [Path(images, name) for name in labeled_images(measured, most=_COMPARED).names]
    on = measured if test or not config.folds else None  # else the AP of images that the model was trained on
    state.once("export", lambda: _export(config, folder, compared=compared, measured=on))
    print_summary(
        folder,
        folds=summary,
        weights=weights,
        measured_on="test" if test else "validation" if val else None if config.folds else "training",
        image_folder=compared[0].parent,
    )
    needed, more = chosen.get("needed_minutes", 0), f"--minutes above {config.minutes:g}"
    if needed > config.minutes:
        more = f"about --minutes={needed}, which a good AP needs"
    print(
        f"finished in {(time.monotonic() - start_time) / 60:.1f} minutes; to train longer, run the same command with "
        f"{more}"
    )


def _run_round(config: QuickstartConfig, folder: Path, *, number: int) -> bool:
    """Continue from the model in the folder, and replace it unless the new is worse; return False without changes."""
    present = State(folder / STATE, {**asdict(config), "minutes": 0.0})
    is_decided = any(entry["round"] == number for entry in read_history(folder))
    if not is_decided:  # else a kill may have left the names in the folder incomplete
        refuse_foreign_output(folder)
    output = claim_round_folder(folder, number)
    state = State(output / STATE, asdict(config) | ({"minutes": 0.0} if is_decided else {}), number=number)
    if not is_decided:
        print(f"round {number}: continues from the model of round {present.number} with the changed images and labels")
    images = source_of_round(config, folder, state=state)
    measured_on = state.once("convert", lambda: _convert_round(config, folder, output, images=images))
    if measured_on is None:
        present.take_source(state)
        discard_round(output)
        return False
    measured = records_pattern(output, measured_on)
    state.once("start", lambda: keep_start(folder, output))
    chosen = state.once(
        "choose",
        lambda: continue_settings(
            config, output, present.result("choose"), number=present.number, spent=state.seconds("choose")
        ),
    )
    for line in chosen["why"]:
        print(f"chose {line}")
    _train_in_stages(config, output, chosen, state=state)
    state.once("evaluate", lambda: _evaluate(config, output, measured=measured, is_held_out=True))
    verdict = state.once("compare", lambda: compare_with_start(output, measured=measured, relative_to=folder))
    if verdict["replaced"]:
        state.once("export", lambda: _export(config, output, compared=_paths(measured, images), measured=measured))
    entries = state.once(
        "history",
        lambda: (
            ([] if read_history(folder) else [history_entry(folder, present)]) + [history_entry(output, state, verdict)]
        ),
    )
    write_history(folder, entries)
    if verdict["replaced"]:
        replace_model(folder, number=number, former=present.number)
    print_round(folder, entries[-1], former=present.number)
    return True


def _convert_round(config: QuickstartConfig, folder: Path, output: Path, *, images: str) -> str | None:
    """Convert the images, which stay in their split, and return the split for the comparison; None without changes."""
    _convert(config, output, images=images, splits_of=[place / "records" for place in model_folders(folder)])
    return check_round(folder, output)


def _paths(measured: str, images: str) -> list[Path]:
    """Return the images on which exported files are compared with the checkpoint."""
    return [path for name in labeled_images(measured, most=_COMPARED).names if (path := Path(images, name)).exists()]


def _convert(config: QuickstartConfig, folder: Path, *, images: str, splits_of: list[Path] | None = None) -> None:
    learns_masks = hyperparameters_of(config.model_name, {}).mask_size > 0
    if learns_masks:
        print(f"{config.model_name} learns masks and needs outlines in the labels; other models need only boxes")
    run_program(
        "dataset.create_tfrecord",
        {
            "images": images,
            "annotations": config.annotations,
            "format": config.format,
            "output_dir": claim_folder(folder / "records"),
            "val_fraction": config.val_fraction,
            "splits_of": splits_of,
            "folds": config.folds,
            "group_by": config.group_by,
            "max_bad_fraction": config.max_bad_fraction,
            "include_masks": learns_masks or None,
        },
    )
    if records_of(folder, "train") is None:
        raise InputError(
            f"{images}: all images are in splits named val or test, and none is left to train on; add training images, "
            "or rename those folders or files and choose another --output_dir"
        )


def _train_in_stages(
    config: QuickstartConfig,
    folder: Path,
    chosen: dict[str, Any],
    *,
    state: State,
    fold: int | None = None,
    epochs: int | None = None,
) -> None:
    """Train on all images or without a fold, with a smaller input first if chosen.

    epochs: of the last stage; None: as chosen.
    """
    *smaller, flags = chosen["trainings"]
    if flags.get("pretrained_ckpt") == START:
        flags = {**flags, "pretrained_ckpt": folder / START}
    more = max(1.0, config.minutes / chosen["minutes"])  # --minutes relative to the call that chose the epochs
    stages, ending, output = len(chosen["trainings"]), "", folder
    records: dict[str, Any] = {"training_file_pattern": records_pattern(folder, "train")}
    records["val_file_pattern"] = records_of(folder, "val")
    if fold is not None:
        claim_folder(folder / FOLDER)
        ending, output = f"_fold_{fold}", claim_folder(fold_folder(folder, fold))
        records = {
            "training_file_pattern": fold_pattern(folder, fold, others=True),
            "val_file_pattern": fold_pattern(folder, fold),
            "testdev_dir": output,
        }

    def train(flags: dict[str, Any], step: str, model_dir: str, *, share: float) -> None:
        if fold is None:
            others = state.seconds(step)
        else:  # the same time for each, whichever are done
            assert config.folds is not None
            others = state.seconds("train.*") + chosen["seconds_of_folds"]
            share /= choices.shares_of_folds(config.folds)
        flags = {**records, **flags, "num_epochs": math.ceil(more * flags["num_epochs"])}
        if epochs and step == "train":
            flags["num_epochs"] = epochs
        run = functools.partial(_train, config, chosen, flags, output / model_dir)
        state.once(step, lambda: run(others=others, share=share))

    if smaller:
        unevaluated = {**smaller[0], "val_file_pattern": None, "testdev_dir": None}
        train(unevaluated, f"train_smaller_input{ending}", "model_smaller_input", share=1 / stages)
        flags = {**flags, "pretrained_ckpt": output / "model_smaller_input", "backbone_init": None}
    train(flags, f"train{ending}", "model", share=1.0 if fold is None else 1 / stages)


def _train(
    config: QuickstartConfig,
    chosen: dict[str, Any],
    flags: dict[str, Any],
    model_dir: Path,
    *,
    others: float,
    share: float,
) -> None:
    """Train for a share of the time that the other steps leave; `others`: their seconds so far."""
    others += chosen["seconds_after_choice"]
    minutes = choices.training_minutes(config.minutes, others=others)
    run_program(
        "train",
        {
            "training_file_pattern": flags["training_file_pattern"],
            "val_file_pattern": flags["val_file_pattern"],
            "training_mode": None if flags["val_file_pattern"] else "train300",
            "model_dir": claim_folder(model_dir),
            "model_name": config.model_name,
            "warn_of_lr": False,
            **flags,
            "max_minutes": round(share * minutes, 3),
        },
    )


def _evaluate(config: QuickstartConfig, folder: Path, *, measured: str, is_held_out: bool) -> None:
    if config.folds:
        store_thresholds_of_folds(folder)
        if not is_held_out:
            return  # `evaluate_folds` has measured
    run_program(
        "eval",
        {
            "ckpt": folder / "model",
            "val_file_pattern": measured,
            "report": claim_folder(folder / "evaluation"),
            "output_json": folder / METRICS,
        },
    )


def _export(config: QuickstartConfig, folder: Path, *, compared: Sequence[Path], measured: str | None) -> None:
    in_8_bits = [name for name in config.formats if export_formats()[name].calibrates]
    run_program(
        "export",
        {
            "ckpt": folder / "model",
            "output_dir": claim_folder(folder / "exported"),
            "formats": ",".join(config.formats),
            "images": compared,
            "val_file_pattern": measured,
            "int8_images": f"{records_pattern(folder, 'train')}.tfrecord" if in_8_bits else None,
        },
    )


def print_summary(
    folder: Path, *, folds: dict[str, Any] | None, weights: InitialWeights, measured_on: str | None, image_folder: Path
) -> None:
    """Print the AP, the initial weights, the files for the user and the next commands.

    Args:
        folder: output folder.
        folds: summary of `evaluate_folds`; None without folds.
        weights: initial weights.
        measured_on: split that metrics.json is of; None without it.
        image_folder: a folder of images to annotate.
    """
    artifact, numbers = exported_model(folder), {}
    print()
    if folds:
        print(
            f"AP {folds['together']['AP']:.3f}{shown_interval(folds)}, AP50 {folds['together']['AP50']:.3f} on the "
            f"held-out images of {len(folds['folds'])} folds; mean AP of the folds {folds['mean_ap']:.3f}, standard "
            f"error {folds['standard_error']:.3f}"
        )
    if measured_on:
        numbers = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        print(f"AP {numbers['AP']:.3f}, AP50 {numbers['AP50']:.3f} on the {measured_on} images")
    print(weights.line)
    if masks := numbers.get("mask_numbers"):
        print(f"mask AP {masks['AP']:.3f}, AP50 {masks['AP50']:.3f}")
    for path, what in (
        ("doctor/doctor.html", "data check"),
        (f"{FOLDER}/report.html", "cross-validation"),
        (f"{FOLDER}/suspects/suspects.html", "labels that are probably wrong"),
        ("model/report.html", "training report"),
        ("evaluation/report.html", "evaluation report"),
        ("exported/README.md", "exported files"),
    ):
        if (folds or not path.startswith(FOLDER)) and (measured_on or not path.startswith("evaluation")):
            print(f"  {folder / path}: {what}")
    if artifact.exists():
        model, images, annotated = (shlex.quote(str(path)) for path in (artifact, image_folder, folder / "annotated"))
        print(
            f"annotate images:  python infer.py --model={model} --image_path={images} --output_dir={annotated}\n"
            f"in the browser:   python serve.py --model={model}"
        )
