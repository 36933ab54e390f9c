"""Classes of third-party checkpoints: named by a flag or a file beside them, else those of COCO or numbered."""

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dataset.class_names import CLASS_FILE_SUFFIXES, COCO_2017, ClassNames, class_names_from, read_class_file
from dataset.files.untrusted_values import error_context
from dataset.files.xml_and_yaml import read_yaml
from efficientdet.families.family import Family
from program_support.errors import InputError

_STEMS = ("classes", "class_names", "label_map", "*label_map*", "*labelmap*", "labels", "names", "obj")
_HOW_TO_NAME = "--class_names=FILE, or classes.json or a label map beside it, names them"


class StatedClasses(NamedTuple):
    """Classes that a flag or a file beside the checkpoint names."""

    names: ClassNames
    origin: str


def classes_beside(prefix: str) -> StatedClasses | None:
    """Return the classes of the first file beside a checkpoint that names them, None without such a file.

    Files are PREFIX.classes.json, classes.json, label_map.pbtxt, labels.txt and similar names, and google/automl's
    config.yaml if it has a `label_map`. For NVIDIA's ema_weights/emackpt-N the folder above counts too. Raises
    InputError for a file that cannot be read.
    """
    folder, name = Path(prefix).parent, glob.escape(Path(prefix).name)
    folders = [folder, folder.parent] if folder.name == "ema_weights" else [folder]
    for place in folders:
        for path in _candidates(place, (f"{name}.classes", *_STEMS)):
            return StatedClasses(read_class_file(path), str(path))
        config = place / "config.yaml"
        if config.is_file():
            content, _ = read_yaml(config)
            if isinstance(content, dict) and isinstance(content.get("label_map"), dict):
                with error_context(f"{config}:"):
                    return StatedClasses(class_names_from(content["label_map"]), str(config))
    return None


def _candidates(folder: Path, stems: tuple[str, ...]) -> Iterator[Path]:
    for stem in stems:
        for suffix in CLASS_FILE_SUFFIXES:
            yield from sorted(path for path in folder.glob(f"{stem}{suffix}") if path.is_file())


def rows_of_classes(names: ClassNames, count: int | None, family: Family) -> list[int] | None:
    """Return the rows of these classes in a third-party class predictor with `count` rows; None if they do not fit.

    A predictor has a row for each class, or for each category id up to the largest one; as with COCO, some programs
    add a row.
    """
    if count in (None, len(names)):
        return list(range(len(names)))
    rows_of_coco = max(COCO_2017.category_ids) + count - max(names.category_ids)
    if rows_of_coco not in family.coco_class_rows or min(names.category_ids) < 1:
        return None
    return [family.coco_class_rows[rows_of_coco] + category_id - 1 for category_id in names.category_ids]


def rows_are_cocos(count: int | None, family: Family) -> bool:
    """Return whether a class predictor of this size is that of the family's published COCO checkpoints."""
    return count in family.coco_class_rows


def assumed_classes(count: int | None, family: Family) -> ClassNames:
    """Return COCO's classes for the size of a predictor of COCO's, else `count` numbered classes."""
    if count in (None, len(COCO_2017)) or rows_are_cocos(count, family):
        return COCO_2017
    return numbered_classes(count)


def numbered_classes(count: int) -> ClassNames:
    """Return the classes "class 1", "class 2", ..., with the ids 1, 2, ..."""
    return ClassNames.numbered([f"class {number}" for number in range(1, count + 1)])


def check_fit(prefix: str, stated: StatedClasses, count: int | None, family: Family) -> None:
    """Raise InputError if the class predictor does not have rows for the classes that a flag or file names."""
    if rows_of_classes(stated.names, count, family) is None:
        raise InputError(
            f"{stated.origin}: names {len(stated.names)} classes ({some(stated.names.names)}), but {prefix} has "
            f"{count} class rows"
        )


def class_note(
    prefix: str, stated: StatedClasses | None, *, names: ClassNames, of_data: bool, count: int | None
) -> str:
    """Return a line on the origin of the class names of a checkpoint without a description."""
    if stated is not None:
        return f"class names: {some(stated.names.names)}, from {stated.origin}"
    nameless = f"{prefix} does not name its {len(names) if count is None else count} classes"
    if of_data:
        return f"class names: those of the data in the order of their ids; {nameless}; {_HOW_TO_NAME}"
    if names == COCO_2017:
        return f"class names: the {len(names)} of COCO, assumed from the number of rows; {nameless}; {_HOW_TO_NAME}"
    return f"class names: {names.names[0]} to {names.names[-1]}; {nameless}; {_HOW_TO_NAME}"


def some(names: tuple[str, ...]) -> str:
    """Return the first of these names as text."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
