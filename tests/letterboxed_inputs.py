"""EfficientDet's input, for tests of what reads records."""

from dataset.input.augmentation import ScaleJitterCrop
from dataset.input.examples import InputConfig
from dataset.input.resize import letterbox


def letterboxed(*, image_size, jitter_min=0.1, jitter_max=2.0, flip_probability=0.5, **settings):
    """Letterboxing, with scale jitter in training; `settings` are the other fields."""
    augmentation = ScaleJitterCrop(image_size, jitter_min, jitter_max, flip_probability)
    return InputConfig(resize=letterbox(image_size), augmentation=augmentation, **settings)
