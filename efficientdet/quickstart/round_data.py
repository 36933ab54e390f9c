"""Images and labels of a round beside those of the model that it continues from."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dataset.files.untrusted_values import listed
from efficientdet.quickstart.rounds import model_folders
from efficientdet.quickstart.split_records import instances, records_of
from program_support.errors import InputError

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
