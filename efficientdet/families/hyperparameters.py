"""What `--hparams` sets, of every family: the input, the optimizer and the schedule, each apart; and how it is read.

A family's own class adds what shapes its network (families/*/hyperparameters.py). All keys stand side by side in it, as in
the references' flat configurations. Free of Keras and TensorFlow, so that a wrong key is reported before their slow import.
"""

import dataclasses
import sys
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from dataset.class_names import ClassNames
from dataset.files.untrusted_values import shown
from efficientdet.families.rate_factors import EXPECTED, is_table
from efficientdet.families.registry import family_of
from efficientdet.families.removed_hyperparameters import RENAMED, Gone, is_gone
from program_support.checked_fields import (
    BelowOne,
    Count,
    CountOrZero,
    Limit,
    NonNegative,
    Positive,
    one_of,
    plain_types,
    refused_values,
)
from program_support.errors import InputError, nearest_name

SMALLEST_SIDE = 32  # of an image: backbones halve it five times
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("cosine", "stepwise", "constant", "flat_cosine")


@dataclass(frozen=True, kw_only=True)
class InputHyperparameters:
    """How an image becomes the network's input, and which images are made of it for training."""

    image_size: int | str | tuple[int, int] = 512  # one side, 'WIDTHxHEIGHT', or (height, width)
    max_instances_per_image: Count = 100
    mask_size: CountOrZero = 0  # side in pixels of the mask that each object brings; 0: none
    masks_in_whole_pixels: bool = False  # detected masks are pasted into images by torchvision's rule: see `pasted_masks`
    train_on_crowds: bool = False  # in training a crowd's box is an object as any other
    input_rand_hflip: bool = True
    jitter_min: Positive = 0.1
    jitter_max: Positive = 2.0
    mosaic_probability: Annotated[float, Limit(lambda value: 0 <= value <= 1, "0 (none) to 1")] = 0.0  # of parts of four images


@dataclass(frozen=True, kw_only=True)
class OptimizerHyperparameters:
    """How a gradient changes the weights."""

    optimizer: Annotated[str, one_of(*OPTIMIZERS)] = "sgd"
    momentum: BelowOne = 0.9  # of sgd, as the next one
    bias_rate_factor: Positive = 1.0  # what the learning rate of biases is multiplied by
    # of single weights, such as "^efficientnet:0.1" for a backbone: see `rate_factors`
    learning_rate_factors: Annotated[str, Limit(is_table, EXPECTED)] = ""
    beta_1: BelowOne = 0.9  # of adam and adamw, as the next two
    beta_2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 4e-5  # half the squared norm in the loss; of adamw a share of the weights at each step
    clip_gradients_norm: NonNegative = 10.0  # 0: none
    moving_average_decay: BelowOne = 0.9998  # 0: none
    loss_scale: Positive = 2.0**15
    var_freeze_expr: str | None = None
    is_training_bn: bool = True


