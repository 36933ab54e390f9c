"""An image of which only windows are read, in the place of an array of its pixels."""

import numpy as np

from dataset.files.image_windows import ImageWindows

_OVERVIEW_SIDE = 4096  # pixels


class LargeImage:
    """An opened image; slicing it like an array [h, w, 3] uint8 reads that window."""

    def __init__(self, windows: ImageWindows):
        self._windows = windows
        self.shape = (*windows.size, 3)
        self.note = windows.note

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        rows, columns = (part.indices(side) for part, side in zip(place, self.shape, strict=False))
        return self._windows.read(rows[0], columns[0], rows[1], columns[1])

    def overview(self) -> tuple[np.ndarray, float]:
        """Return the complete image with a longer side of at most 4,096 pixels, and its scale."""
        scale = min(1.0, _OVERVIEW_SIDE / max(self.shape))
        height, width = (max(1, round(scale * side)) for side in self.shape[:2])
        return self._windows.reduced((height, width)), scale

    def close(self) -> None:
        """Free the file."""
        self._windows.close()
