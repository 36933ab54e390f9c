"""Hyperparameters that all families share (input, optimizer and schedule), and the checks of `--hparams`.

The class of a family adds the hyperparameters of its network (families/). All keys are in one flat
namespace, as in the references. Imports neither Keras nor TensorFlow, so that an error is reported before their slow
import.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from dataset.class_names import ClassNames
from dataset.files.pixel_values import WHITE_LEVEL
from dataset.files.untrusted_values import shown
from dataset.input.tiling import MIN_TILE, TILE_OVERLAP, is_tile_size
from efficientdet.families.registry import family_of
from program_support.checked_fields import (
    BelowOne,
    Count,
    CountOrZero,
    FiniteNumber,
    Limit,
    NonNegative,
    Positive,
    Share,
    between,
    one_of,
    plain_types,
    refused_values,
)
from program_support.errors import InputError, nearest_name

SMALLEST_SIDE = 32  # pixels; backbones halve the resolution five times
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("cosine", "stepwise", "constant")
_FACTOR_TABLE = "items PATTERN:FACTOR separated by semicolons, such as '^efficientnet:0.1;/bias$:2'"
_TILE_SIZES = f"0, a side such as 512, or WIDTHxHEIGHT, of {MIN_TILE} pixels or more"


def rate_factors(table: str, names: Iterable[str]) -> list[float]:
    """Return the factor of each weight: the product of the items whose regular expression matches its name.

    Args:
        table: items PATTERN:FACTOR separated by semicolons; factors are above 0.
        names: names of weights as in checkpoints: `class_net/class-0/pointwise_kernel`.

    Raises:
        ValueError: the table has another form, or a pattern matches no name.
    """
    names = list(names)
    factors: dict[str, float] = {}
    for item in filter(None, map(str.strip, table.split(";"))):
        pattern, colon, factor = item.rpartition(":")
        try:
            expression, number = re.compile(pattern), float(factor)
        except (re.error, ValueError) as error:
            raise ValueError(f"{item!r} is not PATTERN:FACTOR") from error
        if not colon or not pattern or not 0 < number < math.inf:
            raise ValueError(f"{item!r} is not PATTERN:FACTOR")
        matching = [name for name in names if expression.search(name)]
        if names and not matching:
            raise ValueError(f"{pattern!r} matches no trainable weight")
        factors.update({name: factors.get(name, 1.0) * number for name in matching})
    return [factors.get(name, 1.0) for name in names]


def _is_factor_table(table: str) -> bool:
    """Return whether a table has the expected form."""
    try:
        rate_factors(table, ())
    except ValueError:
        return False
    return True


class Removed(NamedTuple):
    """Reason why a key was removed, most of them keys of the references."""

    reason: str
    idle: tuple = (None,)  # values without effect, such as the reference's defaults


REMOVED_FROM_ALL = {
    **dict.fromkeys(
        ("input_rand_vflip", "input_rand_rot90"),
        Removed("vertical flips lost accuracy (docs/measurements/accuracy.md)", (False,)),
    ),
    "mosaic_probability": Removed("it gained nothing (docs/measurements/accuracy.md)", (0, 0.0)),
    "mosaic_share": Removed("use copy_paste_share", (0.8,)),
    "bias_rate_factor": Removed("use learning_rate_factors=/bias$:FACTOR", (1.0,)),
    "flat_share": Removed("lr_decay_method=flat_cosine gained nothing that was measured", (0.75,)),
    "lr_patience": Removed("lr_decay_method=plateau gained nothing that was measured", (5,)),
    **dict.fromkeys(
        ("brightness", "contrast", "saturation", "hue"),
        Removed("color jitter gained nothing (docs/measurements/accuracy.md)", (0.0,)),
    ),
}
# Values of training hyperparameters, removed since; checkpoints that were trained with them remain usable
REMOVED_VALUES = {
    "label_assignment=atss",
    "class_loss_type=varifocal",
    "box_loss_type=diou",
    "box_loss_type=ciou",
    "lr_decay_method=flat_cosine",
    "lr_decay_method=plateau",
}


@dataclass(frozen=True, kw_only=True)
class InputHyperparameters:
    """Hyperparameters of the network's input and of augmentation."""

    image_size: int | str | tuple[int, int] = 512  # pixels: side of a square, 'WIDTHxHEIGHT', or (height, width)
    white_level: FiniteNumber = WHITE_LEVEL  # value of images with more than 8 bits that becomes 255; as in the records
    black_level: FiniteNumber = 0.0  # value of images with more than 8 bits that becomes 0; as in the records
    # tiles of the image in pixels, in training and detection: the side of a square, or 'WIDTHxHEIGHT'; 0: none
    tile_size: Annotated[int | str, Limit(lambda size: size == 0 or is_tile_size(size), _TILE_SIZES)] = 0
    tile_overlap: Annotated[float, between(0, 0.9)] = TILE_OVERLAP  # minimum overlap of tiles, as a fraction of a tile
    tile_whole: bool = False  # the complete image is an additional tile, for objects larger than a tile
    # training ignores objects of which a tile shows a smaller share, in families with ignore_in_crowds
    tile_least_visible: Share = 0.5
    max_instances_per_image: Count = 100  # boxes per image in training
    mask_size: CountOrZero = 0  # side of the ground truth mask of an object in pixels; 0: no masks
    masks_in_whole_pixels: bool = False  # torchvision's rule for pasting masks; see `pasted_masks`
    train_on_crowds: bool = False  # use crowd boxes as positives
    input_rand_hflip: bool = True  # random horizontal flip with probability 0.5
    jitter_min: Positive = 0.1  # scale jitter: smallest factor relative to image_size
    jitter_max: Positive = 2.0  # scale jitter: largest factor
    # probability that objects of another image are pasted, by their masks, over a training image
    copy_paste_probability: Share = 0.0
    copy_paste_share: Share = 0.8  # fraction of the schedule with copy-paste; the rest is without


