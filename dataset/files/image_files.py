"""Read the images that paths, folders and globs name. Does not import TensorFlow."""

import io
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from dataset.files.bounded_files import LARGEST_FILE_BYTES, open_image_file
from dataset.files.image_formats import (
    DECODING_ERRORS,
    FORMATS,
    LARGEST_IMAGE_PIXELS,
    READS_AVIF,
    exif_orientation,
    note_of_unread_tiff,
)
from dataset.files.pixel_values import FULL_RANGE, ValueRange, as_rgb
from dataset.files.untrusted_values import LARGEST_ID
from program_support.archives import archive_kind
from program_support.errors import InputError
from program_support.file_patterns import matching_paths
from program_support.remote_addresses import is_remote, storage


class _Turn(NamedTuple):
    """Operations that rotate stored pixels upright, in this order."""

    transpose: bool
    flip_rows: bool
    flip_columns: bool

    @classmethod
    def of(cls, orientation: int) -> "_Turn":
        """Return those of an EXIF orientation, 1 (as stored) .. 8."""
        return cls(orientation >= 5, orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7))


def upright_image(stored: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate stored pixels as viewers do: [h, w, ...] -> [h, w, ...] or [w, h, ...]."""
    turn = _Turn.of(orientation)
    image = stored.swapaxes(0, 1) if turn.transpose else stored
    return np.ascontiguousarray(_flipped(image, turn))


def upright_boxes(stored: np.ndarray, orientation: int, *, size: tuple[int, int]) -> np.ndarray:
    """Convert boxes [N, 4] yxyx in pixels of a stored image of `size` (height, width) to those of the upright image."""
    turn = _Turn.of(orientation)
    y_min, x_min, y_max, x_max = np.asarray(stored).reshape(-1, 4).T
    height, width = size
    if turn.transpose:
        y_min, x_min, y_max, x_max, height, width = x_min, y_min, x_max, y_max, width, height
    if turn.flip_rows:
        y_min, y_max = height - y_max, height - y_min
    if turn.flip_columns:
        x_min, x_max = width - x_max, width - x_min
    return np.stack([y_min, x_min, y_max, x_max], axis=-1)


def _flipped(image: np.ndarray, turn: _Turn) -> np.ndarray:
    image = image[::-1] if turn.flip_rows else image
    return image[:, ::-1] if turn.flip_columns else image


IMAGE_SUFFIXES = (
    {".bmp", ".gif", ".jp2", ".mpo", ".png", ".tif", ".tiff", ".webp"}
    | {".jfif", ".jpe", ".jpeg", ".jpg"}
    | ({".avif"} if READS_AVIF else set())
)
UNREAD_SUFFIXES = (
    {".avif", ".heic", ".heif", ".jxl", ".svg", ".psd", ".tga", ".exr", ".dcm"}
    | {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"}  # raw files of cameras
) - IMAGE_SUFFIXES


def note_of_unread(names: Sequence[str]) -> str:
    """Return what to do with files whose suffix is that of a format that is not read, "" without such files."""
    unread = [name for name in names if Path(name).suffix.lower() in UNREAD_SUFFIXES]
    if not unread:
        return ""
    suffixes = sorted({Path(name).suffix.lower() for name in unread})
    return (
        f"{len(unread)} files of the format {', '.join(suffixes)} are not read, such as {unread[0]}: save them as JPEG "
        "or PNG under the same names (ImageMagick: magick mogrify -auto-orient -format jpg)"
    )


class StoredImage(NamedTuple):
    """An image as its file stores it."""

    pixels: np.ndarray  # [h, w, 3] uint8
    orientation: int  # EXIF orientation, 1 (as stored) .. 8

    def upright(self) -> np.ndarray:
        """Return the pixels as viewers show them; `exif_orientation` lists the programs that use them."""
        return upright_image(self.pixels, self.orientation)


def image_folder(path: str | None) -> str:
    """Return the folder of --images.

    Raises:
        InputError: it is not a folder.
    """
    if path and (is_remote(path) or os.path.isdir(path)):
        return path
    what = {
        "zip": "is a zip archive: unpack it, with python -m zipfile -e FILE FOLDER",
        "tar": "is a tar archive: unpack it, with python -m tarfile -e FILE FOLDER",
    }.get(archive_kind(path or "") or "")
    if what is None and os.path.exists(path or ""):
        what = "is a file" if os.path.isfile(path or "") else "is a pipe or a device"
    what = what or "no such folder"
    raise InputError(f"--images={path or ''}: {what}; expected the folder with the images")


def image_source(path: str | None) -> str:
    """Return the folder or archive of --images.

    Raises:
        InputError: for anything else.
    """
    return path if path and archive_kind(path) else image_folder(path)


def find_images(
    names: Sequence[str], *, flag: str = "image_path", suffixes: Collection[str] = IMAGE_SUFFIXES
) -> tuple[str, ...]:
    """Return the files that paths, folders (their files with `suffixes`) and globs name, in order, without duplicates.

    Files that a remote address or glob names are copied to this machine first.
    Warns of files in a folder whose format is not read.

    Raises:
        InputError: with the name of the `flag`, for a name without files.
    """
    paths: dict[str, None] = {}
    for name in names:
        if not name:  # Path("") is the current folder
            raise InputError(f"--{flag} is empty; expected an image, a folder or a glob")
        path = Path(name)
        try:
            if is_remote(name):
                files = storage().local_copies(name)
            elif path.is_dir():
                there = sorted(str(file) for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
                files = [file for file in there if Path(file).suffix.lower() in suffixes]
                if unread := note_of_unread(there):
                    if not files:
                        raise InputError(f"--{flag}={name}: {unread}; there are no other images")
                    print(f"warning: {unread}", file=sys.stderr)
            else:
                files = [name] if path.is_file() else [file for file in matching_paths(name) if Path(file).is_file()]
        except OSError as error:
            raise InputError(f"--{flag}={name}: cannot be read ({error.strerror})") from error
        if not files:
            raise InputError(f"--{flag}={name}: {_why_nothing(path)}; expected an image, a folder or a glob")
        paths |= dict.fromkeys(files)
    return tuple(paths)


def _why_nothing(path: Path) -> str:
    if path.is_dir():
        return "no image in this folder"
    return "a pipe or a device, not a regular file" if path.exists() else "no such file"


def read_image(path: str, *, value_range: ValueRange = FULL_RANGE) -> np.ndarray:
    """Return the upright image for inference, [h, w, 3] uint8. Raises as `read_stored_image` does."""
    return read_stored_image(path, value_range=value_range).upright()


def read_stored_image(path: str, *, least_side: int | None = None, value_range: ValueRange = FULL_RANGE) -> StoredImage:
    """Decode a file completely (the first frame of an animation).

    With `least_side`, a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size, no side shorter than `least_side`: much
    faster. `value_range`: see `as_rgb`.

    Raises:
        InputError: for an incomplete image.
    """
    try:
        file = open_image_file(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be decoded ({error.strerror})") from error
    with file:
        return decode_image(file, name=path, least_side=least_side, value_range=value_range)


def read_image_stream(stream: BinaryIO, name: str, *, value_range: ValueRange = FULL_RANGE) -> StoredImage:
    """Decode a stream, read to its end, as `read_stored_image` does; `name` is for messages."""
    content = stream.read(LARGEST_FILE_BYTES + 1)
    if not content or len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{name}: cannot be decoded (it is {'too large' if content else 'empty'})")
    return decode_image(io.BytesIO(content), name=name, value_range=value_range)


def decode_image(
    file: BinaryIO, *, name: str, least_side: int | None = None, value_range: ValueRange = FULL_RANGE
) -> StoredImage:
    """Decode an open file as `read_stored_image` does; `name` is for messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about sizes, which are checked here
        try:
            with Image.open(file, formats=FORMATS) as image:
                if least_side:
                    image.draft("RGB", (least_side, least_side))
                pixels = as_rgb(image, value_range)
                return StoredImage(pixels, exif_orientation(image))  # 1 for TIFF, which Pillow rotates itself
        except UnidentifiedImageError as error:
            what = note_of_unread([name]) or note_of_unread_tiff(file) or f"in none of the formats {', '.join(FORMATS)}"
            raise InputError(f"{name}: cannot be decoded ({what})") from error
        except DECODING_ERRORS as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, Image.DecompressionBombError):
                reason = (
                    f"it has more than {LARGEST_IMAGE_PIXELS:,} pixels; of a TIFF file of that size "
                    "create_tfrecord.py and infer.py --tile=SIDE read windows"
                )
            raise InputError(f"{name}: cannot be decoded ({reason})") from error


