"""A cache of decoded images in memory, so that epochs after the first decode nothing (`--cache=decoded`)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from dataset.files import image_decoding
from dataset.input.crop import Crop
from object_detection.structures import Tensor

_LEFT_FREE = 0.2  # fraction of the machine's memory that the cache leaves free
_ABSENT = np.zeros((0, 0, 3), np.uint8)


def available_memory() -> tuple[int, int]:
    """Return available and total memory in bytes, of the machine or of a container with a lower limit."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines}
    available, total = 1024 * kilobytes["MemAvailable:"], 1024 * kilobytes["MemTotal:"]
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return available, total
    return min(available, limit - used), min(total, limit)


class DecodedCache:
    """Images by record number, added when first decoded, as long as a fifth of the memory is free.

    3 bytes per pixel: 0.9 MB per image of COCO. Each rank of a machine has its own cache, because each reads all
    images.
    """

    def __init__(self, *, log: Callable[[str], None], memory: Callable[[], tuple[int, int]] = available_memory):
        self._images: dict[int, np.ndarray] = {}
        self._log, self._memory, self._is_full = log, memory, False

    def __len__(self) -> int:
        """Return the number of images in the cache."""
        return len(self._images)

    def window(self, number: Tensor, encoded: Tensor, crop: Crop) -> Tensor:
        """Return the window of an image, cropped from the full image.

        Equal to `decode_window`, except that the color of the window's first column includes its neighbor, which
        `decode_window` does not decode (at most 2 gray levels, at the border of a JPEG block).
        """
        cached = self._call(self._window_of, number, crop.offset, crop.window)

        def decode() -> Tensor:
            image = image_decoding.decode_image(encoded)
            return self._call(self._keep, number, image, crop.offset, crop.window)

        return tf.cond(tf.size(cached) > 0, lambda: cached, decode)

    @staticmethod
    def _call(function: Callable, *arguments: Tensor) -> Tensor:
        return tf.ensure_shape(tf.numpy_function(function, arguments, tf.uint8, stateful=False), [None, None, 3])

    def _window_of(self, number: np.ndarray, offset: np.ndarray, size: np.ndarray) -> np.ndarray:
        image = self._images.get(int(number))
        return _ABSENT if image is None else _cut(image, offset, size)

    def _keep(self, number: np.ndarray, image: np.ndarray, offset: np.ndarray, size: np.ndarray) -> np.ndarray:
        if not self._is_full:
            available, total = self._memory()
            if available - image.nbytes > _LEFT_FREE * total:
                self._images[int(number)] = image.copy()  # TensorFlow owns the memory of the argument
            else:
                self._is_full = True
                self._log(
                    f"--cache=decoded: {len(self._images)} images fill the memory; "
                    "the others are decoded in every epoch"
                )
        return _cut(image, offset, size)


def _cut(image: np.ndarray, offset: np.ndarray, size: np.ndarray) -> np.ndarray:
    (top, left), (bottom, right) = offset, offset + size
    return np.ascontiguousarray(image[top:bottom, left:right])