@dataclass(frozen=True, kw_only=True)
class ScheduleHyperparameters:
    """The learning rate of each step; see `efficientdet.training.schedule`."""

    RATE_PER_64: ClassVar[float] = 0.08  # the family's published rate for 64 images per step

    learning_rate: Positive | None = None  # None: `published_rate`
    lr_decay_method: Annotated[str, one_of(*SCHEDULES)] = "cosine"
    lr_warmup_init: NonNegative = 0.0001
    lr_warmup_epoch: NonNegative = 1.0
    lr_warmup_least_steps: CountOrZero = 0  # where epochs are short
    first_lr_drop_epoch: Positive = 200.0  # of stepwise, as the next two
    second_lr_drop_epoch: Positive = 250.0
    lr_drop_factor: Positive = 0.1
    flat_share: BelowOne = 0.75  # of the epochs, before the cosine of flat_cosine
    num_epochs: Count = 300

    def published_rate(self, images: int) -> float:
        """The highest learning rate of the published recipe where a step has so many images."""
        return self.RATE_PER_64 / 64 * images


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(InputHyperparameters, OptimizerHyperparameters, ScheduleHyperparameters):
    """Everything about a model and its training that is not a path or a machine.

    The type of a key states which values it takes (program_support/checked_fields.py). A subclass may have one level of nested
    dataclasses, whose keys are FIELD.KEY.
    """

    GONE: ClassVar[dict[str, Gone]] = {}  # keys of the family's reference that are none here
    # (key, value) -> what the reference takes such a value for, or what stands here for "the default"
    RESOLVED: ClassVar[dict[tuple[str, Any], Any]] = {}

    model_name: str  # --model_name: the published model whose values these are where none is given
    # a label, as in the reference; the model's where none is given
    name: Annotated[str, Limit(lambda value: bool(value.strip()), "a name")] | None = None
    num_classes: Count | None = None  # the records name them: see `stated_classes`

    def __post_init__(self):
        if self.name is None:
            object.__setattr__(self, "name", self.model_name)
        for prefix, owner in {"": self, **{f"{key}.": getattr(self, key) for key in self._nested()}}.items():
            for key, value, expected in refused_values(owner):
                raise InputError(f"hparam {prefix}{key} is {shown(value)}; expected {expected}")
        check_order(self, "jitter_min", "jitter_max", may_be_equal=True)
        check_order(self, "first_lr_drop_epoch", "second_lr_drop_epoch", may_be_equal=True)
        height_and_width(self.image_size)

    @classmethod
    def _nested(cls) -> dict[str, type]:
        return {item.name: item.type for item in dataclasses.fields(cls) if dataclasses.is_dataclass(item.type)}

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return height_and_width(self.image_size)

    @property
    def family(self) -> Any:
        """The `Family` that has the model; raises InputError where none has."""
        return family_of(self.model_name)

    def overridden(self, overrides: dict[str, Any]) -> "Hyperparameters":
        """See `with_overrides`."""
        return with_overrides(self, overrides)

    @property
    def decays_in_loss(self) -> float:
        """Weight decay that is a term of the loss; adamw decays the weights themselves."""
        return 0.0 if self.optimizer == "adamw" else self.weight_decay

    def comparable(self, key: str) -> Any:
        """The value of a key such that two ways of writing the same are equal."""
        return self.input_size if key == "image_size" else getattr(self, key)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def with_overrides(hyperparameters: Hyperparameters, overrides: dict[str, Any]) -> Hyperparameters:
    """The same with some keys set; raises InputError for a key that does not exist or a value that cannot be.

    A key of the reference that is gone is passed over where its value asks for nothing.
    """
    owner, nested = type(hyperparameters), hyperparameters._nested()
    for key in nested:
        if key in overrides and not isinstance(overrides[key], dict):
            raise InputError(f"hparam {key} is {shown(overrides[key])}; expected its keys, as in "
                             f"{key}.{dataclasses.fields(nested[key])[0].name}={dataclasses.fields(nested[key])[0].default}")
    wanted = {inner: value for key, values in overrides.items() if key in nested or not is_gone(key, values, owner.GONE)
              for inner, value in flattened(key, values).items() if not is_gone(inner, value, owner.GONE)}
    for key in wanted:
        _check_key(key, owner)
    changed = {key: _fitted(owner, owner, key, value) for key, value in wanted.items() if "." not in key}
    for key, inner_owner in nested.items():
        inner = {name.removeprefix(f"{key}."): value for name, value in wanted.items() if name.startswith(f"{key}.")}
        inner = {name: _fitted(owner, inner_owner, name, value) for name, value in inner.items()}
        changed[key] = dataclasses.replace(getattr(hyperparameters, key), **inner)
    return dataclasses.replace(hyperparameters, **changed)


def flattened(key: Any, value: Any) -> dict[str, Any]:
    """A mapping of keys (such as the references' nms_configs) as KEY.INNER each; any other value as it is."""
    if isinstance(value, dict) and value:
        return {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
    return {str(key): value}


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
        raise InputError(f"hparam image_size is {shown(image_size)}; expected a side such as 512, WIDTHxHEIGHT, or "
                         f"HEIGHT*WIDTH, at least {SMALLEST_SIDE} pixels a side")
    return height, width


def _check_key(key: str, owner: type[Hyperparameters]) -> None:
    if key == "model_name":
        raise InputError("hparam model_name is a flag of its own: use --model_name")
    nested = owner._nested()
    valid = [item.name for item in dataclasses.fields(owner) if item.name != "model_name" and item.name not in nested]
    valid += [f"{name}.{item.name}" for name, inner in nested.items() for item in dataclasses.fields(inner)]
    if key in RENAMED:
        raise InputError(f"hparam {key} is now {RENAMED[key]}")
    if key not in valid:
        nearest = nearest_name(key, [*valid, *owner.GONE])
        raise InputError(f"hparam {key} does not exist" + (f"; the nearest is {nearest}" if nearest else ""))


def _fitted(family: type[Hyperparameters], owner: type, key: str, value: Any) -> Any:
    """The value as the type that the key declares; whole numbers are fine where fractions are."""
    if value is None or type(value) is int:
        value = family.RESOLVED.get((key, value), value)
    kinds = plain_types(next(item.type for item in dataclasses.fields(owner) if item.name == key))
    if value is None and type(None) in kinds:
        return None
    if key == "image_size" or tuple in kinds:
        return tuple(value) if isinstance(value, list) else value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool) \
            and abs(value) <= sys.float_info.max:
        return float(value)
    if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise InputError(f"hparam {key} is {shown(value)}; expected {expected}")
    return value


def check_order(hparams: Hyperparameters, low: str, high: str, *, may_be_equal: bool) -> None:
    """Raise InputError where the first of two keys is not below the other (or, where it may be, equal to it)."""
    below, above = getattr(hparams, low), getattr(hparams, high)
    if below > above or (not may_be_equal and below == above):
        raise InputError(f"hparam {low} is {shown(below)} and {high} {shown(above)}; expected {low} "
                         f"{'at most' if may_be_equal else 'below'} {high}")


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
