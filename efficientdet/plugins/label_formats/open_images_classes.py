"""Selection of Open Images classes, and the category of each label (such as /m/01g317).

Labels are stable across versions, names are not: MLPerf's French horn was Horn in early V4, and its Orange is Orange
(fruit) in V7. Users select classes by name; MLPerf's list contains the labels.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.files.bounded_files import csv_rows, read_text_file
from dataset.files.untrusted_values import error_context, listed, shown
from program_support.errors import InputError, nearest_name

MLPERF = "mlperf"
MLPERF_FILE = Path(__file__).resolve().parent / "open_images_mlperf_classes.csv"
_V6_HEADER = ["LabelName", "DisplayName"]


@dataclass(frozen=True)
class SelectedClasses:
    """Selected classes; `category_of` maps every label of the class descriptions, those not selected to None."""

    class_names: ClassNames
    category_of: dict[str, int | None]
    renamed: list[str] = field(default_factory=list)  # such as "Horn is French horn"


def selected_classes(classes: str, *, class_descriptions_file: str) -> SelectedClasses:
    """Return the classes that `classes` selects.

    `classes` is "mlperf" (264 classes), a file with one name per line, comma-separated names, or "" for all. Category
    ids count from 0 in the order of the list (for "mlperf" and "": ASCII order of the names).

    Raises:
        InputError: for a name that the class descriptions lack.
    """
    name_of = _read_descriptions(class_descriptions_file)
    if classes == MLPERF:
        selected = _read_descriptions(str(MLPERF_FILE))
        _check_same_labels(selected, name_of, class_descriptions_file)
    else:
        names = _listed_names(classes) if classes else sorted(name_of.values())
        selected = _by_name(names, name_of, class_descriptions_file)
    with error_context(classes and "--classes:"):
        class_names = ClassNames.from_pairs(enumerate(selected.values()))
    category_of: dict[str, int | None] = dict.fromkeys(name_of)
    category_of |= {label: number for number, label in enumerate(selected)}
    return SelectedClasses(
        class_names,
        category_of,
        [f"{name_of[label]} is {name}" for label, name in selected.items() if name_of[label] != name],
    )


def describes_classes(path: str) -> bool:
    """Return whether a CSV file has labels and their names."""
    try:
        row = next(csv_rows(path), (1, []))[1]
    except InputError:
        return False
    return len(row) == 2 and (row[0].startswith("/m/") or row == _V6_HEADER)


def _read_descriptions(path: str) -> dict[str, str]:
    """Return label -> name in the order of the file; V4 and V5 have no header, V6 and V7 have one."""
    descriptions: dict[str, str] = {}
    for number, (line, row) in enumerate(csv_rows(path)):
        if number == 0 and row == _V6_HEADER:
            continue
        if len(row) != 2 or not row[0].startswith("/") or not row[1].strip():
            raise InputError(
                f"{path}: line {line} is {shown(','.join(row))}, expected a label and its name such as "
                "/m/01g317,Person: class-descriptions-boxable.csv"
            )
        label, name = row[0], row[1].strip()
        if descriptions.setdefault(label, name) != name:
            raise InputError(
                f"{path}: line {line} names {label} {shown(name)}, and an earlier one {shown(descriptions[label])}"
            )
    if not descriptions:
        raise InputError(f"{path}: contains no classes")
    return descriptions


def _listed_names(classes: str) -> list[str]:
    """Return the names in a file or in a comma-separated list."""
    if not os.path.isfile(classes):  # the list may be longer than a path may be
        return [name.strip() for name in classes.split(",") if name.strip()]
    with error_context("--classes:"):
        text, _ = read_text_file(classes)
    names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names:
        raise InputError(f"--classes={classes}: contains no names")
    return names


def _by_name(names: list[str], name_of: dict[str, str], path: str) -> dict[str, str]:
    """Return label -> name for the names, in their order."""
    labels: dict[str, list[str]] = {}
    for label, name in name_of.items():
        labels.setdefault(name, []).append(label)
    for name in names:
        if name not in labels:
            nearest = nearest_name(name, labels)
            hint = f"; the nearest is {nearest}" if nearest else f" (nor is there such a file); it has {listed(labels)}"
            raise InputError(f"--classes: {path} has no class {shown(name)}{hint}")
        if len(labels[name]) > 1:
            raise InputError(
                f"{path}: {shown(name)} is the name of {listed(labels[name])}; use "
                "class-descriptions-boxable.csv, in which names are distinct"
            )
    if len({*names}) < len(names):
        raise InputError(f"--classes: names {shown(Counter(names).most_common(1)[0][0])} twice")
    return {labels[name][0]: name for name in names}


def _check_same_labels(selected: dict[str, str], name_of: dict[str, str], path: str) -> None:
    """Check that MLPerf's labels exist and that no other label has one of its names; renamed classes are allowed."""
    for label, name in selected.items():
        if label not in name_of:
            raise InputError(
                f"{path}: lacks {label} ({name}), which --classes={MLPERF} requires; use class-descriptions-boxable.csv"
            )
    names = {*selected.values()}
    for label, name in name_of.items():
        if name in names and selected.get(label) != name:
            raise InputError(f"{path}: calls {label} {shown(name)}, which in MLPerf's list is another label")
