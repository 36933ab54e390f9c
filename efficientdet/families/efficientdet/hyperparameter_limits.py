"""Which values hyperparameters may have: one table, so that a wrong one is a line and no training that learns nothing."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dataset.class_names import ClassNames
from efficientdet.families.efficientdet.presets import BACKBONES
from object_detection.errors import InputError

ACTIVATIONS = {  # the reference's names -> Keras's
    "silu": "silu", "swish": "silu", "swish_native": "silu", "hswish": "hard_silu", "relu": "relu", "relu6": "relu6",
    "mish": "mish", "identity": "linear",
}
_COARSEST_LEVEL = 10  # its cells are 1,024 pixels wide


class Limit(NamedTuple):
    """What holds for a value that may be used, and how to say it."""

    holds: Callable[[Any], bool]
    wanted: str


def _one_of(*names: Any) -> Limit:
    return Limit(lambda value: value in names, f"{'one of ' if len(names) > 1 else ''}{', '.join(map(str, names))}")


def _from(low: float) -> Limit:
    return Limit(lambda value: low <= value < math.inf, f"at least {low:g}")


_ABOVE_ZERO = Limit(lambda value: 0 < value < math.inf, "a number above 0")
_SHARE = Limit(lambda value: 0 <= value <= 1, "0 to 1")
_BELOW_ONE = Limit(lambda value: 0 <= value < 1, "0 up to below 1")

LIMITS = {
    "name": Limit(lambda value: bool(value.strip()), "a name"),
    "backbone_name": _one_of(*BACKBONES),
    "num_classes": _from(1),
    "fpn_num_filters": _from(1),
    "fpn_cell_repeats": _from(1),
    "fpn_weight_method": _one_of("fastattn", "sum"),
    "box_class_repeats": _from(0),
    "min_level": Limit(lambda value: 1 <= value <= 5, "1 to 5, the levels of the backbone"),
    "max_level": Limit(lambda value: 2 <= value <= _COARSEST_LEVEL, f"2 to {_COARSEST_LEVEL}"),
    "num_scales": _from(1),
    "anchor_scale": _ABOVE_ZERO,
    "act_type": _one_of(*ACTIVATIONS),
    "survival_prob": Limit(lambda value: 0 < value <= 1, "above 0, up to 1"),
    "normalisations": _one_of(1, 2),
    "max_instances_per_image": _from(1),
    "jitter_min": _ABOVE_ZERO,
    "jitter_max": _ABOVE_ZERO,
    "label_smoothing": _BELOW_ONE,
    "alpha": Limit(lambda value: 0 < value < 1, "above 0 and below 1"),
    "gamma": _from(0),
    "delta": _ABOVE_ZERO,
    "box_loss_weight": _from(0),
    "iou_loss_type": _one_of("iou", "giou", "diou", "ciou"),
    "iou_loss_weight": _from(0),
    "weight_decay": _from(0),
    "optimizer": _one_of("sgd"),
    "momentum": _BELOW_ONE,
    "learning_rate": _ABOVE_ZERO,
    "lr_warmup_init": _from(0),
    "lr_warmup_epoch": _from(0),
    "num_epochs": _from(1),
    "clip_gradients_norm": Limit(lambda value: 0 <= value < math.inf, "0 (none) or more"),
    "moving_average_decay": Limit(lambda value: 0 <= value < 1, "0 (none) up to below 1"),
    "loss_scale": _ABOVE_ZERO,
    "nms_configs.method": _one_of("hard", "gaussian"),
    "nms_configs.iou_thresh": _SHARE,
    "nms_configs.score_thresh": _SHARE,
    "nms_configs.sigma": _ABOVE_ZERO,
    "nms_configs.max_nms_inputs": _from(1),
    "nms_configs.max_output_size": _from(1),
}


def check_limits(values: Mapping[str, Any]) -> None:
    """Raises InputError naming the first key whose value cannot be used; None is a matter of its type."""
    for key, value in values.items():
        if key in LIMITS and value is not None and not LIMITS[key].holds(value):
            raise InputError(f"hparam {key} is {value!r}; wanted {LIMITS[key].wanted}")
    for low, high, relation in (("min_level", "max_level", "below"), ("jitter_min", "jitter_max", "at most")):
        if values[low] > values[high] or (relation == "below" and values[low] == values[high]):
            raise InputError(f"hparam {low} is {values[low]!r} and {high} {values[high]!r}; wanted {low} {relation} {high}")


def stated_classes(num_classes: int | None, class_names: ClassNames) -> str | None:
    """What to say of hparam num_classes, which counts nothing here: the classes are those that the records name.

    The reference counts a background with them, or all numbers up to the largest category id, and its defaults are COCO's
    90 and 91 whatever the data. Raises InputError where another number is meant.
    """
    named = len(class_names)
    largest = max(class_names.category_ids)
    if num_classes in (None, named):
        return None
    if num_classes not in (named + 1, largest, largest + 1, 90, 91):
        raise InputError(f"hparam num_classes is {num_classes}; the data names {named} classes "
                         f"({', '.join(class_names.names[:6])}{', ..' if named > 6 else ''}): leave it out")
    return f"num_classes={num_classes} counts as the reference does; the network has the {named} classes that the data names"