@dataclass(frozen=True, kw_only=True)
class OptimizerHyperparameters:
    """Hyperparameters of the optimizer and of regularization."""

    optimizer: Annotated[str, one_of(*OPTIMIZERS)] = "sgd"  # algorithm
    momentum: BelowOne = 0.9  # momentum of sgd
    # learning rate multipliers of weights by pattern, such as "^efficientnet:0.1" for a backbone: see `rate_factors`
    learning_rate_factors: Annotated[str, Limit(_is_factor_table, _FACTOR_TABLE)] = ""
    beta_1: BelowOne = 0.9  # of adam and adamw
    beta_2: BelowOne = 0.999  # of adam and adamw
    epsilon: Positive = 1e-8  # of adam and adamw
    weight_decay: NonNegative = 4e-5  # factor of half the squared norm in the loss; adamw: decoupled weight decay
    decayed_weights: Annotated[str, one_of("kernels", "all")] = "kernels"  # "all": with batch norm and biases
    clip_gradients_norm: NonNegative = 10.0  # maximum global norm of the gradients; 0: no clipping
    moving_average_decay: BelowOne = 0.9998  # decay of the moving average of the weights per step; 0: no average
    loss_scale: Positive = 2.0**15  # initial loss scale with mixed_float16
    var_freeze_expr: str | None = None  # regular expression of the names of frozen weights
    is_training_bn: bool = True  # train batch norm and update its statistics


