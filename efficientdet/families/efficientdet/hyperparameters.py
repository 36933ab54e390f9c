"""What `--hparams` sets: the reference's keys and their defaults.

Free of Keras and TensorFlow, so that a wrong key is told before their slow import.
"""

import ast
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from efficientdet.families.efficientdet.gone_hyperparameters import GONE, is_gone
from efficientdet.families.efficientdet.hyperparameter_limits import check_limits
from efficientdet.families.efficientdet.presets import preset
from object_detection.errors import InputError, nearest_name

SMALLEST_SIDE = 32  # of an image: the backbone halves it five times
SQUARE_ROOT_TWO = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))
_NESTED = "nms_configs."
_RESOLVED = {  # key, value -> what the reference takes such a value for, or what stands here for "the default"
    ("fpn_weight_method", None): "fastattn", ("loss_scale", None): 2.0**15, ("max_nms_inputs", 0): 5000,
}


@dataclass(frozen=True, kw_only=True)
class NmsConfigs:
    """Suppression, see object_detection/suppression.py; None of iou_thresh and sigma: 0.5; 0 of max_nms_inputs: 5000."""

    method: str = "gaussian"
    iou_thresh: float | None = None
    score_thresh: float | None = None  # None: 0.001
    sigma: float | None = None
    max_nms_inputs: int = 5000
    max_output_size: int = 100
    per_class: bool = True


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Everything about a model and its training that is not a path or a machine; defaults as published."""

    model_name: str = "efficientdet-d0"  # --model_name: the published model whose values these are where none is given
    name: str = "efficientdet-d0"  # a label, as in the reference
    # network
    backbone_name: str = "efficientnet-b0"
    image_size: int | str | tuple[int, int] = 512  # one side, 'WIDTHxHEIGHT', or (height, width)
    num_classes: int | None = None  # the records name them: see `stated_classes`
    fpn_num_filters: int = 64
    fpn_cell_repeats: int = 3
    fpn_weight_method: str = "fastattn"
    fusion_relu: bool = True
    half_pixel_upsampling: bool = False  # where a level is not half of the next: NVIDIA's rule, not google/automl's
    box_class_repeats: int = 3
    min_level: int = 3
    max_level: int = 7
    num_scales: int = 3
    aspect_ratios: tuple = SQUARE_ROOT_TWO  # (width, height) factors, or single ratios r: sqrt(r), 1 / sqrt(r)
    anchor_scale: float = 4.0
    act_type: str = "silu"
    separable_conv: bool = True
    apply_bn_for_resampling: bool = True
    conv_after_downsample: bool = False
    conv_bn_act_pattern: bool = False
    survival_prob: float | None = None
    is_training_bn: bool = True
    normalisations: int = 1
    # input
    max_instances_per_image: int = 100
    input_rand_hflip: bool = True
    jitter_min: float = 0.1
    jitter_max: float = 2.0
    # losses
    label_smoothing: float = 0.0
    alpha: float = 0.25
    gamma: float = 1.5
    delta: float = 0.1
    box_loss_weight: float = 50.0
    iou_loss_type: str | None = None
    iou_loss_weight: float = 1.0
    weight_decay: float = 4e-5
    # optimizer
    optimizer: str = "sgd"
    momentum: float = 0.9
    learning_rate: float | None = None  # None: 0.08 for every 64 images of the global batch
    lr_warmup_init: float = 0.008
    lr_warmup_epoch: float = 1.0
    num_epochs: int = 300
    clip_gradients_norm: float = 10.0
    moving_average_decay: float = 0.9998
    loss_scale: float = 2.0**15
    var_freeze_expr: str | None = None
    # suppression
    nms_configs: NmsConfigs = field(default_factory=NmsConfigs)

    def __post_init__(self):
        nested = {f"nms_configs.{key}": value for key, value in vars(self.nms_configs).items()}
        check_limits({**vars(self), **nested})
        height_and_width(self.image_size)
        normalised_aspect_ratios(self.aspect_ratios)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def hyperparameters_of(model_name: str, overrides: dict[str, Any]) -> Hyperparameters:
    """The published values of a model with flat overrides such as {"nms_configs.method": "hard"} on top."""
    published = Hyperparameters(model_name=model_name, name=model_name, **preset(model_name))
    stored = {key: value for key, value in overrides.items() if key != "model_name"}  # a checkpoint's hold it too
    return with_overrides(published, stored)


def with_overrides(hyperparameters: Hyperparameters, overrides: dict[str, Any]) -> Hyperparameters:
    """The same with some keys set; raises InputError for a key that does not exist or a value that cannot be.

    A key of the reference that is gone is passed over where its value asks for nothing.
    """
    if "nms_configs" in overrides and not isinstance(overrides["nms_configs"], dict):
        raise InputError(f"hparam nms_configs is {overrides['nms_configs']!r}; wanted its keys, as in nms_configs.method=hard")
    overrides = {inner: inner_value for key, value in overrides.items() for inner, inner_value in _flattened(key, value)}
    wanted = {key: value for key, value in overrides.items() if not is_gone(key, value)}
    for key in wanted:
        _check_key(key)
    flat = {key: _fitted(Hyperparameters, key, value) for key, value in wanted.items() if "." not in key}
    nested = {key.removeprefix(_NESTED): value for key, value in wanted.items() if "." in key}
    nested = {key: _fitted(NmsConfigs, key, value) for key, value in nested.items()}
    nms_configs = dataclasses.replace(hyperparameters.nms_configs, **nested)
    return dataclasses.replace(hyperparameters, **flat, nms_configs=nms_configs)


def parse_overrides(text: str) -> dict[str, Any]:
    """`a=1,b.c=2,x=1*2*3` or the path of a .yaml file -> flat overrides with Python values."""
    if not text:
        return {}
    if "=" not in text or text.endswith((".yaml", ".yml")):
        return _read_yaml(text)
    overrides = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--hparams: {item!r} in {text!r}; wanted key=value items with commas between, or a .yaml file")
        overrides[key] = tuple(map(_literal, value.split("*"))) if "*" in value else _literal(value)
    return overrides


def height_and_width(image_size: int | str | tuple[int, int]) -> tuple[int, int]:
    """512, '1920x1280' (width x height) or (1280, 1920) -> (height, width)."""
    try:
        if isinstance(image_size, str):
            width, height = map(int, image_size.lower().split("x"))
        else:
            height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        large = isinstance(height, int) and isinstance(width, int) and min(height, width) >= SMALLEST_SIDE
    except (ValueError, TypeError):
        large = False
    if not large:
        raise InputError(f"hparam image_size is {image_size!r}; wanted a side such as 512, WIDTHxHEIGHT, or HEIGHT*WIDTH, "
                         f"at least {SMALLEST_SIDE} pixels a side")
    return height, width


def normalised_aspect_ratios(aspect_ratios: Any) -> tuple[tuple[float, float], ...]:
    """Single ratios r as (sqrt(r), 1 / sqrt(r)), pairs (width factor, height factor) as they are."""
    try:
        pairs = tuple((math.sqrt(ratio), 1 / math.sqrt(ratio)) if isinstance(ratio, int | float)
                      else (float(ratio[0]), float(ratio[1])) for ratio in aspect_ratios)
    except (TypeError, ValueError, LookupError, ZeroDivisionError):
        pairs = ()
    if not pairs or not all(0 < factor < math.inf for pair in pairs for factor in pair):
        raise InputError(f"hparam aspect_ratios is {aspect_ratios!r}; wanted ratios above 0 such as 1.0*2.0*0.5")
    return pairs


def _literal(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class _YamlLoader(yaml.SafeLoader):
    """Safe; also reads the tuples that the reference's own files hold."""


