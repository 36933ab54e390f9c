"""Steps from a folder of labeled images to an exported detector; finished steps of earlier calls are skipped."""

import json
import math
import shlex
import sys
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
from efficientdet.quickstart.initial_weights import InitialWeights, weights_of_run
from efficientdet.quickstart.output_folder import (
    METRICS,
    STATE,
    State,
    labeled_images,
    present_round,
    records_of,
    records_pattern,
    refuse_foreign_output,
    round_folder,
    sole_quickstart,
    source_fingerprint,
    source_folder,
    steps_done,
)
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.rounds import check_round, compare_with_start, round_to_run
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
        fingerprint = source_fingerprint(config)
        number = round_to_run(folder, fingerprint=fingerprint)
        if number == 1:
            _run_first(config, folder, fingerprint=fingerprint)
        else:
            _run_round(config, folder, number, fingerprint=fingerprint)


def _run_first(config: QuickstartConfig, folder: Path, *, fingerprint: str) -> None:
    start_time, state = time.monotonic(), State(folder / STATE, asdict(config))
    refuse_foreign_output(folder)
    weights = weights_of_run(config, folder, state=state)
    images = source_folder(config, folder, fingerprint=fingerprint, state=state)
    state.once("convert", lambda: _convert(config, folder, images=images))
    val, test = records_of(folder, "val"), records_of(folder, "test")
    measured = test or val or records_pattern(folder, "train")
    chosen = state.once(
        "choose",
        lambda: choose_settings(config, folder, weights=weights, measured=measured, spent=state.seconds("choose")),
    )
    _train_and_evaluate(config, folder, chosen, state=state, measured=measured)
    compared = _export(config, folder, images, state=state, measured=measured)
    print_summary(
        folder,
        weights=weights,
        measured_on="test" if test else "validation" if val else "training",
        image_folder=compared[0].parent,
    )
    needed, more = chosen.get("needed_minutes", 0), f"--minutes above {config.minutes:g}"
    if needed > config.minutes:
        more = f"about --minutes={needed}, which a good AP needs"
    print(
        f"finished in {(time.monotonic() - start_time) / 60:.1f} minutes; to train longer, run the same command with "
        f"{more}"
    )


def _run_round(config: QuickstartConfig, top: Path, number: int, *, fingerprint: str) -> None:
    """Continue from the present model on changed images or labels; export the new model unless it is worse."""
    present, output = present_round(top, before=number), round_folder(top, number)
    start = round_folder(top, present)
    State(start / STATE, {**asdict(config), "minutes": 0.0})  # refuses other settings
    claim_folder(top / "rounds")
    state = State(claim_folder(output) / STATE, asdict(config))
    print(f"round {number}: continues from the model of round {present} with the changed images and labels")
    images = source_folder(config, top, fingerprint=fingerprint, state=state)
    earlier = [round_folder(top, each) for each in range(1, number)]

    def convert() -> None:
        _convert(config, output, images=images, splits_of=[path / "records" for path in earlier])
        if not check_round(output, earlier, start=start):
            print("no image and no label of the records changed: the model stays as it is; run the command again")
            state.pass_sources_to(start / STATE)
            sys.exit()

    state.once("convert", convert)
    measured = records_of(output, "test") or records_pattern(output, "val")
    chosen = state.once(
        "choose",
        lambda: continue_settings(
            config,
            output,
            steps_done(start)["choose"],
            start=start / "model",
            number=present,
            spent=state.seconds("choose"),
        ),
    )
    _train_and_evaluate(config, output, chosen, state=state, measured=measured, start=start / "model")
    verdict = state.once("compare", lambda: compare_with_start(output, start / "model", measured=measured))
    is_taken = verdict["replaced"]
    if is_taken:
        compared = _export(config, output, images, state=state, measured=measured)
        weights = InitialWeights(**chosen["weights"])
        print_summary(output, weights=weights, measured_on="held-out", image_folder=compared[0].parent)
    print(f"\nround {number}: {verdict['reason']}\n  {output}/comparison/compare.html: comparison")
    print(
        f"the present model is that of round {number if is_taken else present}, in {output if is_taken else start}; to "
        "train again, add images or run the same command with more --minutes"
    )


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


