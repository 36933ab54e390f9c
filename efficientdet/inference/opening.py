"""A detector to look at or to run: of a checkpoint, or of a model's name with random weights."""

from dataclasses import dataclass
from typing import Any

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.restore import Restored, restore_detector
from efficientdet.devices.runtime import Runtime, start_runtime
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which detector, and how it is computed."""

    ckpt_path: str | None  # None: random weights, always the same
    model_name: str
    model_name_given: bool
    overrides: dict[str, Any]
    averaged: bool = True
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    runtime: str = "keras"  # what runs the network
    int8_images: tuple[str, ...] = ()  # to take the ranges of activations from, where it is to run in 8 bits


def open_model(config: ModelConfig) -> tuple[Restored, Runtime]:
    """The detector of a checkpoint, or one with random weights."""
    runtime = start_runtime(precision=config.precision, amp=config.amp, use_xla=config.use_xla, seed=0)
    if config.ckpt_path:
        restored = restore_detector(
            config.ckpt_path, model_name=config.model_name, model_name_given=config.model_name_given,
            overrides=config.overrides, averaged=config.averaged, precision=runtime.precision)
    else:
        hparams = with_overrides(hyperparameters_of(config.model_name, {}), config.overrides)
        restored = _with_random_weights(hparams, precision=runtime.precision)
    return restored, runtime


def _with_random_weights(hparams: Hyperparameters, *, precision: str) -> Restored:
    names = _names_for(hparams.num_classes)
    detector = build_detector(hparams, num_classes=len(names), precision=precision)
    description = Description(model_name=hparams.model_name, hparams=hparams.to_dict(), categories=names.to_categories(),
                              weights="raw")
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description)


def _names_for(num_classes: int | None) -> ClassNames:
    if num_classes is None or num_classes == len(COCO_2017):
        return COCO_2017
    numbers = tuple(range(1, num_classes + 1))
    return ClassNames(numbers, tuple(f"class {number}" for number in numbers))
