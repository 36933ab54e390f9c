"""Images that a user names: an image, several, a folder or a glob; free of TensorFlow."""

import glob
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from object_detection.errors import InputError

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".mpo", ".png", ".tif", ".tiff", ".webp"}


def find_images(names: Sequence[str], *, flag: str = "image_path") -> tuple[str, ...]:
    """The files that paths, folders and globs name, in that order, each once.

    Raises InputError, with the `flag` that names them, for a name that stands for nothing.
    """
    found: dict[str, None] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            files = sorted(str(file) for file in path.iterdir()
                           if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file())
        else:
            files = [name] if path.is_file() else sorted(file for file in glob.glob(name) if Path(file).is_file())
        if not files:
            raise InputError(f"--{flag}={name}: {'no image in this folder' if path.is_dir() else 'no such file'}; "
                             "wanted an image, a folder or a glob")
        found |= dict.fromkeys(files)
    return tuple(found)


def read_image(path: str) -> np.ndarray:
    """[h, w, 3] uint8, turned upright as its EXIF says. Raises InputError for a file that is no whole image."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):  # Pillow would cut off all above 255 instead of scaling
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return np.asarray(upright.convert("RGB"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: cannot be decoded ({' '.join(str(error).split())})") from error


def image_ids(paths: Sequence[str]) -> list[int]:
    """The number in each file name where all are distinct whole numbers, as COCO's are; else 1, 2, .."""
    stems = [Path(path).stem for path in paths]
    if all(stem.isascii() and stem.isdigit() for stem in stems) and len(set(map(int, stems))) == len(stems):
        return [int(stem) for stem in stems]
    return list(range(1, len(paths) + 1))


def output_names(paths: Sequence[str]) -> Iterator[str]:
    """A file name for each drawing: that of the image, made distinct where two folders hold the same one."""
    used: set[str] = set()
    for path in paths:
        stem, number = Path(path).stem, 1
        name = f"{stem}.jpg"
        while name in used:
            number += 1
            name = f"{stem}-{number}.jpg"
        used.add(name)
        yield name


def encode_image(image: np.ndarray, kind: str) -> bytes:
    """uint8 [h, w, 3] as a "PNG" or "JPEG" file."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, kind, quality=85)
    return stream.getvalue()
