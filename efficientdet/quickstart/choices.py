"""Initial weights and settings that a quick start chooses from the data and the measured speed, with reasons."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dataset.records.labeled_records import LabeledImages
from efficientdet.checkpoints.checkpoint import prefixes
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.data_checks.anchor_search import SMALL, object_sides, of_smallest_class
from efficientdet.families.published_files import CLASSIFIER, published_files
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartConfig
from efficientdet.options.train import PRETRAINED_BACKBONE
from efficientdet.quickstart.output_folder import State
from efficientdet.weights.downloads import local_path, shipped_weights
from program_support.errors import InputError

_FLAGS = {"detector": "pretrained_ckpt", "backbone": "backbone_init"}


@dataclass(frozen=True)
class InitialWeights:
    """Weights to start from. kind: as in `QuickstartRecipe`; path: path or name of a file; description: source."""

    kind: str
    description: str
    path: str | None = None

    @property
    def flags(self) -> dict[str, str]:
        """Return the flag of train.py with the weights; none for random ones."""
        return {_FLAGS[self.kind]: self.path} if self.path else {}

    @property
    def line(self) -> str:
        """Return a line for the log: a warning for random weights that --weights does not ask for."""
        is_unwanted = self.kind == "random" and self != _RANDOM
        return f"{'warning: ' if is_unwanted else ''}initial weights: {self.description}"


_RANDOM = InitialWeights("random", f"random, set by --weights={NO_WEIGHTS}")


def weights_of_run(config: QuickstartConfig, folder: Path, *, state: State) -> InitialWeights:
    """Return and print the initial weights; until the training begins, a download that failed is tried again."""
    chosen = state.result("choose")
    if chosen and any(prefixes(folder / name, "ckpt-*") for name in ("model_smaller_input", "model")):
        return InitialWeights(**chosen["weights"])
    weights = initial_weights(config)
    if chosen and chosen["weights"] != asdict(weights):
        state.discard("choose")
    print(weights.line, flush=True)
    return weights


def initial_weights(config: QuickstartConfig) -> InitialWeights:
    """Return the weights that --weights names, else the first that are available, in the order of `_candidates`.

    Raises:
        InputError: --weights names a file that does not fit the model.
    """
    if config.weights == NO_WEIGHTS:
        return _RANDOM
    if config.weights and config.weights != PRETRAINED_BACKBONE:
        file = published_files().get(config.weights)
        kind = "backbone" if file and file.holds == CLASSIFIER else "detector"
        return InitialWeights(kind, f"{kind} of --weights={config.weights}", config.weights)
    reasons = []
    for kind, name, description in _candidates(config):
        try:
            path = local_path(name)
            if name in shipped_weights():
                _check_settings(config, path)
        except InputError as error:
            reasons.append(str(error))
            print(f"no {description}: {error}", flush=True)
        else:
            return InitialWeights(kind, f"{description} ({path})", name)
    if config.weights:
        raise InputError(f"--weights={config.weights}: {'; '.join(reasons) or f'none for {config.model_name}'}")
    reason = "none could be downloaded" if reasons else f"none are published for {config.model_name}"
    return InitialWeights("random", f"random; {reason}")


def _candidates(config: QuickstartConfig) -> list[tuple[str, str, str]]:
    """Return kind, name and description of weights, the best first."""
    hparams, model_name = hyperparameters_of(config.model_name, parse_overrides(config.hparams)), config.model_name
    candidates = [("backbone", hparams.family.imagenet_backbone(hparams), "backbone pretrained on ImageNet")]
    if not config.weights:
        detector = hparams.family.quickstart.detectors.get(model_name, model_name)
        starter = f"{model_name}-starter"
        candidates[:0] = [
            ("detector", starter if starter in shipped_weights() else None, "starter detector of this package"),
            ("detector", detector if detector in published_files() else None, "detector pretrained on COCO"),
        ]
    return [(kind, name, description) for kind, name, description in candidates if name]


def _check_settings(config: QuickstartConfig, starter: str) -> None:
    """Raise InputError if --hparams sets another network or other anchors than those of a starter detector."""
    given = parse_overrides(config.hparams)
    conventions = given.keys() & hyperparameters_of(config.model_name, {}).family.conventions
    description = read_description(starter)
    assert description is not None  # it is part of this package
    ours = hyperparameters_of(config.model_name, given)
    theirs = hyperparameters_of(config.model_name, {key: description.hparams[key] for key in conventions})
    if differing := sorted(key for key in conventions if getattr(ours, key) != getattr(theirs, key)):
        raise InputError(f"--hparams sets {', '.join(differing)} differently")


_MULTIPLE = 32  # pixels: candidate sides are multiples of it
_MIN_EPOCHS, _MAX_EPOCHS = 80, 600  # train.py checks the time after each, and leaves less than one unused
_WARMUP_STEPS = 50
_LENGTHENED = 2  # multiple of the expected steps: the machine may become faster
_PATIENCE, _PASSES = 4, 20  # multiple of the required steps, and times that each image is seen: more gain little
# `target_steps` are for an input of this side and objects of a sixteenth of it. More pixels pay only with more steps,
# and small objects gain more from pixels than large ones do (docs/measurements/accuracy.md).
_TARGET_SIDE, _TARGET_OBJECT, _OBJECT_EXPONENT = 256, 1 / 16, 2 / 3
_MIN_FIRST_OBJECT_SIDE = 7.5  # pixels, in a smaller first input
_FEWER_STEPS = 1 / 3  # share of the required steps, which is enough where a smaller input would have smaller objects
# Seconds after the choice without training itself, as multiples of the seconds of train.py up to its first step: start
# and end of train.py, eval.py and export.py; and for each format.
_AFTER_CHOICE, _EACH_FORMAT = 0.2, 0.24
CALIBRATION_IMAGES = 128  # of batch normalization; more cost seconds of each evaluation (docs/measurements/accuracy.md)
# An evaluation during the training, with its calibration, takes about as long as training on all images.
_EVALUATION_SHARE, _EVALUATED_IMAGES = 0.05, 2000  # share of the time for all, most images
_MIN_SHARE = 0.1  # share of the minutes that training gets
_MIN_STARTS = 20  # seconds of training, as a multiple of those of a start, from which on a second start pays
CONTINUED_RATE = 0.3  # share of the first training's learning rate with which a round continues
FIRST_LR_END_FACTOR = 0.3  # the training with the larger input continues from here


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Measured duration of a training step.

    side: the longer side of the input in pixels. fixed_share: the share of the time that does not depend on it.
    """

    seconds: float
    side: int
    batch_size: int
    accelerated: bool
    fixed_share: float = 0.0

    def at(self, side: int) -> float:
        """Return the estimated seconds of a step at another size; all but the fixed share grows with the pixels."""
        return self.seconds * (self.fixed_share + (1 - self.fixed_share) * (side / self.side) ** 2)


