"""How records become batches of a family's network."""

from typing import Any

from dataset.class_names import ClassNames
from dataset.input.input_config import InputConfig
from efficientdet.families.hyperparameters import Hyperparameters


def input_config(hparams: Hyperparameters, *, class_names: ClassNames, batch_size: int, **settings: Any) -> InputConfig:
    """The family's resize rule and augmentation; `settings` are other fields of `InputConfig`."""
    family = hparams.family
    return InputConfig(
        resize=family.resize_rule(hparams), augmentation=family.augmentation(hparams), batch_size=batch_size,
        category_ids=class_names.category_ids, max_instances_per_image=hparams.max_instances_per_image,
        mask_size=hparams.mask_size, learn_crowds=hparams.learn_crowds, **settings)
