"""Input configuration of a family's network."""

from typing import Any

from dataset.class_names import ClassNames
from dataset.input.color_jitter import ColorJitter
from dataset.input.composition import OneOf
from dataset.input.copy_paste import CopyPaste
from dataset.input.input_config import InputConfig
from dataset.input.mosaic import Mosaic
from dataset.input.orientation import RandomOrientation
from efficientdet.families.hyperparameters import Hyperparameters


def input_config(hparams: Hyperparameters, *, class_names: ClassNames, batch_size: int, **settings: Any) -> InputConfig:
    """Return the input configuration of a family. `settings` are further fields of `InputConfig`."""
    family = hparams.family
    resize = family.resize_rule(hparams)
    colors = {key: getattr(hparams, key) for key in ("brightness", "contrast", "saturation", "hue")}
    mosaic = Mosaic(hparams.mosaic_probability, resize.size) if hparams.mosaic_probability else None
    copy_paste = CopyPaste(hparams.copy_paste_probability) if hparams.copy_paste_probability else None
    flip, rotate = hparams.input_rand_vflip, hparams.input_rand_rot90
    return InputConfig(
        resize=resize,
        augmentation=family.augmentation(hparams),
        color_jitter=ColorJitter(**colors) if any(colors.values()) else None,
        composition=OneOf(mosaic, copy_paste) if mosaic and copy_paste else mosaic or copy_paste,
        orientation=RandomOrientation(flip=flip, rotate=rotate) if flip or rotate else None,
        batch_size=batch_size,
        category_ids=class_names.category_ids,
        max_instances_per_image=hparams.max_instances_per_image,
        mask_size=hparams.mask_size,
        train_on_crowds=hparams.train_on_crowds,
        **settings,
    )
