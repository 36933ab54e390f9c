"""Input configuration of a family's network."""

from typing import Any

from dataset.class_names import ClassNames
from dataset.input.input_config import InputConfig
from dataset.input.mosaic import Mosaic
from efficientdet.families.hyperparameters import Hyperparameters


def input_config(hparams: Hyperparameters, *, class_names: ClassNames, batch_size: int, **settings: Any) -> InputConfig:
    """Return the input configuration of a family. `settings` are further fields of `InputConfig`."""
    family = hparams.family
    resize = family.resize_rule(hparams)
    composition = Mosaic(resize.size, hparams.mosaic_probability) if hparams.mosaic_probability else None
    return InputConfig(
        resize=resize,
        augmentation=family.augmentation(hparams),
        composition=composition,
        batch_size=batch_size,
        category_ids=class_names.category_ids,
        max_instances_per_image=hparams.max_instances_per_image,
        mask_size=hparams.mask_size,
        train_on_crowds=hparams.train_on_crowds,
        **settings,
    )
