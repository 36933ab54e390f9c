"""What infer.py is to look at: images, videos, a camera, or an image on the standard input."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dataset.files.image_files import StoredImage, find_images, read_image_stream, read_stored_image
from program_support.errors import InputError

STANDARD_INPUT = "-"
VIDEO_SUFFIXES = {".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}


class Inputs(NamedTuple):
    """Found by `find_inputs`."""

    images: tuple[str, ...] = ()  # files, and STANDARD_INPUT
    videos: tuple[str, ...] = ()
    camera: int | None = None


def find_inputs(names: Sequence[str]) -> Inputs:
    """Files that paths, folders (their images) and globs name; `-` is an image on the standard input, a number that is no file
    a camera. Raises InputError for a name that stands for nothing, and for a camera beside anything else."""
    images: dict[str, None] = {}
    videos: dict[str, None] = {}
    for name in names:
        if name.isascii() and name.isdecimal() and not Path(name).exists():
            if len(names) > 1 or len(name) > 4:
                raise InputError(f"--image_path={name}: is a camera, not a file; expected a single camera, numbered from 0")
            return Inputs(camera=int(name))
        for file in (name,) if name == STANDARD_INPUT else find_images([name]):
            found = videos if Path(file).suffix.lower() in VIDEO_SUFFIXES else images
            found[file] = None
    if STANDARD_INPUT in images and (sys.stdin is None or sys.stdin.isatty()):
        found = "closed" if sys.stdin is None else "a terminal"
        raise InputError(f"--image_path=-: the standard input is {found}; expected an image piped into it")
    return Inputs(tuple(images), tuple(videos))


def read_input(path: str) -> StoredImage:
    """The pixels of one of the images. Raises InputError as `read_stored_image`."""
    return read_image_stream(sys.stdin.buffer, "standard input") if path == STANDARD_INPUT else read_stored_image(path)


def shown_path(path: str) -> str:
    """What an input's outputs are named after."""
    return "stdin_1" if path == STANDARD_INPUT else path
