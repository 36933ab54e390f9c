"""Input configuration of a family's network."""

from typing import Any

from dataset.class_names import ClassNames
from dataset.input.augmentation import Augmentation, RandomTile
from dataset.input.copy_paste import CopyPaste
from dataset.input.examples import InputConfig
from dataset.input.tiling import Tiling
from efficientdet.families.hyperparameters import Hyperparameters


def input_config(hparams: Hyperparameters, *, class_names: ClassNames, batch_size: int, **settings: Any) -> InputConfig:
    """Return the input configuration of a family. `settings` are further fields of `InputConfig`."""
    return InputConfig(
        resize=hparams.family.resize_rule(hparams),
        augmentation=training_augmentation(hparams),
        copy_paste=CopyPaste(hparams.copy_paste_probability) if hparams.copy_paste_probability else None,
        tiling=Tiling.of_hyperparameters(vars(hparams)),
        least_visible=hparams.tile_least_visible if hparams.tile_size and hasattr(hparams, "ignore_in_crowds") else 0.0,
        batch_size=batch_size,
        category_ids=class_names.category_ids,
        max_instances_per_image=hparams.max_instances_per_image,
        mask_size=hparams.mask_size,
        train_on_crowds=hparams.train_on_crowds,
        **settings,
    )


def training_augmentation(hparams: Hyperparameters) -> Augmentation:
    """Return the augmentation of a family, or tiles of the images with its scales and flips."""
    augmentation = hparams.family.augmentation(hparams)
    if (tiling := Tiling.of_hyperparameters(vars(hparams))) is None:
        return augmentation
    return RandomTile(
        resize=hparams.family.resize_rule(hparams),
        flip_probability=0.5 if hparams.input_rand_hflip else 0.0,
        tiling=tiling,
        jitter_min=getattr(augmentation, "jitter_min", 1.0),
        jitter_max=getattr(augmentation, "jitter_max", 1.0),
        color_jitter=augmentation.color_jitter,
    )