def image_ids(paths: Sequence[str]) -> list[int]:
    """Return the number in each file name if all are distinct integers, as in COCO; else 1, 2, .."""
    stems = [Path(path).stem for path in paths]
    if all(stem.isascii() and stem.isdecimal() and len(stem) < 100 and int(stem) <= LARGEST_ID for stem in stems):
        numbers = [int(stem) for stem in stems]
        if len(set(numbers)) == len(numbers):
            return numbers
    return list(range(1, len(paths) + 1))


def distinct_stem(stem: str, used: set[str]) -> str:
    """Return a file stem not in `used`, case-insensitively, by appending a number if needed; add it to `used`."""
    name, number = stem, 1
    while name.casefold() in used:  # some file systems ignore case
        number += 1
        name = f"{stem}-{number}"
    used.add(name.casefold())
    return name


def output_names(paths: Sequence[str], suffix: str = ".jpg") -> Iterator[str]:
    """Yield an output file name for each image: the source's name, made distinct case-insensitively."""
    used: set[str] = set()
    for path in paths:
        yield distinct_stem(Path(path).stem, used) + suffix


def copy_names(paths: Sequence[str]) -> list[str]:
    """Return a file name for a copy of each image, its own with two changes.

    Labels are found by the stem, so no two names share one; bytes that are no text become `_`, as files of labels are
    text.
    """
    used: set[str] = set()
    names = [Path(_UNDECODABLE.sub("_", Path(path).name)) for path in paths]
    return [distinct_stem(name.stem, used) + name.suffix for name in names]


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Return the file name of each image, or the given path if two images share a name."""
    names = [Path(path).name for path in paths]
    times = Counter(names)
    return [name if times[name] == 1 else path for name, path in zip(names, paths, strict=True)]


def encode_image(image: np.ndarray, kind: str, *, quality: int = 85) -> bytes:
    """Encode uint8 [h, w, 3] as "PNG" or "JPEG"."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind, quality=quality)
    return stream.getvalue()


class TooManyPixels(ValueError):
    """The image has more pixels than the decoding limit."""


def stored_size(encoded: bytes, *, formats: tuple[str, ...] = FORMATS) -> tuple[int, int]:
    """Return height and width of an encoded image from its header.

    Raises:
        ValueError: it is not of these formats.
    """
    try:
        with Image.open(io.BytesIO(encoded), formats=formats) as image:
            return image.height, image.width
    except Image.DecompressionBombError as error:
        raise TooManyPixels(str(error)) from error
    except DECODING_ERRORS as error:
        raise ValueError("holds no image that can be read") from error


_UNDECODABLE = re.compile("[\ud800-\udfff]")  # bytes of a file name that are no UTF-8 are these characters
