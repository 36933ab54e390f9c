"""Input configuration of a detector: resize rule, augmentation, batches."""

from dataclasses import dataclass
from typing import Any

from dataset.input.augmentation import Augmentation, ColorJitter, ScaleJitterCrop
from dataset.input.copy_paste import CopyPaste
from dataset.input.resize import ResizeRule, letterbox
from dataset.input.tiling import Tiling
from program_support.processor import available_cores


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """Parameters that determine how records become batches."""

    resize: ResizeRule  # the evaluation's
    augmentation: Augmentation | None = None  # training's; None: the evaluation's resizing
    color_jitter: ColorJitter | None = None  # each augmented image in training
    copy_paste: CopyPaste | None = None  # two augmented images become one in training
    tiling: Tiling | None = None  # evaluation is on its tiles, and the augmentation draws tiles; None: complete images
    # Training ignores objects of which a tile shows a smaller share of the area; 0: it learns all parts of objects
    least_visible: float = 0.0
    batch_size: int  # images or tiles per process
    category_ids: tuple[int, ...]  # ascending; class k is the data set's category_ids[k]
    max_instances_per_image: int = 100  # M
    mask_size: int = 0  # S, side of the mask of each object; 0: none are decoded
    train_on_crowds: bool = False  # crowd boxes are used as positives in training
    seed: int = 0
    pad_to_batch_maximum: bool = False  # fewer slots if the batch needs fewer; XLA requires one fixed shape instead
    use_fake_data: bool = False  # repeat one real batch, to measure a step without its input
    num_threads: int = 0  # 0: TensorFlow's own thread pool

    @classmethod
    def letterboxed(
        cls,
        *,
        image_size: tuple[int, int],
        jitter_min: float = 0.1,
        jitter_max: float = 2.0,
        flip_probability: float = 0.5,
        **settings: Any,
    ) -> "InputConfig":
        """Return EfficientDet's configuration: `letterbox` and `ScaleJitterCrop`; `settings` are the other fields."""
        return cls(
            resize=letterbox(image_size),
            augmentation=ScaleJitterCrop(image_size, jitter_min, jitter_max, flip_probability),
            **settings,
        )

    @property
    def image_size(self) -> tuple[int, int]:
        """H, W of the network input."""
        return self.resize.size

    @property
    def parallel_calls(self) -> int:
        """Number of images that are processed at a time: two more than cores, so that finished ones delay no core."""
        return self.num_threads or available_cores() + 2
