"""Rounds of a quick start: a training on changed images and labels continues from the model before and is compared."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dataset.files.untrusted_values import listed
from efficientdet.quickstart.output_folder import (
    HISTORY,
    instances,
    is_finished,
    latest_round,
    present_round,
    records_of,
    round_folder,
    stored_state,
)
from efficientdet.quickstart.programs import run_program
from program_support.claimed_outputs import claim_folder
from program_support.errors import InputError

_TOLERATED = 0.02  # AP: a fall that the images cannot show to be real
_FEWEST = 2  # images that a comparison needs


def round_to_run(folder: Path, *, fingerprint: str) -> int:
    """Return the number of the round that a call runs or resumes: a new one where images or labels have changed.

    Raises:
        InputError: rounds of an earlier version, which had other folders.
    """
    if (folder / HISTORY).exists():
        raise InputError(
            f"{folder}: has rounds of an earlier version; expected another --output_dir, and --weights={folder}/model "
            "to start from its model"
        )
    latest = latest_round(folder)
    for number in {latest: None, present_round(folder): None}:  # the present one: a later one was not better
        path = round_folder(folder, number)
        if not is_finished(path) or stored_state(path).get("source") == fingerprint:
            return number
    return latest + 1


class _Image(NamedTuple):
    split: str
    content: str  # hash of its file; its name in records of earlier versions
    objects: set[tuple[Any, ...]]  # class and box of each


def check_round(output: Path, earlier: Sequence[Path], *, start: Path) -> bool:
    """Print what changed from the records below `start`, the present model's, to those below `output`.

    Returns whether anything changed.

    Args:
        output: folder of the round.
        earlier: folders of all rounds before.
        start: that of the present model.

    Raises:
        InputError: the present model and one trained on the records of `output` could not be compared.
    """
    before, after = _images(start), _images(output)
    both = after.keys() & before.keys()
    changed = [name for name in both if after[name] != before[name]]
    print(
        f"changes: {len(after) - len(both)} images added, {len(before) - len(both)} removed, {len(changed)} with other "
        f"content, labels or split; {_box_count(before.values())} boxes before, {_box_count(after.values())} now"
    )
    if before == after:
        return False
    present, classes = _classes(before.values()), _classes(after.values())
    if new := sorted(classes - present):
        print(f"new classes, which begin with random rows of the class predictor: {listed(new)}")
    if gone := sorted(present - classes):
        print(
            f"warning: no object of {listed(gone)} is left, which the model will not detect; a renamed class loses "
            "what was learned (train.py --class_aliases keeps it)"
        )
    split = "test" if records_of(output, "test") else "val"
    held_out = {name: image for name, image in after.items() if image.split == split}
    if not present & _classes(held_out.values()) or len(held_out) < _FEWEST:
        raise InputError(
            f"{output / 'records'}: the {len(held_out)} images of {split} have no object of a class that the model has "
            f"({listed(sorted(present))}), so that the models cannot be compared; expected such images in val/ or "
            "test/, the former names of classes, or another --output_dir"
        )
    trained = {image.content for path in earlier for image in _images(path).values() if image.split == "train"}
    if moved := sorted(name for name, image in held_out.items() if trained & {name, image.content}):
        raise InputError(
            f"{len(moved)} images of {split} were in train, such as {moved[0]}: the model has seen them, which a "
            "comparison would reward; move them back, or use another --output_dir"
        )
    return True


def compare_with_start(output: Path, start: Path, *, measured: str) -> dict[str, Any]:
    """Compare the model of a round with the one that it started from, and return the verdict.

    Args:
        output: folder of the round.
        start: folder of the model that it started from.
        measured: pattern of the held-out records.
    """
    folder = claim_folder(output / "comparison")
    run_program(
        "compare",
        {
            "models": [start, output / "model"],
            "val_file_pattern": measured,
            "output_dir": folder,
            "common_classes": True,
        },
    )
    [pair] = json.loads((folder / "compare.json").read_text(encoding="utf-8"))["differences"]
    difference = pair["numbers"].get("AP")
    if difference is None:
        return {"replaced": False, "reason": "AP cannot be measured"}
    is_worse = difference["high"] < 0 or difference["value"] < -_TOLERATED
    return {
        "replaced": not is_worse,
        "reason": f"AP changed by {difference['value']:+.3f} (95 % interval {difference['low']:+.3f} to "
        f"{difference['high']:+.3f}): {'worse' if is_worse else 'better' if difference['low'] > 0 else 'not worse'}",
    }


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


def _box_count(images: Iterable[_Image]) -> int:
    return sum(len(image.objects) for image in images)


def _classes(images: Iterable[_Image]) -> set[str]:
    return {name for image in images for name, *_ in image.objects}
