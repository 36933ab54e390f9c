"""Which part of a data set a folder or a file is, by its name: train, val or test."""

import re
from pathlib import PurePosixPath

SPLITS = ("train", "val", "test")
_WORDS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_YEAR = re.compile(r"20\d\d$")


def split_called(word: str) -> str | None:
    """The part that this word, such as train2017 or Validation, is the name of."""
    return _WORDS.get(_YEAR.sub("", word.lower()))


def split_of_folders(path: str) -> str | None:
    """The part that the folders of a relative path name; the innermost counts."""
    return next(filter(None, map(split_called, reversed(PurePosixPath(path).parts[:-1]))), None)


def split_of_file(path: str) -> str | None:
    """The part that a relative path names, by a word of its file name or else by its folders."""
    words = re.split(r"[^A-Za-z0-9]+", PurePosixPath(path).name)
    return next(filter(None, map(split_called, words)), None) or split_of_folders(path)
