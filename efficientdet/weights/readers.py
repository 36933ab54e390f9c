"""Readers of third-party files of weights, recognized by their content.

A reader is a module, or another object, with the members of `WeightReader`: one of this project, or of a plugin
(`program_support/plugins.py`).
"""

import contextlib
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from dataset.files.bounded_files import open_regular_file, read_json
from program_support.errors import InputError
from program_support.plugins import load_plugins

PLUGINS = "efficientdet.weight_readers"
_HEAD = 512  # bytes


class WeightReader(Protocol):
    """Reads the files of one format. May also have `architecture(path)`: the text in a file that names its network."""

    SUFFIXES: tuple[str, ...]  # a file with damaged content is recognized by them

    def recognizes(self, head: bytes) -> bool:
        """Return whether a file with these first bytes, up to 512, may have the format."""

    def read(self, path: str | os.PathLike) -> dict[str, np.ndarray]:
        """Return the arrays with names and layout of the program that wrote the file.

        Raises:
            InputError: naming the file, if it is damaged or has other content.
        """


def reader_of(path: str | os.PathLike) -> WeightReader | None:
    """Return the reader of a file; None for a TensorFlow bundle, another file or a missing one."""
    try:
        with open_regular_file(path) as stream:
            head = stream.read(_HEAD)
    except OSError:
        return None
    by_content = (one for one in _readers() if one.recognizes(head))
    by_suffix = (one for one in _readers() if os.fspath(path).endswith(one.SUFFIXES))
    return next(chain(by_content, by_suffix), None)


def _readers() -> Iterator[WeightReader]:
    from efficientdet.weights import keras_files

    yield keras_files
    yield from load_plugins(PLUGINS)


def stated_architecture(prefix: str) -> str:
    """Return the architecture in a file of weights or the Hub's config.json beside it, or else the end of its path.

    With the tag of timm's weights, if there is one: it tells their normalization, such as that of AdvProp.
    """
    path = Path(prefix)
    read_architecture = getattr(reader_of(path), "architecture", None)
    if read_architecture and (stated := read_architecture(path)):
        return stated
    with contextlib.suppress(InputError, OSError):
        content = read_json(str(path.with_name("config.json")))
        if isinstance(content, dict) and isinstance(content.get("architecture"), str):
            of_weights = content.get("pretrained_cfg")
            tag = of_weights.get("tag", "") if isinstance(of_weights, dict) else ""
            return f"{content['architecture']}.{tag}"
    return str(Path(*path.parts[-4:]))
