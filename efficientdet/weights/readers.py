"""Readers of third-party files of weights, recognized by their content.

A reader is an object with the members of `WeightReader`: one of this project, or of a plugin
(`program_support/plugins.py`).
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dataset.files.bounded_files import LARGEST_FILE_BYTES, open_regular_file, read_json
from dataset.files.untrusted_values import error_context, shown
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
    yield KerasFiles()
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


_CLASSES = {  # first weight of a layer in Keras 2 -> name of its class in Keras 3
    "depthwise_kernel": "depthwise_conv2d",
    "kernel": "conv2d",
    "gamma": "batch_normalization",
    "mean": "normalization",
}


class KerasFiles:
    """Reader of files of weights that Keras wrote (.h5), in both of its layouts.

    Arrays have the names of Keras 3, such as `layers/conv2d_1/vars/0`: the kernel of the second convolution. Keras 2,
    as in the files of keras.applications, names layers instead and lists them in their order.
    """

    SUFFIXES: tuple[str, ...] = (".h5",)

    def recognizes(self, head: bytes) -> bool:
        """Return whether first bytes are HDF5's signature."""
        return head.startswith(b"\x89HDF\r\n\x1a\n")

    def read(self, path: str | os.PathLike) -> dict[str, np.ndarray]:
        """Return the arrays of the layers.

        Raises:
            InputError: naming the file, if it is damaged, has other content or arrays of more than 1 GiB.
        """
        import h5py

        with error_context(f"{path}:"):
            try:
                with h5py.File(path, locking=False) as file:
                    datasets = _of_keras_2(file) if "layer_names" in file.attrs else _datasets(file)
                    if (size := sum(dataset.nbytes for dataset in datasets.values())) > LARGEST_FILE_BYTES:
                        raise InputError(f"holds {size} bytes of arrays; the limit is {LARGEST_FILE_BYTES}")
                    arrays = {name: dataset[()] for name, dataset in datasets.items() if dataset.dtype.kind in "fiu"}
            except InputError:
                raise
            except (OSError, ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
                raise InputError(f"is damaged or no file of Keras weights ({shown(str(error))})") from error
            if not arrays:
                raise InputError("holds no arrays")
            return arrays


def _datasets(file: Any) -> dict[str, Any]:
    datasets: dict[str, Any] = {}

    def keep(name: str, item: Any) -> None:
        if hasattr(item, "dtype"):  # not a group
            datasets[name] = item

    file.visititems(keep)
    return datasets


def _of_keras_2(file: Any) -> dict[str, Any]:
    datasets: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for layer in map(_text, file.attrs["layer_names"]):
        names = [_text(name) for name in file[layer].attrs["weight_names"]]
        if not names:
            continue
        first = names[0].rsplit("/", 1)[-1].partition(":")[0]
        kind = _CLASSES.get(first, first)
        number, counts[kind] = counts[kind], counts[kind] + 1
        for place, name in enumerate(names):
            datasets[f"layers/{kind}{f'_{number}' if number else ''}/vars/{place}"] = file[layer][name]
    return datasets


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
