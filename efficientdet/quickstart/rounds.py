"""Rounds of a quick start: a training on changed images and labels, which replaces the model if it is not worse.

The folder `rounds/N` has what round N writes until it ends. If its model is taken, its folders exchange places with
those of the model before, which go to the folder of their round: the output folder has a complete model at any moment.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dataset.files.untrusted_values import listed
from efficientdet.checkpoints.checkpoint import checkpoint_prefix, prefixes
from efficientdet.quickstart.output_folder import FOLDERS, METRICS, START, STATE, stored_state
from efficientdet.quickstart.round_history import read_history
from efficientdet.quickstart.split_records import instances, records_of
from program_support.atomic_files import exchange, link_or_copy, unfinished_folder
from program_support.claimed_outputs import claim_folder, is_marked, list_outputs, mark_folder, mark_of
from program_support.errors import InputError
from program_support.file_patterns import paths_beginning_with

_ROUNDS = "rounds"


def round_folder(folder: Path, number: int) -> Path:
    """Return the folder of a round."""
    return folder / _ROUNDS / str(number)


def claim_round_folder(folder: Path, number: int) -> Path:
    """Return the folder of a round, which is created if it is missing."""
    claim_folder(folder / _ROUNDS)
    return claim_folder(round_folder(folder, number))


def discard_round(folder: Path) -> None:
    """Remove the folder of a round; a kill leaves all of it or nothing in its place."""
    with unfinished_folder(folder) as unfinished:
        os.rename(folder, unfinished / "round")


def model_folders(folder: Path) -> list[Path]:
    """Return the folders of the models that the present one continues from, and its own, the oldest first."""
    taken = [round_folder(folder, entry["round"]) for entry in read_history(folder) if entry["replaced"]]
    return [*(place for place in taken if (place / "records").is_dir()), folder]


def round_to_run(folder: Path, *, fingerprint: str, minutes: float) -> int | None:
    """Return the number of the round that a call runs; None if the model is of these images and labels.

    An unfinished round is resumed; before its training has saved a checkpoint it begins again if images or labels
    changed. A round whose model was not taken is shown again, or repeated with more minutes as the next one.
    """
    present = stored_state(folder)
    if "export" not in present.get("done", {}):
        return None
    history = read_history(folder)
    number = present.get("round", 1)  # also if the user removed the history
    last = max([number, *(entry["round"] for entry in history)])
    if history and history[-1]["replaced"] and number != last:
        return last  # killed while it replaced the model
    unfinished = round_folder(folder, last + 1)
    state = stored_state(unfinished)
    if state.get("source") != fingerprint and not prefixes(unfinished / "model", "ckpt-*"):
        if is_marked(unfinished):
            discard_round(unfinished)
        state = {}
    if state:
        return last + 1
    if present.get("source") == fingerprint:
        return None
    latest = stored_state(round_folder(folder, last))
    is_shown = latest.get("source") == fingerprint and latest["asked"]["minutes"] >= minutes
    return last if is_shown else last + 1


def keep_start(folder: Path, output: Path) -> None:
    """Link the model's checkpoint into the folder of the round that continues from it."""
    if is_marked(output / START):
        return
    prefix = checkpoint_prefix(folder / "model")
    with unfinished_folder(output / START) as unfinished:
        target = unfinished / "new"
        target.mkdir()
        for file in paths_beginning_with(prefix, ".*"):
            link_or_copy(file, target / Path(file).name)
        mark_folder(target)
        os.rename(target, output / START)


def replace_model(folder: Path, *, number: int, former: int) -> None:
    """Move what round `number` wrote into the output folder, and what was there to the folder of round `former`.

    After a kill at any moment a second call completes it; the state file, by which it is found, comes last.

    Raises:
        InputError: a folder cannot be moved.
    """
    source, target = round_folder(folder, number), claim_round_folder(folder, former)
    names = [name for name in (*FOLDERS, START) if name != "cross_validation"]
    try:
        for name in names:
            if is_marked(source / name) and mark_of(folder / name).get("round") != number:
                mark_folder(source / name, round=number)
        for name in names:
            _replace_folder(source / name, folder / name, target / name, number=number)
        for name in (METRICS, STATE):
            if (source / name).exists():
                if not (target / name).exists():
                    link_or_copy(folder / name, target / name)
                os.replace(source / name, folder / name)
        list_outputs(folder, [METRICS])
    except OSError as error:
        raise InputError(f"{folder}: the model cannot be replaced ({error}); run the same command again") from error


