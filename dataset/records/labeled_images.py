"""Images with their boxes as arrays, independent of their source, for analyses of complete data sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataset.class_names import ClassNames


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledImages:
    """n images with N objects, grouped by image in ascending order."""

    class_names: ClassNames
    names: Sequence[str]  # n file names
    sizes: np.ndarray  # [n, 2] int32, height and width in pixels
    owners: np.ndarray  # [N] int32, the image of each object, 0 .. n-1
    boxes: np.ndarray  # [N, 4] float32 yxyx, pixels of the image
    classes: np.ndarray  # [N] int32, 0 .. K-1
    crowd: np.ndarray  # [N] bool, used neither in training, unless train_on_crowds, nor in evaluation
    difficult: np.ndarray  # [N] bool, not used in evaluation
    digests: Sequence[bytes]  # equal for equal files; empty if unknown
    encoded: Callable[[int], bytes]  # the file of an image by its number, from any thread; raises OSError or InputError
    left_out: Sequence[str] = ()  # unusable boxes, not among the N: file name and reason of each
    images_left_out: Sequence[str] = ()  # unusable images, not among the n: file name and reason of each

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self.sizes)

    def objects_of(self, number: int) -> slice:
        """Return the slice of the objects of an image."""
        return slice(*np.searchsorted(self.owners, [number, number + 1]).tolist())

    def counts(self) -> np.ndarray:
        """Return the number of objects of each image, [n] int64."""
        return np.bincount(self.owners, minlength=len(self))

    def images_with(self) -> np.ndarray:
        """Return the number of images that contain each class, [K] int64."""
        count = len(self.class_names)
        pairs = np.unique(self.owners.astype(np.int64) * count + self.classes)
        return np.bincount(pairs % count, minlength=count)


def inside(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes [N, 4] clipped to their images of `sizes` [N, 2], and which have an area left, [N] bool."""
    cut = np.clip(boxes, 0.0, np.tile(sizes, 2)).astype(np.float32)
    return cut, np.all(cut[:, 2:] > cut[:, :2], axis=1)
