"""Weights of EfficientNet and EfficientDet of PyTorch programs: names of their layers, hyperparameters, translation.

`WEIGHTS` is found in the group `efficientdet.efficientnet_weights` of `program_support/plugins.py`. Each program has an
entry in `SCHEMES`; a further program is a further entry. effdet's detectors have timm's names below `backbone.`.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from efficientdet.families.efficientdet.presets import IMAGENET, LITE_NORMALIZATION, TENSORFLOW
from program_support.errors import InputError

QUAD_NODE = "fpn.cell.0.fnode.20."  # a BiFPN of six levels has 10 nodes in a cell, a quad FPN of five has 21
_MIXED = "its backbone pads as PyTorch does and its pyramid as TensorFlow does, which is not supported"
_PYTORCH = {"conv_padding": "symmetric", "batch_norm_epsilon": 1e-5}
_BLOCKS_OF_B4 = 32  # torchvision's larger networks have epsilon 1e-3
_INCEPTION = {"mean_rgb": (127.5,) * 3, "stddev_rgb": (127.5,) * 3}
_ASPECT_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
_REDUNDANT_BIAS = "class_net.conv_rep.0.conv_pw.bias"  # effdet's ports of TensorFlow's detectors have it
# timm's and effdet's names; ap: AdvProp; ra4: the recipe of MobileNet-v4
_NAME = re.compile(
    r"(?<![a-z])(?P<port>tf_)?efficient(?:net_(?:lite|b)|det_(?:lite|d))\d(?P<inception>[_.](?:ap|ra4)(?=[_.-]|$))?"
)


class Evidence(NamedTuple):
    """Evidence of the hyperparameters of weights.

    names: of the weights. blocks: their number. stated: name of the architecture or end of the file's path. padding: as
    set by the user.
    """

    names: frozenset[str]
    blocks: int
    stated: str
    padding: str | None

    @property
    def name(self) -> re.Match[str] | None:
        """Return the last of timm's or effdet's names in `stated`: the file's precedes its folders'."""
        return [None, *_NAME.finditer(self.stated)][-1]

    @property
    def is_lite(self) -> bool:
        """Return whether the blocks have no squeeze-and-excitation."""
        return not any(".se." in name or "_se_" in name for name in self.names)


def _hyperparameters_of_timm(evidence: Evidence) -> dict[str, Any]:
    """Return those of a port of TensorFlow's weights, or of timm's own.

    Both have the same names and shapes, but other padding, another epsilon of batch normalization and, for Lite,
    another normalization of the input.

    Raises:
        InputError: nothing says which they are, or the name and the padding that the user states differ.
    """
    name, padding = evidence.name, evidence.padding
    own = name and ("symmetric" if name["port"] is None else "same")
    if name and padding not in (None, own) and "/" not in evidence.stated[name.end() :]:  # no folder's name
        raise InputError(
            f"is timm's {name[0]}, with conv_padding={own}; --hparams sets conv_padding={padding}: leave this out, or "
            "rename the file if it has other weights"
        )
    if padding := padding or own:
        return _ported_or_own(evidence, is_port=padding == "same")
    raise InputError(
        "has the names of timm, whose ports of TensorFlow's weights (tf_efficientnet_*) and own "
        "weights (efficientnet_*) differ in nothing but padding, batch normalization and the input's normalization: "
        "name the file as timm does, or set --hparams=conv_padding=same for a port or conv_padding=symmetric"
    )


def _hyperparameters_of_effdet(evidence: Evidence) -> dict[str, Any]:
    """Return those of a port of TensorFlow's detectors, or of effdet's own.

    Raises:
        InputError: the backbone pads symmetrically and the pyramid does not, as in effdet's own Lite0, D4 and D5.
    """
    is_quad = any(name.startswith(QUAD_NODE) for name in evidence.names)
    is_port, name = _REDUNDANT_BIAS in evidence.names, evidence.name
    if evidence.is_lite and not is_port:
        raise InputError(f"is effdet's efficientdet_lite0: {_MIXED}")
    if is_port and name and name[0] in ("efficientdet_d4", "efficientdet_d5") and evidence.padding != "same":
        raise InputError(
            f"may be effdet's {name[0]}: {_MIXED}; if it is tf_{name[0]}, name the file so, or set "
            "--hparams=conv_padding=same"
        )
    return {
        **_ported_or_own(evidence, is_port=is_port),
        "aspect_ratios": _ASPECT_RATIOS,
        **({"fpn_name": "qufpn"} if is_quad else {}),
    }


def _ported_or_own(evidence: Evidence, *, is_port: bool) -> dict[str, Any]:
    is_inception = (is_port and evidence.is_lite) or (evidence.name and evidence.name["inception"])
    return (TENSORFLOW if is_port else _PYTORCH) | (_INCEPTION if is_inception else IMAGENET)


def _hyperparameters_of_efficientnet_pytorch(evidence: Evidence) -> dict[str, Any]:
    of_others = _INCEPTION if "adv-efficientnet" in evidence.stated else IMAGENET
    return TENSORFLOW | (LITE_NORMALIZATION if evidence.is_lite else of_others)


def _hyperparameters_of_torchvision(evidence: Evidence) -> dict[str, Any]:
    return {**_PYTORCH, **IMAGENET} | ({} if evidence.blocks <= _BLOCKS_OF_B4 else {"batch_norm_epsilon": 1e-3})


@dataclass(frozen=True)
class Scheme:
    """Names of a PyTorch program, and how its weights are meant.

    Attributes:
        block: pattern of the path of a block.
        stem: paths of the first convolution and its normalization.
        plain: path of each role in a block without expansion.
        expanded: path of each role in a block with expansion.
        hyperparameters: with which the weights mean what they meant in training.
    """

    block: str
    stem: tuple[str, str]
    plain: Mapping[str, str]
    expanded: Mapping[str, str]
    hyperparameters: Callable[[Evidence], dict[str, Any]]

    def blocks(self, names: Iterable[str]) -> list[str]:
        """Return the paths of the blocks in their order."""
        pattern = re.compile(rf"({self.block}){re.escape(self.plain['depthwise'])}\.weight")
        return sorted({match[1] for match in map(pattern.fullmatch, names) if match}, key=_numbers_in)

    def foreign_layer(self, names: Iterable[str]) -> str | None:
        """Return a layer of a block that no block of an EfficientNet has; None if there is none."""
        layers = {*self.plain.values(), *self.expanded.values()}
        paths = (re.fullmatch(rf"{self.block}(.+)\.\w+", name) for name in names)
        return next((path[0] for path in paths if path and path[1] not in layers), None)


def _paths(text: str) -> dict[str, str]:
    roles = ("depthwise", "depthwise norm", "squeeze", "excite", "project", "project norm", "expand", "expand norm")
    return dict(zip(roles, text.split(), strict=False))


_TIMM = Scheme(
    r"blocks\.\d+\.\d+\.",
    ("conv_stem", "bn1"),
    _paths("conv_dw bn1 se.conv_reduce se.conv_expand conv_pw bn2"),
    _paths("conv_dw bn2 se.conv_reduce se.conv_expand conv_pwl bn3 conv_pw bn1"),
    _hyperparameters_of_timm,
)
SCHEMES = {
    "timm": _TIMM,
    "effdet": replace(
        _TIMM,
        block=rf"backbone\.{_TIMM.block}",
        stem=("backbone.conv_stem", "backbone.bn1"),
        hyperparameters=_hyperparameters_of_effdet,
    ),
    "EfficientNet-PyTorch": Scheme(
        r"_blocks\.\d+\.",
        ("_conv_stem", "_bn0"),
        _paths("_depthwise_conv _bn1 _se_reduce _se_expand _project_conv _bn2"),
        _paths("_depthwise_conv _bn1 _se_reduce _se_expand _project_conv _bn2 _expand_conv _bn0"),
        _hyperparameters_of_efficientnet_pytorch,
    ),
    "torchvision": Scheme(
        r"features\.\d+\.\d+\.block\.",
        ("features.0.0", "features.0.1"),
        _paths("0.0 0.1 1.fc1 1.fc2 2.0 2.1"),
        _paths("1.0 1.1 2.fc1 2.fc2 3.0 3.1 0.0 0.1"),
        _hyperparameters_of_torchvision,
    ),
}


def _numbers_in(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]


def scheme_of(names: Iterable[str]) -> Scheme | None:
    """Return the scheme of a program that names weights like these, or None."""
    names = tuple(names)
    return next((scheme for scheme in SCHEMES.values() if scheme.blocks(names)), None)


def hyperparameters_of_torch(
    names: Iterable[str], *, scheme: Scheme, stated: str, padding: str | None = None
) -> dict[str, Any]:
    """Return the hyperparameters with which weights of a PyTorch program mean what they meant in training.

    `stated`: see `Evidence`; `padding`: the one that a user states.

    Raises:
        InputError: they are of another network, or timm's and nothing tells its ports of TensorFlow's weights apart.
    """
    names = frozenset(names)
    if layer := scheme.foreign_layer(sorted(names)):
        raise InputError(f"has {layer}, a layer of another network than EfficientNet B0 to B7 or Lite")
    return scheme.hyperparameters(Evidence(names, len(scheme.blocks(names)), stated, padding))


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


class _TorchEfficientNets:
    """Weights of the programs in `SCHEMES`, see `_foreign_weights` of the family."""

    def recognizes(self, names: Iterable[str]) -> bool:
        return scheme_of(names) is not None

    def conventions(self, names: Iterable[str], *, stated: str, padding: str | None) -> dict[str, Any]:
        scheme = scheme_of(names)
        assert scheme is not None  # the names are recognized
        return hyperparameters_of_torch(names, scheme=scheme, stated=stated, padding=padding)

    def named_arrays(self, arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
        scheme = scheme_of(arrays)
        assert scheme is not None
        return from_torch(arrays, names, scheme=scheme)


WEIGHTS = _TorchEfficientNets()
