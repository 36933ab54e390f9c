"""Weights of torch's state dicts under our names and in Keras's layout. Arrays come as a dictionary, read elsewhere.

Layers are named as torch's modules are, with slashes for dots: `backbone.body.conv1.weight` is `backbone/body/conv1/kernel`.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

YX_OF_XY = [1, 0, 3, 2]  # torch's offsets are (t_x, t_y, t_w, t_h), ours (t_y, t_x, t_h, t_w)
_NORM_ROLES = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_KERNEL_AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # out, in, rows, columns -> rows, columns, in, out; out, in -> in, out


def is_torch(names: Iterable[str]) -> bool:
    """Whether arrays of these names are those of a torch state dict."""
    return any(name.endswith((".weight", ".running_var")) for name in names)


def from_torch(
    arrays: Mapping[str, np.ndarray], names: Iterable[str], *, module: Callable[[str], str] = lambda name: name
) -> dict[str, np.ndarray]:
    """The arrays under our `names`; those that none of these asks for keep torch's, for `check_against` to report.

    module: from the name of an array there to that which our layers follow. Counters of batches are left out.
    """
    theirs = {module(name): name for name in arrays if not name.endswith("num_batches_tracked")}
    translated = {}
    for name in names:
        layer, role = name.rsplit("/", 1)
        key = f"{layer.replace('/', '.')}.{'weight' if role == 'kernel' else _NORM_ROLES.get(role, role)}"
        if key in theirs:
            array = arrays[theirs.pop(key)]
            translated[name] = np.transpose(array, _KERNEL_AXES[array.ndim]) if role == "kernel" else array
    return {**translated, **{name: arrays[name] for name in theirs.values()}}
