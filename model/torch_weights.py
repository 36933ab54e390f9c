"""Conversion of torch state dicts to names and layouts of Keras. Arrays are passed as a dictionary.

Layers are named as torch's modules, with slashes instead of dots: `backbone.body.conv1.weight` is
`backbone/body/conv1/kernel`.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

YX_OF_XY = [1, 0, 3, 2]  # torch's offsets are (t_x, t_y, t_w, t_h), Keras layers here have (t_y, t_x, t_h, t_w)
_NORM_ROLES = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_KERNEL_AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # out, in, rows, columns -> rows, columns, in, out; out, in -> in, out


def is_torch(names: Iterable[str]) -> bool:
    """Return whether arrays with these names are a torch state dict."""
    return any(name.endswith((".weight", ".running_var")) for name in names)


def from_torch(
    arrays: Mapping[str, np.ndarray], names: Iterable[str], *, module: Callable[[str], str] = lambda name: name
) -> dict[str, np.ndarray]:
    """Return the arrays by the given `names`; unused arrays keep torch's names, for `check_against` to report.

    module: maps the name of a torch module to the name that the layers here follow. Batch counters are left out.
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
