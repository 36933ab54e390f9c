"""Images with their boxes as arrays, whatever they were read from: what looks at a data set as a whole works on these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataset.class_names import ClassNames


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledImages:
    """n images with N objects, those of an image side by side, images ascending."""

    class_names: ClassNames
    names: Sequence[str]  # of the n files
    sizes: np.ndarray  # [n, 2] int32, height and width in pixels
    owners: np.ndarray  # [N] int32, the image of each object, 0 .. n-1
    boxes: np.ndarray  # [N, 4] float32 yxyx, pixels of the image
    classes: np.ndarray  # [N] int32, 0 .. K-1
    crowd: np.ndarray  # [N] bool
    digests: Sequence[bytes]  # equal where files are equal; empty where nothing is known
    encoded: Callable[[int], bytes]  # the file of an image by its number, from any thread; raises OSError or InputError
    left_out: Sequence[str] = ()  # boxes that cannot be used and are none of the N: file name and reason of each
    images_left_out: Sequence[str] = ()  # images that are none of the n: file name and reason of each

    def __len__(self) -> int:
        """How many images there are, n."""
        return len(self.sizes)

    def objects_of(self, number: int) -> slice:
        """Where the objects of an image stand."""
        return slice(*np.searchsorted(self.owners, [number, number + 1]).tolist())

    def counts(self) -> np.ndarray:
        """How many objects each image has, [n] int64."""
        return np.bincount(self.owners, minlength=len(self))

    def images_with(self) -> np.ndarray:
        """In how many images each class occurs, [K] int64."""
        count = len(self.class_names)
        pairs = np.unique(self.owners.astype(np.int64) * count + self.classes)
        return np.bincount(pairs % count, minlength=count)


def inside(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [N, 4] cut to their images of `sizes` [N, 2], and which of them have an area left: [N] bool."""
    cut = np.clip(boxes, 0.0, np.tile(sizes, 2)).astype(np.float32)
    return cut, np.all(cut[:, 2:] > cut[:, :2], axis=1)