def typical_side(sizes: np.ndarray) -> int:
    """Return the median of the longer sides of images with sizes [n, 2]."""
    return int(np.median(sizes.max(axis=1)))


def object_share(images: LabeledImages) -> float | None:
    """Return the side of the median object of the smallest class relative to the longer side of its image.

    The side is the square root of the object's area. Classes with fewer than 10 objects are ignored; None if there is
    no other.
    """
    return of_smallest_class(images, object_sides(images) / images.sizes.max(axis=1)[images.owners])


def batch_size(images: int, *, accelerated: bool) -> int:
    """Return the batch size: 4 on a CPU, where the number of steps matters most; 16 on an accelerator."""
    return max(1, min(images, 16 if accelerated else 4))


def seconds_after_choice(
    start_seconds: float, *, formats: int, evaluated_images: int, step_time: StepTime, evaluation_cost: float
) -> float:
    """Estimate the seconds of the remaining steps except training: program start, evaluation, export.

    `start_seconds` are the seconds of train.py up to the end of its first step, including compilation;
    `evaluated_images` counts each once for each evaluation; `evaluation_cost` is the time to evaluate an image relative
    to a training step's time per image.
    """
    evaluation = evaluated_images * evaluation_cost * step_time.seconds / step_time.batch_size
    return (_AFTER_CHOICE + _EACH_FORMAT * formats) * start_seconds + evaluation


def training_seconds(minutes: float, *, others: float) -> float:
    """Return the seconds left for training if the other steps take `others` seconds; at least a tenth of all."""
    return max(60 * minutes - others, 60 * _MIN_SHARE * minutes)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Time and required steps of a training.

    seconds: of training. start_seconds: of train.py up to its first step. target_steps: for a good AP with an input of
    256 pixels and objects of 16. object_share: side of the objects relative to the image's, if known. min_side: the
    smallest side of an input in pixels. smaller_input_first: whether a training with a smaller input may come first.
    """

    step_time: StepTime
    seconds: float
    start_seconds: float
    target_steps: int
    object_share: float | None
    min_side: int
    smaller_input_first: bool

    @property
    def is_long(self) -> bool:
        """True if there is time for two trainings: another start of train.py takes at most a tenth of it."""
        return self.seconds >= _MIN_STARTS * self.start_seconds

    def inputs(self, size: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the inputs (height, width) of the trainings that share the seconds; the last is `size`.

        A smaller first one has about half the sides, as more steps fit then, but more where objects would be too small
        (docs/measurements/accuracy.md). It is left out if it has over half of the pixels, or if the time is short.
        """
        if not self.smaller_input_first or not self.is_long:
            return [size]
        scale = max(1 / 2, _MIN_FIRST_OBJECT_SIDE / (self.object_share or math.inf) / max(size))
        height, width = (max(self.min_side, math.ceil(scale * side / _MULTIPLE) * _MULTIPLE) for side in size)
        is_smaller = 2 * height * width <= size[0] * size[1]
        return [(height, width), size] if is_smaller else [size]

    def steps(self, side: int) -> float:
        """Return the number of steps of all trainings that fit into the seconds, for a square input."""
        inputs = self.inputs((side, side))
        return sum(self.seconds / len(inputs) / self.step_time.at(height) for height, _ in inputs)

    def required_steps(self, side: int) -> int:
        """Return the number of steps for a good AP: proportional to the pixels, and more for large objects.

        A third is enough for the smallest input with objects of 12 pixels or more, and for smaller inputs.
        """
        share = self.object_share
        objects = (share or _TARGET_OBJECT) / _TARGET_OBJECT
        steps = self.target_steps * (side / _TARGET_SIDE) ** 2 * objects**_OBJECT_EXPONENT
        has_small_objects = share is not None and share * (side - _MULTIPLE) < SMALL
        return round(_FEWER_STEPS * steps if has_small_objects else steps)


