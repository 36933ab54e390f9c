"""Read windows of images that are too large to decode completely: TIFF by rasterio, without other files.

GDAL, which rasterio calls, opens other files that a file names, also over the network. Here it reads one file, as TIFF
only and through a Python file object; a file whose tags name others is refused.
"""

import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dataset.files.bounded_files import open_image_file
from dataset.files.image_files import StoredImage, read_stored_image, upright_boxes, upright_image
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS, TiffHeader, read_tiff_header
from dataset.files.pixel_values import FULL_RANGE, UNKNOWN_RANGE, ValueRange, bytes_of_values
from dataset.files.untrusted_values import listed
from program_support.errors import InputError

LARGEST_TIFF_PIXELS = 2**32  # 65,536 x 65,536
MOST_DECODED_PIXELS = 2**24  # a TIFF with more is read by windows
_MOST_BANDS_OF_PILLOW = 4
_LARGEST_BLOCK_BYTES = 2**28  # of a strip or a tile, which is decoded completely
_CACHE_BYTES = 2**27  # decoded blocks that GDAL keeps, for all images of the process
_TYPES_OF_16_BITS = {"uint8", "uint16"}
_REAL_TYPES = {*_TYPES_OF_16_BITS, "int8", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"}
_PHOTOMETRIC_INTERPRETATIONS = {1, 2, 6}  # gray, RGB, YCbCr


class ImageWindows(ABC):
    """An opened image: its size, windows of it, and all of it at a smaller size. Not for several threads.

    size: height and width.
    orientation: EXIF orientation of the windows, see `dataset/files/image_files.py`; 1 for TIFF, whose windows are
        upright.
    note: what is not used of the image, for a message; "" if all is.
    """

    size: tuple[int, int]
    orientation = 1
    note = ""

    def __enter__(self) -> "ImageWindows":
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Free the memory and the file."""

    @abstractmethod
    def read(self, top: int, left: int, bottom: int, right: int) -> np.ndarray:
        """Return the pixels of a window inside the image, a copy: [bottom - top, right - left, 3] uint8.

        Raises:
            InputError: the file is damaged there.
        """

    @abstractmethod
    def reduced(self, size: tuple[int, int]) -> np.ndarray:
        """Return the complete image averaged down to (height, width): [height, width, 3] uint8.

        Raises:
            InputError: the file is damaged.
        """


def open_windows(path: str, *, value_range: ValueRange = FULL_RANGE) -> ImageWindows:
    """Open an image for reading by windows: a large TIFF with rasterio, others decoded completely.

    TIFF files of up to `LARGEST_TIFF_PIXELS` are read, of other formats what `read_stored_image` decodes. Of more than
    three bands red, green and blue are used, or else the first three, and `ImageWindows.note` says so.

    Raises:
        InputError: the file is no image or is damaged; it is a large TIFF, and rasterio is not installed.
    """
    try:
        with open_image_file(path) as file:
            header = read_tiff_header(file)
    except ValueError as error:
        raise InputError(f"{path}: cannot be decoded ({error})") from error
    except OSError:
        header = None  # reported below
    if header is None or (header.pixels <= MOST_DECODED_PIXELS and header.bands <= _MOST_BANDS_OF_PILLOW):
        return _DecodedImage(read_stored_image(path, value_range=value_range))
    if not 0 < header.pixels <= LARGEST_TIFF_PIXELS:
        raise InputError(
            f"{path}: cannot be decoded (a TIFF of {header.width} x {header.height} pixels; the limit is "
            f"{LARGEST_TIFF_PIXELS} pixels)"
        )
    try:
        import rasterio  # noqa: F401
    except ImportError as error:
        if header.pixels <= LARGEST_IMAGE_PIXELS and header.bands <= _MOST_BANDS_OF_PILLOW:
            return _DecodedImage(read_stored_image(path, value_range=value_range))
        raise InputError(
            f"{path}: a TIFF of {header.width} x {header.height} pixels and {header.bands} bands needs the package "
            "rasterio: pip install -e '.[geotiff]'"
        ) from error
    return _TiffWindows(path, header, value_range=value_range)


def size_of_large_tiff(path: str) -> tuple[int, int] | None:
    """Return (height, width), upright, of a TIFF with more than `LARGEST_IMAGE_PIXELS`; None for any other file."""
    if not path.lower().endswith((".tif", ".tiff")):
        return None
    try:
        with open_image_file(path) as file:
            header = read_tiff_header(file)
    except (OSError, ValueError):
        return None
    if header is None or header.pixels <= LARGEST_IMAGE_PIXELS:
        return None
    return (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)


class _DecodedImage(ImageWindows):
    def __init__(self, image: StoredImage):
        self._pixels, self.orientation = image
        self.size = self._pixels.shape[:2]

    def close(self) -> None:
        self._pixels = self._pixels[:0]

    def read(self, top: int, left: int, bottom: int, right: int) -> np.ndarray:
        _check_window((top, left, bottom, right), self.size)
        return self._pixels[top:bottom, left:right].copy()

    def reduced(self, size: tuple[int, int]) -> np.ndarray:
        import cv2  # 30 ms

        return cv2.resize(self._pixels, size[::-1], interpolation=cv2.INTER_AREA)


class _TiffWindows(ImageWindows):
    def __init__(self, path: str, header: TiffHeader, *, value_range: ValueRange):
        import rasterio

        self._path, self._turn, self._value_range = path, header.orientation, value_range
        name = uuid.uuid4().hex  # rasterio knows one file of a name

        def open_this_file(asked: str, mode: str = "rb") -> Any:
            if asked != name:  # a file beside it, such as .ovr and .aux.xml
                raise FileNotFoundError(asked)
            return open_image_file(path)

        with self._gdal(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about coordinates on the earth
            self._data = rasterio.open(name, driver="GTiff", opener=open_this_file)
        try:
            self._prepare(header)
        except InputError:
            self.close()
            raise

    def _prepare(self, header: TiffHeader) -> None:
        """Choose bands, and check what GDAL would do with the file."""
        with self._gdal():
            if self._data.tags(ns="OVERVIEWS"):  # GDAL opens what OVERVIEW_FILE says, be it on the network
                raise self._refusal("its metadata name another file as its overviews")
            self._bands, self.note = _color_bands([color.name for color in self._data.colorinterp])
            kinds = {self._data.dtypes[band - 1] for band in self._bands}
            rows, columns = self._data.block_shapes[0]
            nodata = self._data.nodatavals[self._bands[0] - 1]
            is_of_bits = "NBITS" in self._data.tags(1, ns="IMAGE_STRUCTURE")
            is_palette = self._data.colorinterp[0].name == "palette"
            bands_in_block = self._data.count if self._data.interleaving.name == "pixel" else 1
        if len(kinds) > 1 or not kinds <= (_TYPES_OF_16_BITS if self._value_range == FULL_RANGE else _REAL_TYPES):
            raise self._refusal(UNKNOWN_RANGE.format(f"type {' and '.join(sorted(kinds))}"))
        if header.photometric not in _PHOTOMETRIC_INTERPRETATIONS or is_palette or is_of_bits:
            raise self._refusal(
                f"a palette, parts of bytes or photometric interpretation {header.photometric} of TIFF, expected gray "
                "or RGB of 8 bits and more: gdal_translate -expand rgb"
            )
        block_bytes = rows * columns * bands_in_block * np.dtype(*kinds).itemsize
        if block_bytes > _LARGEST_BLOCK_BYTES:
            raise self._refusal(
                f"its strips or tiles of {columns} x {rows} pixels have {block_bytes} bytes, the limit is "
                f"{_LARGEST_BLOCK_BYTES}; write it with tiles: gdal_translate -co TILED=YES -co COMPRESS=DEFLATE"
            )
        self.size = self._data.shape if self._turn < 5 else self._data.shape[::-1]
        self._nodata = nodata

    def close(self) -> None:
        with self._gdal():
            self._data.close()

    def read(self, top: int, left: int, bottom: int, right: int) -> np.ndarray:
        window = (top, left, bottom, right)
        _check_window(window, self.size)
        inverse = {6: 8, 8: 6}.get(self._turn, self._turn)
        top, left, bottom, right = upright_boxes(np.array([window]), inverse, size=self.size)[0].tolist()
        with self._gdal():
            values = self._data.read(self._bands, window=((top, bottom), (left, right)))
        return self._pixels(values)

    def reduced(self, size: tuple[int, int]) -> np.ndarray:
        from rasterio.enums import Resampling

        shape = (len(self._bands), *(size if self._turn < 5 else size[::-1]))
        with self._gdal():
            return self._pixels(self._data.read(self._bands, out_shape=shape, resampling=Resampling.average))

    def _pixels(self, values: np.ndarray) -> np.ndarray:
        """Return bands [1 or 3, h, w] as upright colors [h, w, 3]; pixels without data are black."""
        colors = np.moveaxis(values, 0, -1)
        if colors.dtype != np.uint8:
            colors = bytes_of_values(colors, self._value_range)
        if self._nodata is not None:
            colors = np.where((values == self._nodata).all(axis=0)[..., None], np.uint8(0), colors)
        shape = (*values.shape[1:], 3)
        return upright_image(np.broadcast_to(colors.reshape(*shape[:2], -1), shape), self._turn)

    @contextmanager
    def _gdal(self) -> Iterator[None]:
        """Limit GDAL's memory and the files that it looks for, and turn its errors into an InputError."""
        import rasterio
        from rasterio.session import DummySession

        options = {
            "GDAL_CACHEMAX": _CACHE_BYTES,
            "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
            "GDAL_PAM_ENABLED": False,
        }
        try:
            with rasterio.Env(session=DummySession(), **options):
                yield
        except rasterio.errors.RasterioError as error:
            reason = str(error.__cause__ or error).rpartition(": ")[2]
            raise self._refusal(reason) from error

    def _refusal(self, reason: str) -> InputError:
        return InputError(f"{self._path}: cannot be decoded ({reason})")


def _color_bands(kinds: list[str]) -> tuple[list[int], str]:
    """Return the numbers (from 1) of the bands of red, green and blue or of gray, and a note of those not used."""
    bands = [number for number, kind in enumerate(kinds, start=1) if kind != "alpha"]
    if {"red", "green", "blue"} <= {*kinds}:
        chosen = [kinds.index(color) + 1 for color in ("red", "green", "blue")]
    else:
        chosen = bands[:3] if len(bands) >= 3 else bands[:1]
    if len(chosen) == len(bands):
        return chosen, ""
    used = f"band {chosen[0]} is" if len(chosen) == 1 else f"bands {listed(chosen)} are"
    return chosen, f"{used} used of {len(bands)}, as {'gray' if len(chosen) == 1 else 'red, green and blue'}"


def _check_window(window: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    top, left, bottom, right = window
    if not (0 <= top < bottom <= size[0] and 0 <= left < right <= size[1]):
        raise ValueError(f"the window {window} is not in the image of {size[0]} rows and {size[1]} columns")