_YamlLoader.add_constructor("tag:yaml.org,2002:python/tuple",
                            lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_YamlLoader)
    except OSError as error:
        raise InputError(f"--hparams={path}: cannot be read ({error.strerror}); wanted a .yaml file or key=value") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"--hparams={path}: is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"--hparams={path}: holds {type(content).__name__}; wanted a mapping of keys to values")
    flat = {inner: value for key, values in content.items() for inner, value in _flattened(key, values)}
    # Text as the reference reads it: YAML takes 4e-5, and whatever stands in quotes, for text.
    return {key: _literal(value) if isinstance(value, str) else value for key, value in flat.items()}


def _flattened(key: Any, value: Any) -> list[tuple[str, Any]]:
    """nms_configs with its keys in it as nms_configs.KEY."""
    if key == "nms_configs" and isinstance(value, dict):
        return [(f"{_NESTED}{inner}", inner_value) for inner, inner_value in value.items()]
    return [(str(key), value)]


def _check_key(key: str) -> None:
    if key == "model_name":
        raise InputError("hparam model_name is a flag of its own: use --model_name")
    valid = [f.name for f in dataclasses.fields(Hyperparameters) if f.name not in ("model_name", "nms_configs")]
    valid += [f"{_NESTED}{f.name}" for f in dataclasses.fields(NmsConfigs)]
    if key not in valid:
        nearest = nearest_name(key, [*valid, *GONE])
        raise InputError(f"hparam {key} does not exist" + (f"; the nearest is {nearest}" if nearest else ""))


def _fitted(owner: type, key: str, value: Any) -> Any:
    """The value as the type that the key declares; whole numbers are fine where fractions are."""
    if value is None or type(value) is int:
        value = _RESOLVED.get((key, value), value)
    wanted = next(f.type for f in dataclasses.fields(owner) if f.name == key)
    if value is None and (wanted == Any or type(None) in getattr(wanted, "__args__", ())):
        return None
    kinds = tuple(kind for kind in getattr(wanted, "__args__", (wanted,)) if isinstance(kind, type))
    if key in ("image_size", "aspect_ratios"):
        return tuple(value) if isinstance(value, list) else value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise InputError(f"hparam {key} is {value!r}; wanted {expected}")
    return value
