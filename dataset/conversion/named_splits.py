"""Recognize the split of a folder or a file by its name: train, val or test."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from program_support.errors import InputError

SPLITS = ("train", "val", "test")
_WORDS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
_YEAR = re.compile(r"20\d\d$")


def split_of_each(names: Sequence[str], splits: Sequence[str | None], *, where: str) -> list[str]:
    """Return the split of each named file; "" for all if none of them is in train.

    Raises InputError, starting with `where`, if some are in train and others in no split.
    """
    if "train" not in splits:
        return [""] * len(splits)
    without = [name for name, split in zip(names, splits, strict=True) if split is None]
    if without:
        raise InputError(
            f"{where}: {len(without)} of {len(names)}, such as {without[0]}, are in no split named train, val or test; "
            "expected all or none"
        )
    return [split or "" for split in splits]


def split_of_word(word: str) -> str | None:
    """Return the split that a word such as train2017 or Validation names, or None."""
    return _WORDS.get(_YEAR.sub("", word.lower()))


def split_of_folders(path: str) -> str | None:
    """Return the split that the innermost folder of a relative path names, or None."""
    return next(filter(None, map(split_of_word, reversed(PurePosixPath(path).parts[:-1]))), None)


def split_of_file(path: str) -> str | None:
    """Return the split that a relative path names, by a word of its file name, else by its folders, or None."""
    words = re.split(r"[^A-Za-z0-9]+", PurePosixPath(path).name)
    return next(filter(None, map(split_of_word, words)), None) or split_of_folders(path)