@dataclass(frozen=True, kw_only=True)
class ScheduleHyperparameters:
    """Hyperparameters of the learning rate schedule; see `efficientdet.optimization.optimizer`."""

    RATE_PER_64: ClassVar[float] = 0.08  # published peak learning rate for a global batch size of 64
    RATE_OPTIMIZER: ClassVar[str] = "sgd"  # the optimizer that it was published for

    learning_rate: Positive | None = None  # peak learning rate; None: `published_rate`
    lr_decay_method: Annotated[str, one_of(*SCHEDULES)] = "cosine"
    lr_warmup_init: NonNegative = 0.0001  # learning rate of the first step
    lr_warmup_epoch: NonNegative = 1.0  # epochs of warmup
    lr_warmup_least_steps: CountOrZero = 0  # minimum steps of warmup, for short epochs
    first_lr_drop_epoch: Positive = 200.0  # epoch of the first drop of stepwise
    second_lr_drop_epoch: Positive = 250.0  # epoch of the second drop of stepwise
    lr_drop_factor: Positive = 0.1  # learning rate multiplier of each drop of stepwise
    lr_end_factor: Share = 0.0  # fraction of the peak learning rate at which cosines end
    num_epochs: Count = 300  # epochs of the schedule

    def published_rate(self, images: int) -> float:
        """Return the published peak learning rate for a global batch size of `images`."""
        return self.RATE_PER_64 / 64 * images


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(InputHyperparameters, OptimizerHyperparameters, ScheduleHyperparameters):
    """Hyperparameters of a model and its training, without paths and settings of the machine.

    The annotation of a key states its valid values (program_support/checked_fields.py). A subclass may have one level
    of nested dataclasses, whose keys are FIELD.KEY.
    """

    REMOVED: ClassVar[dict[str, Removed]] = REMOVED_FROM_ALL  # and the keys of the family's reference that were removed
    # (key, value) -> the value that the reference uses instead, such as for None
    RESOLVED: ClassVar[dict[tuple[str, Any], Any]] = {}

    model_name: str  # --model_name: the published model that the default values are from
    # label, as in the reference; None: the model name
    name: Annotated[str, Limit(lambda value: bool(value.strip()), "a name")] | None = None
    num_classes: Count | None = None  # determined by the records: see `stated_classes`

    def __post_init__(self):
        if self.name is None:
            object.__setattr__(self, "name", self.model_name)
        for prefix, owner in {"": self, **{f"{key}.": getattr(self, key) for key in self._nested()}}.items():
            for key, value, expected in refused_values(owner):
                raise InputError(f"hparam {prefix}{key} is {shown(value)}; expected {expected}")
        check_order(self, "black_level", "white_level", may_be_equal=False)
        check_order(self, "jitter_min", "jitter_max", may_be_equal=True)
        check_order(self, "first_lr_drop_epoch", "second_lr_drop_epoch", may_be_equal=True)
        height_and_width(self.image_size)

    @classmethod
    def _nested(cls) -> dict[str, type]:
        kinds = {item.name: item.type for item in dataclasses.fields(cls)}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return height_and_width(self.image_size)

    @property
    def family(self) -> Any:
        """The `Family` of the model.

        Raises:
            InputError: no family has it.
        """
        return family_of(self.model_name)

    def overridden(self, overrides: dict[str, Any]) -> "Hyperparameters":
        """Return `with_overrides` of these hyperparameters."""
        return with_overrides(self, overrides)

    @property
    def decays_in_loss(self) -> float:
        """Weight decay as a term of the loss: 0 for adamw, which has decoupled weight decay."""
        return 0.0 if self.optimizer == "adamw" else self.weight_decay

    def comparable(self, key: str) -> Any:
        """Return the value of a key in canonical form, for comparisons."""
        return self.input_size if key == "image_size" else getattr(self, key)

    def to_dict(self) -> dict[str, Any]:
        """Return the hyperparameters as a dictionary for JSON."""
        return dataclasses.asdict(self)


def with_overrides(hyperparameters: Hyperparameters, overrides: Mapping[str, Any]) -> Hyperparameters:
    """Return a copy with some keys changed.

    A removed key of the reference is ignored if its value has no effect.

    Raises:
        InputError: for an unknown key or an invalid value.
    """
    owner, nested = type(hyperparameters), hyperparameters._nested()
    for key in nested:
        if key in overrides and not isinstance(overrides[key], dict):
            raise InputError(
                f"hparam {key} is {shown(overrides[key])}; expected its keys, as in "
                f"{key}.{dataclasses.fields(nested[key])[0].name}={dataclasses.fields(nested[key])[0].default}"
            )
    flat = {
        inner: value
        for key, values in overrides.items()
        if key in nested or not is_removed(key, values, owner.REMOVED)
        for inner, value in flattened(key, values).items()
        if not is_removed(inner, value, owner.REMOVED)
    }
    for key in flat:
        _check_key(key, owner)
    changed = {key: _fitted(owner, owner, key, value) for key, value in flat.items() if "." not in key}
    for key, inner_owner in nested.items():
        inner = {name.removeprefix(f"{key}."): value for name, value in flat.items() if name.startswith(f"{key}.")}
        inner = {name: _fitted(owner, inner_owner, name, value) for name, value in inner.items()}
        changed[key] = dataclasses.replace(getattr(hyperparameters, key), **inner)
    return dataclasses.replace(hyperparameters, **changed)


