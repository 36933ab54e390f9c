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

from dataset.class_names import class_names_of_records
from dataset.files.untrusted_values import listed
from dataset.records.record_files import expand_glob
from efficientdet.checkpoints.checkpoint import prefixes, writing_order
from efficientdet.checkpoints.description import read_description
from efficientdet.exports.formats import need_calibration
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices
from efficientdet.quickstart.choices import InitialWeights, weights_of_run
from efficientdet.quickstart.chosen_settings import choose_settings, continue_settings
from efficientdet.quickstart.output_folder import (
    ARTIFACT,
    LOG,
    METRICS,
    RESULT,
    STATE,
    State,
    image_count,
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
from efficientdet.quickstart.programs import import_packages, output_to, run_program, shortened
from efficientdet.quickstart.rounds import check_round, compare_with_start, round_to_run
from efficientdet.run_log.journal import DEFAULT_FILE_NAME
from object_detection.coco.measures import interval_note
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import claim_folder, claimed_outputs
from program_support.errors import InputError

_ENOUGH = 0.5  # share of the required steps from which a detector is usable (docs/measurements/accuracy.md)
_SPLITS = {"test": "test", "val": "validation", "train": "training"}  # names by prefix, the first is measured
_COMPARED, _TIMED_RUNS = 8, 10  # images on which exported files are compared with the checkpoint, and runs on one


def quickstart(config: QuickstartConfig) -> None:
    """Convert, choose settings, check the data, train, evaluate and export.

    Raises:
        InputError: the data or a setting cannot be used.
    """
    begin, folder = time.monotonic(), Path(config.output_dir)
    with sole_quickstart(folder), output_to(folder / LOG):
        print(f"what the programs print is in {folder / LOG}")
        import_packages()
        fingerprint = source_fingerprint(config)
        number = round_to_run(folder, fingerprint=fingerprint)
        if number == 1:
            _run_first(config, folder, fingerprint=fingerprint, begin=begin)
        else:
            _run_round(config, folder, number, fingerprint=fingerprint, begin=begin)


def _run_first(config: QuickstartConfig, folder: Path, *, fingerprint: str, begin: float) -> None:
    state = State(folder / STATE, asdict(config))
    refuse_foreign_output(folder)
    state.spend("start", time.monotonic() - begin)
    weights = weights_of_run(config, folder, state=state)
    images = source_folder(config, folder, fingerprint=fingerprint, state=state)
    state.once("convert", lambda: _convert(config, folder, images=images))
    _print_found(folder)
    measured = records_pattern(folder, _measured_split(folder))
    chosen = state.once(
        "choose",
        lambda: choose_settings(config, folder, weights=weights, measured=measured, spent=state.seconds("choose")),
    )
    _train_all(config, folder, chosen, state=state)
    compared = _export_and_evaluate(config, folder, images, state=state)
    print_summary(
        folder,
        weights=weights,
        image_folder=compared[0].parent,
        shortfall=_shortfall(config, folder, chosen, state),
    )
    print(
        f"finished in {(time.monotonic() - begin) / 60:.1f} minutes; to train longer, run the same command with "
        f"--minutes above {max(config.minutes, math.ceil(state.seconds('') / 60)):g}"
    )


def _shortfall(config: QuickstartConfig, folder: Path, chosen: dict[str, Any], state: State) -> str:
    """Return a line for the user if the training had fewer steps than it needs; empty if it had enough."""
    required, names = chosen.get("required_steps", 0), ("model_smaller_input", "model")
    newest = [max(bundles, key=writing_order) for name in names if (bundles := prefixes(folder / name, "ckpt-*"))]
    try:
        steps = sum(description.global_step for prefix in newest if (description := read_description(prefix)))
    except InputError:  # damaged: the programs have reported it
        return ""
    if steps >= _ENOUGH * required:
        return ""
    missing = chosen["budget"]["start_seconds"] + (required - steps) * chosen["seconds_per_step"]
    minutes = max(math.ceil((state.seconds("") + missing) / 60), math.floor(config.minutes) + 1)
    return (
        f"not usable yet: the detector was trained for {steps} of the {required} steps that a good AP needs; the same "
        f"command with --minutes={minutes} resumes the training\n"
    )


def _run_round(config: QuickstartConfig, top: Path, number: int, *, fingerprint: str, begin: float) -> None:
    """Continue from the present model on changed images or labels; export the new model unless it is worse."""
    present, output = present_round(top, before=number), round_folder(top, number)
    start = round_folder(top, present)
    State(start / STATE, {**asdict(config), "minutes": 0.0})  # refuses other settings
    claim_folder(top / "rounds")
    state = State(claim_folder(output) / STATE, asdict(config))
    state.spend("start", time.monotonic() - begin)
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
    measured = records_pattern(output, _measured_split(output))
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
    _train_all(config, output, chosen, state=state, start=start / "model")
    verdict = state.once("compare", lambda: compare_with_start(output, start / "model", measured=measured))
    is_taken = verdict["replaced"]
    if is_taken:
        compared = _export_and_evaluate(config, output, images, state=state)
        weights = InitialWeights(**chosen["weights"])
        print_summary(output, weights=weights, image_folder=compared[0].parent)
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


def _measured_split(folder: Path) -> str:
    return next(split for split in _SPLITS if records_of(folder, split))


def _print_found(folder: Path) -> None:
    counts = [
        f"{image_count(pattern)} {split}" for split in reversed(_SPLITS) if (pattern := records_of(folder, split))
    ]
    names = class_names_of_records(expand_glob(records_pattern(folder, "train")))
    print(shortened(f"found images: {', '.join(counts)}; classes: {listed(names.names if names else ())}"))


def _train_all(
    config: QuickstartConfig, folder: Path, chosen: dict[str, Any], *, state: State, start: Path | None = None
) -> None:
    """Train on the records in the folder, with a smaller input first if chosen.

    start: checkpoint of the round before.
    """
    for line in chosen["why"]:
        print(shortened(f"chose {line}"))
    *smaller, flags = chosen["trainings"]
    # The last evaluation determines the score thresholds, and is the only one where there is no test split
    val = records_of(folder, "val")
    mode = None if val else "train300"
    flags = {**flags, "val_file_pattern": val, "testdev_dir": folder / "model", "training_mode": mode}
    if start:
        flags["pretrained_ckpt"] = start
    if smaller:
        first = {**smaller[0], "training_mode": "train300"}
        _train(config, chosen, first, folder, "train_smaller_input", state=state)
        flags = {**flags, "pretrained_ckpt": folder / "model_smaller_input", "backbone_init": None}
    _train(config, chosen, flags, folder, "train", state=state)


def _train(
    config: QuickstartConfig, chosen: dict[str, Any], flags: dict[str, Any], folder: Path, step: str, *, state: State
) -> None:
    """Train, for the time that the other steps leave, or for half of it before a second training."""
    more = max(1.0, config.minutes / chosen["minutes"])  # --minutes relative to the call that chose the epochs
    share = 1.0 if step == "train" else 1 / len(chosen["trainings"])

    def run() -> None:
        others = state.seconds(step) + chosen["seconds_after_choice"]
        minutes = choices.training_seconds(config.minutes, others=others) / 60
        print(f"time: {minutes:.1f} of {config.minutes:g} minutes for training, about {others / 60:.1f} for the others")
        run_program(
            "train",
            {
                "training_file_pattern": records_pattern(folder, "train"),
                "model_dir": claim_folder(folder / step.replace("train", "model")),
                "model_name": config.model_name,
                "warn_of_lr": False,
                "write_saved_model": False,
                **flags,
                "num_epochs": math.ceil(more * flags["num_epochs"]),
                "max_minutes": round(share * minutes, 3),
            },
        )

    state.once(step, run)


def _export_and_evaluate(config: QuickstartConfig, folder: Path, images: str, *, state: State) -> Sequence[Path]:
    """Export the model and evaluate the file, or read the detections of the training's last evaluation.

    Returns the images on which the exported files are compared with the checkpoint. Files in 8 bits are also evaluated
    by export.py.
    """
    split = _measured_split(folder)
    measured = records_pattern(folder, split)
    in_8_bits = need_calibration(config.formats)
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
                "runs": _TIMED_RUNS,
                "val_file_pattern": measured if in_8_bits else None,
                "int8_images": f"{records_pattern(folder, 'train')}.tfrecord" if in_8_bits else None,
            },
        ),
    )
    detections, artifact = folder / "model" / TESTDEV_FILE_NAME, folder / ARTIFACT
    source = {"ckpt": artifact if artifact.exists() else folder / "model"}
    if split == "val" and detections.exists():
        source = {"results": detections}
    state.once(
        "evaluate",
        lambda: run_program(
            "eval",
            {
                **source,
                "val_file_pattern": measured,
                "testdev_dir": folder / "evaluation",
                "report": claim_folder(folder / "evaluation"),
                "output_json": folder / METRICS,
            },
        ),
    )
    return compared


