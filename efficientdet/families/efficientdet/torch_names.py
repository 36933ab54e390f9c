"""Weights of EfficientNet and EfficientDet as PyTorch programs name them, translated to the names of this project.

Each program has an entry in `SCHEMES`: the pattern by which its files are recognized, and where it keeps the layers of
a block. A further program of the same networks is a further entry. effdet's detectors have timm's names below
`backbone.`, and their own in pyramid and heads.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from efficientdet.families.efficientdet.hyperparameters import IMAGENET_MEAN_RGB, IMAGENET_STDDEV_RGB
from efficientdet.families.efficientdet.presets import LITE_NORMALIZATION
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
_QUAD_NODE = "fpn.cell.0.fnode.20."  # a BiFPN of six levels has 10 nodes in a cell, a quad FPN of five has 21
_BILINEAR_FILTERS = 88  # of efficientdet_q1, the only quad FPN that resamples bilinearly
_EDGE_WEIGHTS = "fpn.cell.{}.fnode.{}.combine.edge_weights"


@dataclass(frozen=True)
class Scheme:
    """Where a PyTorch program keeps the layers of an EfficientNet.

    Attributes:
        program: its name.
        block: pattern of one weight of each block; its first group is the path of the block.
        stem: paths of the first convolution and its normalization.
        plain: path of each role in a block without expansion.
        expanded: path of each role in a block with expansion.
    """

    program: str
    block: re.Pattern[str]
    stem: tuple[str, str]
    plain: Mapping[str, str]
    expanded: Mapping[str, str]


def _paths(text: str) -> dict[str, str]:
    roles = ("depthwise", "depthwise norm", "squeeze", "excite", "project", "project norm", "expand", "expand norm")
    return dict(zip(roles, text.split(), strict=False))


_TIMM = Scheme(
    "timm",
    re.compile(r"(blocks\.\d+\.\d+\.)conv_dw\.weight"),
    ("conv_stem", "bn1"),
    _paths("conv_dw bn1 se.conv_reduce se.conv_expand conv_pw bn2"),
    _paths("conv_dw bn2 se.conv_reduce se.conv_expand conv_pwl bn3 conv_pw bn1"),
)

SCHEMES = (
    _TIMM,
    replace(
        _TIMM,
        program="effdet",
        block=re.compile(rf"(backbone\.{_TIMM.block.pattern.removeprefix('(')}"),
        stem=("backbone.conv_stem", "backbone.bn1"),
    ),
    Scheme(
        "EfficientNet-PyTorch",
        re.compile(r"(_blocks\.\d+\.)_depthwise_conv\.weight"),
        ("_conv_stem", "_bn0"),
        _paths("_depthwise_conv _bn1 _se_reduce _se_expand _project_conv _bn2"),
        _paths("_depthwise_conv _bn1 _se_reduce _se_expand _project_conv _bn2 _expand_conv _bn0"),
    ),
    Scheme(
        "torchvision",
        re.compile(r"(features\.\d+\.\d+\.block\.)0\.0\.weight"),
        ("features.0.0", "features.0.1"),
        _paths("0.0 0.1 1.fc1 1.fc2 2.0 2.1"),
        _paths("1.0 1.1 2.fc1 2.fc2 3.0 3.1 0.0 0.1"),
    ),
)


def scheme_of(names: Iterable[str]) -> Scheme | None:
    """Return the program that names weights like these, or None."""
    names = tuple(names)
    return next((scheme for scheme in SCHEMES if any(map(scheme.block.fullmatch, names))), None)


def from_torch(arrays: Mapping[str, np.ndarray], names: Iterable[str], *, scheme: Scheme) -> dict[str, np.ndarray]:
    """Return the arrays by the given names; unused ones keep their own, for `check_against` to report.

    effdet leaves out biases that a normalization follows: they are 0.

    Raises:
        InputError: the pyramid is another one than those of `BifpnConfig`.
    """
    names = dict.fromkeys(names)
    last = np.shape(arrays.get(f"{_QUAD_NODE}after_combine.conv.conv_pw.weight", ()))
    if last[:1] == (_BILINEAR_FILTERS,) and any(name.startswith("fpn_cells/") for name in names):
        raise InputError("is effdet's efficientdet_q1, whose pyramid resamples bilinearly: this is not supported")
    arrays = {_LEVEL_FIRST.sub(r"bn_rep.\2.\1.bn.", name): array for name, array in arrays.items()}
    blocks = sorted({match[1] for name in arrays if (match := scheme.block.fullmatch(name))}, key=_numbers_in)
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


def _numbers_in(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]


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
            numbers = [number for number in match.groups() if number is not level]
            is_separable = role in _SEPARABLE and not path.endswith(("bn", "conv.conv"))
            return path.format(*numbers, level=level and int(level) - finest) + (
                _SEPARABLE[role] if is_separable else ""
            )
    return None


_TENSORFLOW = {"conv_padding": "same", "batch_norm_epsilon": 1e-3}
_PYTORCH = {"conv_padding": "symmetric", "batch_norm_epsilon": 1e-5}
_BLOCKS_OF_B4 = 32  # torchvision's larger networks have epsilon 1e-3
_INCEPTION = {"mean_rgb": (127.5,) * 3, "stddev_rgb": (127.5,) * 3}
_IMAGENET = {"mean_rgb": IMAGENET_MEAN_RGB, "stddev_rgb": IMAGENET_STDDEV_RGB}
_ASPECT_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
_REDUNDANT_BIAS = "class_net.conv_rep.0.conv_pw.bias"  # effdet's ports of TensorFlow's detectors have it
_TIMM_NAME = re.compile(r"(?<![a-z])(?P<port>tf_)?efficientnet_(?:lite|b)\d")
_INCEPTION_NAME = re.compile(r"[_.](ap|ra4)(?=[_.-]|$)")  # AdvProp, and the recipe of MobileNet-v4


def hyperparameters_of_torch(
    names: Iterable[str], *, scheme: Scheme, stated: str, padding: str | None = None
) -> dict[str, Any]:
    """Return the hyperparameters with which weights of a PyTorch program mean what they meant in training.

    timm's ports of TensorFlow's weights and its own have the same names and shapes, but other padding, another epsilon
    of batch normalization and, for Lite, another normalization of the input. `stated` tells them apart: the name of the
    architecture or of the file; `padding` is the one that a user states.

    Raises:
        InputError: the weights are timm's, and `stated` names none of its architectures.
    """
    names = set(names)
    is_lite = not any(".se." in name or "_se_" in name for name in names)
    if scheme.program == "torchvision":
        blocks = sum(map(bool, map(scheme.block.fullmatch, names)))
        return {**_PYTORCH, **_IMAGENET} | ({} if blocks <= _BLOCKS_OF_B4 else {"batch_norm_epsilon": 1e-3})
    if scheme.program == "EfficientNet-PyTorch":
        return _TENSORFLOW | (LITE_NORMALIZATION if is_lite else _INCEPTION if "adv-" in stated else _IMAGENET)
    if scheme.program == "effdet":
        is_port = _REDUNDANT_BIAS in names
    elif padding is not None:
        is_port = padding == "same"
    elif match := _TIMM_NAME.search(stated):
        is_port = match["port"] is not None
    else:
        raise InputError(
            f"{stated}: has the names of timm, whose ports of TensorFlow's weights (tf_efficientnet_*) and own weights "
            "(efficientnet_*) differ in nothing but padding, batch normalization and the input's normalization: name "
            "the file as timm does, or set --hparams=conv_padding=same for a port or conv_padding=symmetric"
        )
    has_inception = (is_port and is_lite) or _INCEPTION_NAME.search(stated)
    return (
        (_TENSORFLOW if is_port else _PYTORCH)
        | (_INCEPTION if has_inception else _IMAGENET)
        | ({"aspect_ratios": _ASPECT_RATIOS} if scheme.program == "effdet" else {})
        | ({"fpn_name": "qufpn"} if any(name.startswith(_QUAD_NODE) for name in names) else {})
    )
