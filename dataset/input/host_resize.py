"""Resize rules in NumPy with the same pixels as `dataset.input.resize`, for programs without TensorFlow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from program_support.errors import InputError

RULES = ("letterbox", "stretch", "fit")
_MOST_SIDE = 16_384  # pixels of a network's input; larger values are errors or attacks on the memory


@dataclass(frozen=True, kw_only=True)
class ResizeSettings:
    """Parameters of a resize rule, as stored in an exported file.

    kind: "letterbox" into size, "stretch" to size, or "fit": the shorter side to `shorter`, the longer to at most
    `longer`.
    """

    kind: str
    size: tuple[int, int]  # H, W of the network input
    antialias: bool = False
    half_pixel_centers: bool = True
    shorter: int = 0
    longer: int = 0
    padding: tuple[int, int, int] = (0, 0, 0)  # color outside the image; files that take `sizes` ignore it

    def __post_init__(self):
        if self.kind not in RULES:
            raise InputError(f"resize rule {self.kind!r}; expected one of {', '.join(RULES)}")
        sides_fit = len(self.size) == 2 and 1 <= min(self.size) <= max(self.size) <= _MOST_SIDE
        if not sides_fit or (self.kind == "fit" and not 1 <= self.shorter <= self.longer):
            raise InputError(
                f"resize rule {self.kind} with size {self.size}, sides {self.shorter} and {self.longer}; expected "
                f"all above zero, and of two sides at most {_MOST_SIDE}"
            )
        if len(self.padding) != 3 or not 0 <= min(self.padding) <= max(self.padding) <= 255:
            raise InputError(f"resize rule {self.kind} with padding {self.padding}; expected a color, 0 to 255 each")

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Self:
        """Create from the output of `to_dict`.

        Raises:
            InputError: for missing or invalid fields.
        """
        try:
            padding = tuple(int(value) for value in stated.get("padding", (0, 0, 0)))
            return cls(**{**stated, "size": tuple(int(side) for side in stated["size"]), "padding": padding})
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"a resize rule is {stated!r}; expected its kind, size and other fields") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**vars(self), "size": list(self.size), "padding": list(self.padding)}


class HostResize(ResizeSettings):
    """A rule of `dataset.input.resize` in NumPy."""

    def scaled_size(self, source: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the valid area of the input, from those of the original."""
        sides = np.array(source, np.float32)
        if self.kind == "stretch":
            return self.size
        if self.kind == "letterbox":
            scale, limits = (np.array(self.size, np.float32) / sides).min(), self.size
        else:
            scale = min(np.float32(self.shorter) / sides.min(), np.float32(self.longer) / sides.max())
            limits = (self.longer, self.longer)
        scaled = np.maximum((sides * np.float32(scale)).astype(np.int32), 1)
        height, width = np.minimum(scaled, limits).tolist()
        return height, width

    def __call__(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Resize [h, w, 3] uint8.

        Returns [H, W, 3] uint8; [2] int32 valid area; [2] float32 original pixels per input pixel.
        """
        source = image.shape[0], image.shape[1]
        scaled = self.scaled_size(source)
        made = np.full((*self.size, 3), self.padding, np.uint8)
        resample = _antialiased if self.antialias else _interpolated
        made[: scaled[0], : scaled[1]] = (resample(image, scaled, self._places) + np.float32(0.5)).astype(np.uint8)
        return made, np.array(scaled, np.int32), np.array(source, np.float32) / np.array(scaled, np.float32)

    def _places(self, count: int, source: int) -> np.ndarray:
        """Return the position of each of `count` output pixels among `source` pixels, from the center of the first."""
        scale = np.float32(source) / np.float32(count)
        numbers = np.arange(count, dtype=np.float32)
        if self.half_pixel_centers:
            return (numbers + np.float32(0.5)) * scale - np.float32(0.5)
        return numbers * scale


def _interpolated(image: np.ndarray, scaled: tuple[int, int], places: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Interpolate bilinearly in TensorFlow's order, along rows, then between rows: float32 [h', w', 3]."""
    (top, bottom, down), (left, right, across) = (
        _neighbors(places(count, source), source) for count, source in zip(scaled, image.shape[:2], strict=True)
    )
    across = across[None, :, None]

    def row(numbers):
        first, second = (image[np.ix_(numbers, columns)].astype(np.float32) for columns in (left, right))
        return first + (second - first) * across

    upper, lower = row(top), row(bottom)
    return upper + (lower - upper) * down[:, None, None]


def _neighbors(places: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixels before and after each position, and the distance from the one before."""
    lower = np.floor(places)
    return (np.clip(lower, 0, count - 1).astype(int), np.clip(lower + 1, 0, count - 1).astype(int), places - lower)


def _antialiased(image: np.ndarray, scaled: tuple[int, int], places: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Resample with a triangle filter as wide as an output pixel, weights normalized to 1: float32 [h', w', 3]."""
    rows, columns = (
        _triangles(places(count, source), count, source) for count, source in zip(scaled, image.shape[:2], strict=True)
    )
    across = np.einsum("wx,yxc->ywc", columns, image.astype(np.float32), optimize=True)
    return np.einsum("hy,ywc->hwc", rows, across, optimize=True)


def _triangles(places: np.ndarray, count: int, source: int) -> np.ndarray:
    """Return the filter weights, [count, source] float32."""
    width = max(source / count, 1.0)
    weights = np.maximum(1 - np.abs(places[:, None] - np.arange(source)) / width, 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