def possible_sides(largest: int, published: int, *, min_side: int) -> list[int]:
    """Return the longer sides of an input to choose from, ascending: up to `largest` and the published model's."""
    most = max(min_side, min(published, math.ceil(largest / _MULTIPLE) * _MULTIPLE))
    return list(range(most, min_side - 1, -_MULTIPLE))[::-1]


def image_side(largest: int, published: int, budget: Budget, *, usable: int = 0) -> tuple[int, str]:
    """Return the longer side of the network's input and the reason.

    It is the largest side at which the required steps fit into the seconds of training, but at least `usable`, from
    which on objects match anchors. It is limited by `largest`, that of the images, and that of the published model.
    """
    share = budget.object_share
    sides = [side for side in possible_sides(largest, published, min_side=budget.min_side) if side >= usable]
    for side in reversed(sides):
        steps = budget.required_steps(side)
        if budget.steps(side) >= steps:
            limit = (
                "as large as the images"
                if side >= largest
                else "the model's default"
                if side == published
                else f"the largest at which {steps} steps fit into the time limit"
            )
            return side, limit + ("" if share is None else f", with objects of about {share * side:.0f} pixels")
    condition = " at which objects match anchors" if sides[0] > budget.min_side else ""
    return sides[0], f"the smallest{condition}; the steps needed for a good AP exceed the time limit"


@dataclass(frozen=True, kw_only=True)
class Length:
    """Length of the training: flags of train.py."""

    num_epochs: int  # upper limit
    num_examples_per_epoch: int
    checkpoint_period: int
    warmup_epochs: float


def training_length(images: int, budget: Budget, *, side: int, seconds: float) -> tuple[Length, str]:
    """Return number and length of the epochs that fit into the seconds of one training, and the reason.

    Epochs are short, because the time is checked after each; an epoch need not cover the data set. There are at most
    four times the required steps, or 20 passes over the images. Evaluations before the last take at most a twentieth of
    the time.
    """
    step_time, all_images = budget.step_time, math.ceil(images / budget.step_time.batch_size)
    enough = _PATIENCE * max(budget.target_steps, budget.required_steps(side))
    max_steps = max(enough, _PASSES * all_images)
    affordable_steps = max(seconds / step_time.at(side), 1)
    most = min(_LENGTHENED * affordable_steps, max_steps)
    least = math.ceil(max(enough, most) / _MAX_EPOCHS)
    steps_per_epoch = max(least, min(all_images, int(affordable_steps / _MIN_EPOCHS)))
    epochs = max(1, math.ceil(most / steps_per_epoch))
    expected = min(affordable_steps, max_steps) / steps_per_epoch
    evaluation = min(images, _EVALUATED_IMAGES) * step_time.at(side) / step_time.batch_size
    evaluations = min(4, int(_EVALUATION_SHARE * seconds / evaluation))
    length = Length(
        num_epochs=epochs,
        num_examples_per_epoch=steps_per_epoch * step_time.batch_size,
        checkpoint_period=max(1, math.ceil(expected / evaluations)) if evaluations else epochs,
        warmup_epochs=max(1.0, round(_WARMUP_STEPS / steps_per_epoch, 2)),
    )
    return length, (
        f"at most {epochs * steps_per_epoch} steps of {step_time.batch_size} images"
        + ("; further steps would gain little" if affordable_steps > max_steps else ", limited by the time")
    )


def stretched_shape(side: int, sizes: np.ndarray, *, min_side: int) -> str:
    """Return `image_size` with a longer side of `side` pixels in the aspect ratio of most images, sizes [n, 2]."""
    height, width = np.median(sizes, axis=0)
    exact = side * min(height, width) / max(height, width)
    shorter = side if side - exact < _MULTIPLE / 2 else max(min_side, round(exact / _MULTIPLE) * _MULTIPLE)
    return f"{side}x{shorter}" if width > height else f"{shorter}x{side}"
