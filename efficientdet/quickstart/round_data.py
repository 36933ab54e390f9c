"""Images and labels of a round beside those of the model that it continues from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataset.files.untrusted_values import listed
from efficientdet.quickstart.split_records import instances, records_of
from program_support.errors import InputError

_FEWEST = 2  # images that a comparison needs


def check_round(models: Sequence[Path], output: Path, *, measured_on: str) -> None:
    """Print what changed from the records of the present model, in the last folder, to those below `output`.

    models: folders of the models that the present one continues from, and its own.

    Raises:
        InputError: the present model and one trained on the records of `output` could not be compared.
    """
    (before, old_files), (after, files) = _labels(models[-1]), _labels(output)
    added, removed = after.keys() - before.keys(), before.keys() - after.keys()
    replaced = [name for name, file in files.items() if old_files.get(name, file) != file]
    corrected = [name for name in after.keys() & before.keys() if after[name] != before[name]]
    boxes = [sum(map(len, labels.values())) for labels in (before, after)]
    print(
        f"changes: {len(added)} images added, {len(removed)} removed, {len(replaced)} replaced, labels of "
        f"{len(corrected)} changed; {boxes[0]} boxes before, {boxes[1]} now"
    )
    _report_classes(_classes(before), _classes(after))
    held_out = instances(output, measured_on)
    if not _classes(before) & {name for name in _names_of(held_out)} or len(held_out["images"]) < _FEWEST:
        raise InputError(
            f"{output / 'records'}: the {len(held_out['images'])} images of {measured_on} have no object of a class "
            f"that the model has ({listed(sorted(_classes(before)))}), so that the models cannot be compared; expected "
            "such images, the former names of classes, or another --output_dir"
        )
    trained = {_content(image) for folder in models for image in instances(folder, "train")["images"]}
    if moved := sorted(image["file_name"] for image in held_out["images"] if trained & {*image.values()}):
        raise InputError(
            f"{len(moved)} images of {measured_on} were in train, such as {moved[0]}: the model has seen them, which a "
            "comparison would reward; move them back, or use another --output_dir"
        )


def _report_classes(before: set[str], after: set[str]) -> None:
    gone, new = sorted(before - after), sorted(after - before)
    if new:
        print(f"new classes, which begin with random rows of the class predictor: {listed(new)}")
    if gone:
        renamed = "; a renamed class loses what was learned, unless it gets its former name again" if new else ""
        print(f"warning: no object of {listed(gone)} is left, which the model will not detect{renamed}")


def _content(image: dict[str, Any]) -> str:
    """Return what identifies an image in COCO's format: its file's hash, or its name as earlier versions wrote it."""
    return image.get("sha256") or image["file_name"]


def _labels(folder: Path) -> tuple[dict[str, set[tuple[Any, ...]]], dict[str, str]]:
    """Return the objects of each image of all splits, class and box, and the hash of its file if it is known."""
    labels: dict[str, set[tuple[Any, ...]]] = {}
    files: dict[str, str] = {}
    for split in ("train", "val", "test"):
        if records_of(folder, split) is None:
            continue
        content = instances(folder, split)
        names = {category["id"]: category["name"] for category in content["categories"]}
        of_image: dict[int, set[tuple[Any, ...]]] = {image["id"]: set() for image in content["images"]}
        for one in content["annotations"]:
            of_image[one["image_id"]].add((names[one["category_id"]], *(round(side, 1) for side in one["bbox"])))
        labels |= {image["file_name"]: of_image[image["id"]] for image in content["images"]}
        files |= {image["file_name"]: image["sha256"] for image in content["images"] if "sha256" in image}
    return labels, files


def _classes(labels: dict[str, set[tuple[Any, ...]]]) -> set[str]:
    return {name for objects in labels.values() for name, *_ in objects}


def _names_of(content: dict[str, Any]) -> list[str]:
    names = {category["id"]: category["name"] for category in content["categories"]}
    return [names[one["category_id"]] for one in content["annotations"]]
