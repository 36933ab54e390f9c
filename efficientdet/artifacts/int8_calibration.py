"""Images whose values tell which ranges a network's activations have, for networks that are to compute in 8 bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataset.files.image_files import read_image

if TYPE_CHECKING:
    from dataset.input.host_resize import HostResize
    from dataset.input.resize import ResizeRule
    from dataset.records.record_index import RecordIndex

_MOST_IMAGES = 100  # ranges of activations change little after some dozens


@dataclass(frozen=True)
class CalibrationImages:
    """Images with names, read when their turn comes, as often as they are asked for."""

    names: tuple[str, ...]
    read: Callable[[], Iterator[np.ndarray]]  # uint8 [h, w, 3] each

    def inputs(self, resize: "ResizeRule | HostResize") -> Iterator[dict[str, np.ndarray]]:
        """A network's inputs for each, as a batch of one."""
        for pixels in self.read():
            image, size, _ = (np.asarray(part)[None] for part in resize(pixels))
            yield {"images": image, "sizes": size}


def calibration_of_files(paths: Sequence[str], *, most: int = _MOST_IMAGES) -> CalibrationImages:
    """Up to so many of the image files, evenly spread. Reading raises InputError for one that is no image."""
    chosen = tuple(paths[number] for number in _spread(len(paths), most))
    return CalibrationImages(chosen, lambda: map(read_image, chosen))


def calibration_of_records(index: "RecordIndex", *, most: int) -> CalibrationImages:
    """Up to so many of the images in records, evenly spread."""
    from dataset.input.pipeline import original_images

    numbers = _spread(len(index), most)
    return CalibrationImages(tuple(f"record {number}" for number in numbers),
                             lambda: (image.pixels for image in original_images(index, numbers)))


def _spread(count: int, most: int) -> range:
    return range(0, count, max(-(-count // most), 1))