def flattened(key: Any, value: Any) -> dict[str, Any]:
    """Return a mapping (such as the references' nms_configs) as KEY.INNER items; any other value unchanged."""
    if isinstance(value, dict) and value:
        return {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
    return {str(key): value}


def height_and_width(image_size: int | str | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of 512, '1920x1280' (width x height) or (1280, 1920)."""
    try:
        if isinstance(image_size, str):
            width, height = map(int, image_size.lower().split("x"))
        else:
            height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        large = isinstance(height, int) and isinstance(width, int) and min(height, width) >= SMALLEST_SIDE
    except (ValueError, TypeError):
        large = False
    if not large:
        raise InputError(
            f"hparam image_size is {shown(image_size)}; expected a side such as 512, WIDTHxHEIGHT, or "
            f"HEIGHT*WIDTH, at least {SMALLEST_SIDE} pixels a side"
        )
    return height, width


def _check_key(key: str, owner: type[Hyperparameters]) -> None:
    if key == "model_name":
        raise InputError("hparam model_name does not exist: use the flag --model_name")
    nested = owner._nested()
    valid = [item.name for item in dataclasses.fields(owner) if item.name != "model_name" and item.name not in nested]
    valid += [f"{name}.{item.name}" for name, inner in nested.items() for item in dataclasses.fields(inner)]
    is_removed(key.partition(".")[0], "a mapping", owner.REMOVED)
    if key not in valid:
        nearest = nearest_name(key, [*valid, *owner.REMOVED])
        raise InputError(f"hparam {key} does not exist" + (f"; the nearest is {nearest}" if nearest else ""))


def _fitted(family: type[Hyperparameters], owner: type, key: str, value: Any) -> Any:
    """Convert a value to the declared type of a key; integers are accepted for float keys."""
    if value is None or type(value) in (int, str):
        value = family.RESOLVED.get((key, value), value)
    kinds = plain_types(next(item.type for item in dataclasses.fields(owner) if item.name == key))
    if value is None and type(None) in kinds:
        return None
    if key == "image_size" or tuple in kinds:
        return tuple(value) if isinstance(value, list) else value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise InputError(f"hparam {key} is {shown(value)}; expected {expected}")
    return value


def is_removed(key: str, value: Any, removed: Mapping[str, Removed]) -> bool:
    """Return whether a key was removed and its value has no effect.

    Raises:
        InputError: it would have an effect.
    """
    if key not in removed:
        return False
    if not any(_same(value, idle) for idle in removed[key].idle):
        raise InputError(f"hparam {key} has been removed: {removed[key].reason}; it is {shown(value)}")
    return True


def _same(value: Any, idle: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(idle, tuple):
        return len(value) == len(idle) and all(map(_same, value, idle))
    if isinstance(idle, float) and isinstance(value, int | float):
        return math.isclose(value, idle, rel_tol=1e-5)
    return isinstance(value, bool) == isinstance(idle, bool) and value == idle


def check_order(hparams: Hyperparameters, low: str, high: str, *, may_be_equal: bool) -> None:
    """Raise InputError if the first of two keys is not below the second (or equal to it, if that is allowed)."""
    below, above = getattr(hparams, low), getattr(hparams, high)
    if below > above or (not may_be_equal and below == above):
        raise InputError(
            f"hparam {low} is {shown(below)} and {high} {shown(above)}; expected {low} "
            f"{'at most' if may_be_equal else 'below'} {high}"
        )


def stated_classes(num_classes: int | None, class_names: ClassNames, *, owner: str = "the data") -> str | None:
    """Return a log line about hparam num_classes, which has no effect: `owner`, the data or a checkpoint, has classes.

    The references count the background as a class, or all ids up to the largest category id, and have COCO's 90 and 91
    as defaults.

    Raises:
        InputError: for any other number that differs from the data.
    """
    named = len(class_names)
    largest = max(class_names.category_ids)
    if num_classes in (None, named):
        return None
    if num_classes not in (named + 1, largest, largest + 1, 90, 91):
        raise InputError(
            f"hparam num_classes is {num_classes}; {owner} has {named} classes "
            f"({', '.join(class_names.names[:6])}{', ..' if named > 6 else ''}): leave it out"
        )
    return f"num_classes={num_classes} counts as the reference does; the network has the {named} classes of {owner}"
