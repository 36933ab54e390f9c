"""Recognize the split of a folder or a file by its name: train, val or test."""

import re
from pathlib import PurePosixPath

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
