"""Weights of EfficientNet and EfficientDet of PyTorch programs, translated to the names of this project.

`torch_schemes.py` has the programs' names of the backbone; pyramid and heads are effdet's.
"""

import re
from collections.abc import Container, Iterable, Mapping

import numpy as np

from efficientdet.families.efficientdet.torch_schemes import QUAD_NODE, Scheme
from program_support.errors import InputError

_OF_BACKBONE = re.compile(r"efficientnet-\w+/(?:stem|blocks_(?P<block>\d+))/(?P<layer>.+)")
# Roles of the layers of a block here; a block of the first stage has no expansion
_PLAIN = {
    "depthwise_conv2d": "depthwise",
    "tpu_batch_normalization": "depthwise norm",
    "se/conv2d": "squeeze",
    "se/conv2d_1": "excite",
    "conv2d": "project",
    "tpu_batch_normalization_1": "project norm",
}
_EXPANDED = {
    **_PLAIN,
    "conv2d": "expand",
    "tpu_batch_normalization": "expand norm",
    "tpu_batch_normalization_1": "depthwise norm",
    "conv2d_1": "project",
    "tpu_batch_normalization_2": "project norm",
}
# Weight here -> its name in PyTorch, and the order of its axes there
_WEIGHTS = {
    "kernel": ("weight", (2, 3, 1, 0)),
    "pointwise_kernel": ("weight", (2, 3, 1, 0)),
    "depthwise_kernel": ("weight", (2, 3, 0, 1)),
    "gamma": ("weight", None),
    "beta": ("bias", None),
    "bias": ("bias", None),
    "moving_mean": ("running_mean", None),
    "moving_variance": ("running_var", None),
}
_SEPARABLE = {"depthwise_kernel": ".conv_dw", "pointwise_kernel": ".conv_pw", "bias": ".conv_pw"}
# effdet's pyramid and heads: layer here -> path there; `level` counts from the finest level of the pyramid
_EFFDET = (
    (r"resample_p(?P<level>\d+)/conv2d", "fpn.resample.{level}.conv.conv"),
    (r"resample_p(?P<level>\d+)/bn", "fpn.resample.{level}.conv.bn"),
    (
        r"fpn_cells/cell_(\d+)/fnode(\d+)/resample_\d+_(\d+)_\d+/conv2d",
        "fpn.cell.{}.fnode.{}.combine.resample.{}.conv.conv",
    ),
    (r"fpn_cells/cell_(\d+)/fnode(\d+)/resample_\d+_(\d+)_\d+/bn", "fpn.cell.{}.fnode.{}.combine.resample.{}.conv.bn"),
    (r"fpn_cells/cell_(\d+)/fnode(\d+)/op_after_combine\d+/conv", "fpn.cell.{}.fnode.{}.after_combine.conv"),
    (r"fpn_cells/cell_(\d+)/fnode(\d+)/op_after_combine\d+/bn", "fpn.cell.{}.fnode.{}.after_combine.conv.bn"),
    (r"(class|box)_net/\w+-predict", "{}_net.predict"),
    (r"(class|box)_net/\w+-(\d+)", "{}_net.conv_rep.{}"),
    (r"(class|box)_net/\w+-(\d+)-bn-(?P<level>\d+)", "{}_net.bn_rep.{}.{level}.bn"),
)
_FUSION_WEIGHT = re.compile(r"fpn_cells/cell_(\d+)/fnode(\d+)/WSM(?:_(\d+))?")
_LEVEL_FIRST = re.compile(r"bn_rep\.(\d+)\.(\d+)\.(?!bn\.)")  # heads of efficientdet_q0 to q2
_BILINEAR_FILTERS = 88  # of efficientdet_q1, the only quad FPN that resamples bilinearly
_EDGE_WEIGHTS = "fpn.cell.{}.fnode.{}.combine.edge_weights"


def from_torch(arrays: Mapping[str, np.ndarray], names: Iterable[str], *, scheme: Scheme) -> dict[str, np.ndarray]:
    """Return the arrays by the given names; unused ones keep their own, for `check_against` to report.

    effdet leaves out biases that a normalization follows: they are 0.

    Raises:
        InputError: the backbone has another number of blocks, or the pyramid is none of those of `BifpnConfig`.
    """
    names = dict.fromkeys(names)
    last = np.shape(arrays.get(f"{QUAD_NODE}after_combine.conv.conv_pw.weight", ()))
    if last[:1] == (_BILINEAR_FILTERS,) and any(name.startswith("fpn_cells/") for name in names):
        raise InputError("is effdet's efficientdet_q1, whose pyramid resamples bilinearly: this is not supported")
    arrays = {_LEVEL_FIRST.sub(r"bn_rep.\2.\1.bn.", name): array for name, array in arrays.items()}
    blocks = scheme.blocks(arrays)
    numbers = [int(match["block"]) for name in names if (match := _OF_BACKBONE.match(name)) and match["block"]]
    if numbers and max(numbers) + 1 != len(blocks):
        raise InputError(f"has an EfficientNet of {len(blocks)} blocks; expected {max(numbers) + 1}")
    levels = [int(match[1]) for name in names if (match := re.search(r"-bn-(\d+)/", name))]
    used, translated = set[str](), dict[str, np.ndarray]()
    for name in names:
        if fusion := _FUSION_WEIGHT.fullmatch(name):
            key = _EDGE_WEIGHTS.format(fusion[1], fusion[2])
            if key in arrays:
                used.add(key)
                translated[name] = np.asarray(arrays[key]).reshape(-1)[int(fusion[3] or 0)]
            continue
        layer, role = name.rsplit("/", 1)
        path = _backbone_path(layer, names, blocks, scheme) or _effdet_path(layer, role, min(levels, default=3))
        weight, axes = _WEIGHTS.get(role, (role, None))
        key = f"{path}.{weight}"
        if path and key in arrays:
            used.add(key)
            array = np.asarray(arrays[key])
            translated[name] = array.transpose(axes) if axes and array.ndim == len(axes) else array
        elif path and role == "bias" and f"{path}.weight" in arrays and "predict" not in path:
            translated[name] = np.zeros(arrays[f"{path}.weight"].shape[0], np.float32)
    unused = {name: array for name, array in arrays.items() if name not in used}
    return translated | {name: array for name, array in unused.items() if not name.endswith("num_batches_tracked")}


def _backbone_path(layer: str, names: Container[str], blocks: list[str], scheme: Scheme) -> str | None:
    match = _OF_BACKBONE.fullmatch(layer)
    if match is None:
        return None
    if match["block"] is None:
        return scheme.stem[0 if match["layer"] == "conv2d" else 1]
    block = layer.removesuffix(match["layer"])
    has_expansion = f"{block}conv2d_1/kernel" in names
    role = (_EXPANDED if has_expansion else _PLAIN)[match["layer"]]
    number = int(match["block"])
    paths = scheme.expanded if has_expansion else scheme.plain
    return blocks[number] + paths[role] if number < len(blocks) else None


def _effdet_path(layer: str, role: str, finest: int) -> str | None:
    for pattern, path in _EFFDET:
        if match := re.fullmatch(pattern, layer):
            level = match.groupdict().get("level")
            is_separable = role in _SEPARABLE and not path.endswith(("bn", "conv.conv"))
            path = path.format(*match.groups(), level=level and int(level) - finest)  # the level is the last group
            return path + (_SEPARABLE[role] if is_separable else "")
    return None
