"""Restore a detector from a checkpoint; --hparams overrides its hyperparameters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.checkpoint_classes import assumed_classes, class_note
from efficientdet.checkpoints.pretrained_weights import Source, class_rows_in, load_weights, read_source
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of
from model.detection_model import DetectionModel
from program_support.errors import InputError

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A detector with weights, and its hyperparameters, classes and description. `notes`: lines for the user."""

    detector: DetectionModel
    hparams: Hyperparameters
    class_names: ClassNames
    description: Description
    notes: tuple[str, ...] = ()

    @property
    def resize(self) -> "ResizeRule":
        """Rule by which images are resized to the network's input."""
        return self.hparams.family.resize_rule(self.hparams)


def restore_detector(config: ModelConfig, *, precision: str = "float32") -> Restored:
    """Read a checkpoint of any kind into a detector.

    Model and hyperparameters are those of the checkpoint if it states them, else those of `model_name`, changed by
    `overrides`. Classes are `class_names`, which must have the names in the checkpoint (category ids may differ), else
    the checkpoint's. Those of a checkpoint that names none are COCO's if it has as many rows, else numbered.

    Raises:
        InputError: the checkpoint and the configuration disagree.
    """
    assert config.ckpt_path is not None  # otherwise there is nothing to restore
    source = read_source(config.ckpt_path, class_names=config.checkpoint_classes)
    model_name, class_names = config.model_name, config.class_names
    stated = source.description.model_name if source.description else None
    if config.model_name_given and stated not in (None, model_name):
        raise InputError(f"{source.prefix}: is a checkpoint of {stated}, not of --model_name={model_name}")
    if source.class_names is not None and class_names is not None and not source.class_names.has_names_of(class_names):
        raise InputError(
            f"{source.prefix}: its classes are {', '.join(source.class_names.names[:6])}; those of the data are "
            f"{', '.join(class_names.names[:6])}"
        )
    family = hyperparameters_of(stated or model_name, {}).family
    hparams = with_overrides(
        hyperparameters_of(stated or model_name, source.conventions(family, config.overrides)), config.overrides
    )
    with keras.StatelessScope():  # variables are initialized at its end, see `set_value`
        detector, names, notes = _built(hparams, source, config, precision=precision)
        load_weights(detector.network, source, family=family, class_names=names, averaged=config.averaged)
    description = Description(
        model_name=hparams.model_name,
        hparams=hparams.to_dict(),
        categories=names.to_categories(),
        weights="averaged" if config.averaged else "raw",
        global_step=source.description.global_step if source.description else 0,
        score_thresholds=source.description.score_thresholds if source.description else {},
    )
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description, notes=notes)


def _built(
    hparams: Hyperparameters, source: Source, config: ModelConfig, *, precision: str
) -> tuple[DetectionModel, ClassNames, tuple[str, ...]]:
    """Return a detector for the classes of a checkpoint, these classes, and lines on their origin."""
    names, num_classes = config.class_names or source.class_names, config.overrides.get("num_classes")
    owner = "the data" if config.class_names else "the checkpoint"
    if names is not None:
        stated_classes(num_classes, names, owner=owner)
    detector = build_detector(hparams, num_classes=len(names or COCO_2017), precision=precision)
    if source.description is not None:
        assert names is not None  # a description names them
        return detector, names, ()
    count = class_rows_in(detector.network, source, family=hparams.family)
    if names is None:
        names = assumed_classes(count, hparams.family)
        stated_classes(num_classes, names, owner=owner)
        if len(names) != len(COCO_2017):
            detector = build_detector(hparams, num_classes=len(names), precision=precision)
    of_data = config.class_names is not None
    return detector, names, (class_note(source.prefix, source.stated, names=names, of_data=of_data, count=count),)