def _train_and_evaluate(
    config: QuickstartConfig,
    folder: Path,
    chosen: dict[str, Any],
    *,
    state: State,
    measured: str,
    start: Path | None = None,
) -> None:
    """Train on the records in the folder, with a smaller input first if chosen, and evaluate.

    start: checkpoint of the round before.
    """
    for line in chosen["why"]:
        print(f"chose {line}")
    *smaller, flags = chosen["trainings"]
    if start:
        flags = {**flags, "pretrained_ckpt": start}
    if smaller:
        _train(config, chosen, smaller[0], folder, "train_smaller_input", state=state)
        flags = {**flags, "pretrained_ckpt": folder / "model_smaller_input", "backbone_init": None}
    _train(config, chosen, {"val_file_pattern": records_of(folder, "val"), **flags}, folder, "train", state=state)
    state.once(
        "evaluate",
        lambda: run_program(
            "eval",
            {
                "ckpt": folder / "model",
                "val_file_pattern": measured,
                "report": claim_folder(folder / "evaluation"),
                "output_json": folder / METRICS,
            },
        ),
    )


def _train(
    config: QuickstartConfig, chosen: dict[str, Any], flags: dict[str, Any], folder: Path, step: str, *, state: State
) -> None:
    """Train, for the time that the other steps leave, or for half of it before a second training."""
    more = max(1.0, config.minutes / chosen["minutes"])  # --minutes relative to the call that chose the epochs
    share = 1.0 if step == "train" else 1 / len(chosen["trainings"])

    def run() -> None:
        others = state.seconds(step) + chosen["seconds_after_choice"]
        run_program(
            "train",
            {
                "training_file_pattern": records_pattern(folder, "train"),
                "training_mode": None if records_of(folder, "val") and step == "train" else "train300",
                "model_dir": claim_folder(folder / step.replace("train", "model")),
                "model_name": config.model_name,
                "warn_of_lr": False,
                **flags,
                "num_epochs": math.ceil(more * flags["num_epochs"]),
                "max_minutes": round(share * choices.training_minutes(config.minutes, others=others), 3),
            },
        )

    state.once(step, run)


def _export(config: QuickstartConfig, folder: Path, images: str, *, state: State, measured: str) -> Sequence[Path]:
    """Export the model; return the images on which its files are compared with the checkpoint."""
    in_8_bits = [name for name in config.formats if export_formats()[name].calibrates]
    compared = [Path(images, name) for name in labeled_images(measured, most=_COMPARED).names]
    state.once(
        "export",
        lambda: run_program(
            "export",
            {
                "ckpt": folder / "model",
                "output_dir": claim_folder(folder / "exported"),
                "formats": ",".join(config.formats),
                "images": compared,
                "val_file_pattern": measured,
                "int8_images": f"{records_pattern(folder, 'train')}.tfrecord" if in_8_bits else None,
            },
        ),
    )
    return compared


def print_summary(folder: Path, *, weights: InitialWeights, measured_on: str, image_folder: Path) -> None:
    """Print the AP, the initial weights, the files for the user and the next commands.

    Args:
        folder: output folder.
        weights: initial weights.
        measured_on: split that metrics.json is of.
        image_folder: a folder of images to annotate.
    """
    numbers = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    print(f"\nAP {numbers['AP']:.3f}, AP50 {numbers['AP50']:.3f} on the {measured_on} images\n{weights.line}")
    if masks := numbers.get("mask_numbers"):
        print(f"mask AP {masks['AP']:.3f}, AP50 {masks['AP50']:.3f}")
    for path, what in (
        ("doctor/doctor.html", "data check"),
        ("model/report.html", "training report"),
        ("evaluation/report.html", "evaluation report"),
        ("exported/README.md", "exported files"),
    ):
        print(f"  {folder / path}: {what}")
    artifact = folder / "exported" / "detector.onnx"
    if artifact.exists():
        model, images, annotated = (shlex.quote(str(path)) for path in (artifact, image_folder, folder / "annotated"))
        print(
            f"annotate images:  python infer.py --model={model} --image_path={images} --output_dir={annotated}\n"
            f"in the browser:   python serve.py --model={model}"
        )