def print_summary(folder: Path, *, weights: InitialWeights, image_folder: Path, shortfall: str = "") -> None:
    """Print the AP, the initial weights, the files for the user and the next commands.

    Args:
        folder: output folder.
        weights: initial weights.
        image_folder: a folder of images to annotate.
        shortfall: see `_shortfall`.
    """
    numbers, split = json.loads((folder / METRICS).read_bytes()), _measured_split(folder)
    print(
        f"\n{shortfall}AP {numbers['AP']:.3f}{interval_note(numbers, 'AP')}, AP50 {numbers['AP50']:.3f} on the "
        f"{_SPLITS[split]} images\n"
        f"{weights.line}"
    )
    if masks := numbers.get("mask_numbers"):
        print(f"mask AP {masks['AP']:.3f}, AP50 {masks['AP50']:.3f}")
    artifact, commands = folder / ARTIFACT, ""
    if artifact.exists():
        model, images, annotated = (shlex.quote(str(path)) for path in (artifact, image_folder, folder / "annotated"))
        commands = (
            f"annotate images:  python infer.py --model={model} --image_path={images} --output_dir={annotated}\n"
            f"in the browser:   python serve.py --model={model}"
        )
    _write_page(
        folder,
        numbers,
        split=split,
        advice=[*filter(None, [shortfall.strip()]), weights.line],
        commands=commands,
    )
    print(commands)


def _write_page(folder: Path, numbers: dict[str, Any], *, split: str, advice: Sequence[str], commands: str) -> None:
    """Write the page of the result, unless the detections are missing: an earlier version did not keep them."""
    from efficientdet.evaluation.evaluation_report import write_result_page  # TensorFlow, which other steps have too

    detections, result = folder / "evaluation" / TESTDEV_FILE_NAME, folder / RESULT
    if not detections.exists():
        return
    pages = {  # by title
        "Data check": "doctor/doctor.html",
        "Training": "model/report.html",
        "Evaluation": "evaluation/report.html",
        "Exported files": "exported/README.md",
    }
    with claimed_outputs(result):
        write_result_page(
            result,
            expand_glob(records_pattern(folder, split)),
            detections,
            measures=numbers,
            measured_on=_SPLITS[split],
            log=folder / "model" / DEFAULT_FILE_NAME,
            advice=advice,
            commands=commands,
            pages={title: page for title, page in pages.items() if (folder / page).exists()},
        )
    print(f"  {result}: images with detections, AP, what to do next, and all other pages")
