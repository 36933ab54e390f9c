"""Images on which the ranges of activations in 8 bits are determined."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dataset.files.image_files import read_image
from dataset.files.pixel_values import value_range_for

if TYPE_CHECKING:
    from dataset.input.host_resize import HostResize
    from dataset.input.resize import ResizeRule
    from dataset.records.record_index import RecordIndex

_MAX_IMAGES = 100  # ranges of activations change little after some dozens


@dataclass(frozen=True)
class CalibrationImages:
    """Named images that are read lazily; they can be iterated repeatedly."""

    names: tuple[str, ...]
    read: Callable[[], Iterator[np.ndarray]]  # uint8 [h, w, 3] each

    def inputs(self, resize: "ResizeRule | HostResize") -> Iterator[dict[str, np.ndarray]]:
        """Yield the network's inputs of each image, with batch size 1."""
        for pixels in self.read():
            image, size, _ = (np.asarray(part)[None] for part in resize(pixels))
            yield {"images": image, "sizes": size}


def calibration_of_files(paths: Sequence[str], *, most: int = _MAX_IMAGES) -> CalibrationImages:
    """Return up to `most` image files, evenly spaced. Reading raises InputError for a file that is no image."""
    chosen = tuple(paths[number] for number in _evenly_spaced(len(paths), most))

    def read() -> Iterator[np.ndarray]:
        value_range = value_range_for(chosen)
        return (read_image(path, value_range=value_range) for path in chosen)

    return CalibrationImages(chosen, read)


def calibration_of_records(index: "RecordIndex", *, most: int) -> CalibrationImages:
    """Return up to `most` images of records, evenly spaced."""
    from dataset.input.pipeline import original_images

    numbers = _evenly_spaced(len(index), most)
    return CalibrationImages(
        tuple(f"record {number}" for number in numbers),
        lambda: (image.pixels for image in original_images(index, numbers)),
    )


def _evenly_spaced(count: int, most: int) -> list[int]:
    chosen = min(count, most)
    return [number * count // chosen for number in range(chosen)]
