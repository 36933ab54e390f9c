"""Read files of weights that Keras wrote (.h5), in both of its layouts.

Arrays have the names of Keras 3, such as `layers/conv2d_1/vars/0`: the kernel of the second convolution. Keras 2, as in
the files of keras.applications, names layers instead and lists them in their order.
"""

import os
from collections import Counter

import h5py
import numpy as np

from dataset.files.bounded_files import LARGEST_FILE_BYTES
from dataset.files.untrusted_values import error_context, shown
from program_support.errors import InputError

SUFFIXES: tuple[str, ...] = (".h5",)
_CLASSES = {  # first weight of a layer in Keras 2 -> name of its class in Keras 3
    "depthwise_kernel": "depthwise_conv2d",
    "kernel": "conv2d",
    "gamma": "batch_normalization",
    "mean": "normalization",
}


def recognizes(head: bytes) -> bool:
    """Return whether first bytes are HDF5's signature."""
    return head.startswith(b"\x89HDF\r\n\x1a\n")


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the arrays of the layers.

    Raises:
        InputError: naming the file, if it is damaged, has other content or arrays of more than 1 GiB.
    """
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


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    datasets: dict[str, h5py.Dataset] = {}

    def keep(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    file.visititems(keep)
    return datasets


def _of_keras_2(file: h5py.File) -> dict[str, h5py.Dataset]:
    datasets: dict[str, h5py.Dataset] = {}
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
