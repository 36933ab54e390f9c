"""Readers of third-party files of weights, recognized by their content.

A reader is a module, or another object, with the members of `WeightReader`: one of this project, or an entry point of
an installed package.
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

ENTRY_POINTS = "efficientdet.weight_readers"
_HEAD = 512  # bytes


class WeightReader(Protocol):
    """Reads the files of one format."""

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
    """Yield every reader. A new one is a module and an entry here, or an entry point of another package."""
    from importlib.metadata import entry_points

    from efficientdet.weights import keras_files, safetensors_files, torch_files

    yield from (torch_files, safetensors_files, keras_files)
    yield from (entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS)))


def stated_architecture(prefix: str) -> str:
    """Return the architecture in a file of PyTorch or the Hub's config.json beside it, or else the end of its path.

    With the tag of timm's weights, if there is one: it tells their normalization, such as that of AdvProp.
    """
    from efficientdet.weights import torch_files

    path = Path(prefix)
    if reader_of(path) is torch_files and (stated := torch_files.architecture(path)):
        return stated
    with contextlib.suppress(InputError, OSError):
        content = read_json(str(path.with_name("config.json")))
        if isinstance(content, dict) and isinstance(content.get("architecture"), str):
            of_weights = content.get("pretrained_cfg")
            tag = of_weights.get("tag", "") if isinstance(of_weights, dict) else ""
            return f"{content['architecture']}.{tag}"
    return str(Path(*path.parts[-4:]))
