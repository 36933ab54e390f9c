"""Rounds of a quick start: a training on changed images and labels, which replaces the model if it is not worse.

The folder `rounds/N` has what round N writes until it ends. If its model is taken, its folders exchange places with
those of the model before, which go to the folder of their round: the output folder has a complete model at any moment.
"""

import os
from pathlib import Path

from efficientdet.checkpoints.checkpoint import checkpoint_prefix, prefixes
from efficientdet.quickstart.output_folder import FOLDERS, METRICS, START, STATE, stored_state
from efficientdet.quickstart.round_history import read_history
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
    sizes = [path.name for place in (folder, source) for path in place.glob("model_*_pixels")]
    names = [name for name in dict.fromkeys([*FOLDERS, START, *sizes]) if name != "cross_validation"]
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