def _replace_folder(new: Path, present: Path, former: Path, *, number: int) -> None:
    """Move `new` to `present`, and the folder there to `former`; a call that was killed is completed."""
    is_placed = mark_of(present).get("round") == number
    if not is_placed and is_marked(present):
        if is_marked(new) and exchange(new, present):
            is_placed = True
        else:
            os.rename(present, former)
    if is_placed:
        if new.exists():  # the exchanged folder
            os.rename(new, former)
    elif new.exists():
        os.rename(new, present)


_FEWEST = 2  # images that a comparison needs


class _Image(NamedTuple):
    split: str
    content: str  # hash of its file; its name in records of earlier versions
    objects: set[tuple[Any, ...]]  # class and box of each


def check_round(folder: Path, output: Path) -> str | None:
    """Print what changed from the records of the present model, below `folder`, to those below `output`.

    Returns the split on which the models are compared; None if nothing changed.

    Raises:
        InputError: the present model and one trained on the records of `output` could not be compared.
    """
    before, after = _images(folder), _images(output)
    added, removed, both = after.keys() - before.keys(), before.keys() - after.keys(), after.keys() & before.keys()
    replaced = [name for name in both if name != before[name].content != after[name].content]
    corrected = [name for name in both if after[name].objects != before[name].objects]
    boxes = [sum(len(image.objects) for image in images.values()) for images in (before, after)]
    print(
        f"changes: {len(added)} images added, {len(removed)} removed, {len(replaced)} replaced, labels of "
        f"{len(corrected)} changed; {boxes[0]} boxes before, {boxes[1]} now"
    )
    if before == after:
        return None
    present = _classes(before.values())
    _report_classes(present, _classes(after.values()))
    measured_on = "test" if records_of(output, "test") else "val"
    held_out = {name: image for name, image in after.items() if image.split == measured_on}
    if not held_out:
        raise InputError(
            f"{folder}: no image was kept for validation, so that the model and one of the changed images cannot be "
            "compared; use another --output_dir without --val_fraction=0, or put images into test/"
        )
    if not present & _classes(held_out.values()) or len(held_out) < _FEWEST:
        raise InputError(
            f"{output / 'records'}: the {len(held_out)} images of {measured_on} have no object of a class that the "
            f"model has ({listed(sorted(present))}), so that the models cannot be compared; expected such images, the "
            "former names of classes, or another --output_dir"
        )
    trained = {
        image.content for place in model_folders(folder) for image in _images(place).values() if image.split == "train"
    }
    if moved := sorted(name for name, image in held_out.items() if trained & {name, image.content}):
        raise InputError(
            f"{len(moved)} images of {measured_on} were in train, such as {moved[0]}: the model has seen them, which a "
            "comparison would reward; move them back, or use another --output_dir"
        )
    return measured_on


def _report_classes(before: set[str], after: set[str]) -> None:
    gone, new = sorted(before - after), sorted(after - before)
    if new:
        print(f"new classes, which begin with random rows of the class predictor: {listed(new)}")
    if gone:
        renamed = (
            "; a renamed class loses what was learned, unless it gets its former name again, or train.py continues "
            f"with --class_aliases={gone[0]}:{new[0]}"
            if new
            else ""
        )
        print(f"warning: no object of {listed(gone)} is left, which the model will not detect{renamed}")


def _images(folder: Path) -> dict[str, _Image]:
    """Return the images of all splits by name."""
    images: dict[str, _Image] = {}
    for split in ("train", "val", "test"):
        if records_of(folder, split) is None:
            continue
        content = instances(folder, split)
        names = {category["id"]: category["name"] for category in content["categories"]}
        of_id = {
            image["id"]: _Image(split, image.get("sha256", image["file_name"]), set()) for image in content["images"]
        }
        for one in content["annotations"]:
            of_id[one["image_id"]].objects.add((names[one["category_id"]], *(round(side, 1) for side in one["bbox"])))
        images |= {image["file_name"]: of_id[image["id"]] for image in content["images"]}
    return images


def _classes(images: Iterable[_Image]) -> set[str]:
    return {name for image in images for name, *_ in image.objects}
