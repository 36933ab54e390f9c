"""What `--hparams` sets: the reference's keys, their defaults, and why some of its keys are gone.

Free of Keras and TensorFlow, so that a wrong key is told before their slow import.
"""

import ast
import dataclasses
import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from efficientdet.presets import preset
from object_detection.errors import InputError

SQUARE_ROOT_TWO = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))

GONE = {
    "backbone_config": "the backbones are those of keras.applications",
    "backbone_init": "use --backbone_init",
    "ckpt_var_scope": "checkpoints hold one model",
    "data_format": "images are always channels last; XLA chooses its own layout",
    "dataset_type": "records are TFRecords",
    "drop_remainder": "every training batch is full, the last evaluation batch is filled up",
    "fpn_config": "the pyramid is the BiFPN",
    "fpn_name": "the pyramid is the BiFPN",
    "grad_checkpoint": "it never did anything",
    "heads": "there is no segmentation head",
    "img_summary_steps": "it never did anything",
    "label_map": "class names travel with the records",
    "lr_decay_method": "the schedule is always the cosine",
    "mixed_precision": "use --precision",
    "mixed_precision_on_inputs": "it never did anything",
    "nms_configs.pyfunc": "there is one suppression, on the device",
    "positives_momentum": "positives are counted in the batch",
    "regenerate_source_id": "a record without a number gets one from its bytes anyway",
    "sample_image": "use infer.py",
    "seg_num_classes": "there is no segmentation head",
    "shuffle_buffer": "every epoch is a permutation of all records",
    "skip_crowd_during_training": "crowds are never objects to learn",
    "skip_mismatch": "a mismatch is an error; heads of other classes start anew",
    "target_size": "the scale jitter is relative to image_size",
    "use_keras_model": "there is no other",
}


@dataclass(frozen=True, kw_only=True)
class NmsConfigs:
    """Suppression, see object_detection/suppression.py; None of iou_thresh and sigma: 0.5."""

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

    name: str = "efficientdet-d0"
    # network
    backbone_name: str = "efficientnet-b0"
    image_size: int | str | tuple[int, int] = 512  # one side, 'WIDTHxHEIGHT', or (height, width)
    num_classes: int | None = None  # None: as many as the records name
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
        if self.optimizer != "sgd":
            raise InputError(f"hparam optimizer is {self.optimizer!r}; wanted sgd")
        if self.act_type not in ACTIVATIONS:
            raise InputError(f"hparam act_type is {self.act_type!r}; wanted one of {', '.join(ACTIVATIONS)}")
        if not 0 <= self.moving_average_decay < 1:
            raise InputError(f"hparam moving_average_decay is {self.moving_average_decay}; wanted 0 (none) up to below 1")
        if self.num_epochs < 1:
            raise InputError(f"hparam num_epochs is {self.num_epochs}; wanted at least 1")
        height_and_width(self.image_size)
        normalised_aspect_ratios(self.aspect_ratios)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "swish_native": "silu", "hswish": "hard_silu", "relu": "relu", "relu6": "relu6",
    "mish": "mish", "identity": "linear",
}


def hyperparameters_of(model_name: str, overrides: dict[str, Any]) -> Hyperparameters:
    """The published values of a model with flat overrides such as {"nms_configs.method": "hard"} on top."""
    return with_overrides(Hyperparameters(**{"name": model_name, **preset(model_name)}), overrides)


def with_overrides(hyperparameters: Hyperparameters, overrides: dict[str, Any]) -> Hyperparameters:
    """The same with some keys set; raises InputError for a key that does not exist or a value of the wrong kind."""
    flat = {key: value for key, value in overrides.items() if not key.startswith("nms_configs.")}
    nested = {key.removeprefix("nms_configs."): value for key, value in overrides.items() if key not in flat}
    for key in overrides:
        _check_key(key)
    if isinstance(flat.get("nms_configs"), dict):
        nested = {**flat.pop("nms_configs"), **nested}
    flat = {key: _fitted(Hyperparameters, key, value) for key, value in flat.items()}
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
        elif isinstance(image_size, int):
            height = width = image_size
        else:
            height, width = map(int, image_size)
    except (ValueError, TypeError):
        height = width = 0
    if min(height, width) < 1:
        raise InputError(f"hparam image_size is {image_size!r}; wanted a side such as 512, WIDTHxHEIGHT, or HEIGHT*WIDTH")
    return height, width


def normalised_aspect_ratios(aspect_ratios: Any) -> tuple[tuple[float, float], ...]:
    """Single ratios r as (sqrt(r), 1 / sqrt(r)), pairs (width factor, height factor) as they are."""
    try:
        return tuple((math.sqrt(ratio), 1 / math.sqrt(ratio)) if isinstance(ratio, int | float)
                     else (float(ratio[0]), float(ratio[1])) for ratio in aspect_ratios)
    except (TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        raise InputError(f"hparam aspect_ratios is {aspect_ratios!r}; wanted ratios such as 1.0*2.0*0.5") from error


def _literal(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--hparams={path}: cannot be read ({error.strerror}); wanted a .yaml file or key=value") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--hparams={path}: is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"--hparams={path}: holds {type(content).__name__}; wanted a mapping of keys to values")
    return {f"nms_configs.{inner}" if key == "nms_configs" else key: inner_value
            for key, value in content.items()
            for inner, inner_value in (value.items() if key == "nms_configs" and isinstance(value, dict) else [(key, value)])}


def _check_key(key: str) -> None:
    valid = [f.name for f in dataclasses.fields(Hyperparameters)]
    valid += [f"nms_configs.{f.name}" for f in dataclasses.fields(NmsConfigs)]
    if key in GONE:
        raise InputError(f"hparam {key} is gone: {GONE[key]}")
    if key not in valid:
        nearest = difflib.get_close_matches(key, valid, n=1, cutoff=0.4)
        hint = f"; the nearest is {nearest[0]}" if nearest else ""
        raise InputError(f"hparam {key} does not exist{hint}")


def _fitted(owner: type, key: str, value: Any) -> Any:
    """The value as the type that the key declares; whole numbers are fine where fractions are."""
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
