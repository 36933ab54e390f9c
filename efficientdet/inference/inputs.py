"""Inputs of infer.py: images, videos, a camera, or an image on the standard input."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dataset.files.image_files import StoredImage, find_images, read_image_stream, read_stored_image
from program_support.errors import InputError

STANDARD_INPUT = "-"
VIDEO_SUFFIXES = {".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}


class Inputs(NamedTuple):
    """Result of `find_inputs`."""

    images: tuple[str, ...] = ()  # files, and STANDARD_INPUT
    videos: tuple[str, ...] = ()
    camera: int | None = None


def find_inputs(names: Sequence[str]) -> Inputs:
    """Return the files of paths, folders (their images) and globs, or a camera.

    `-` is an image on the standard input; a number that is not a file is a camera. Raises InputError for a name without
    a match, and for a camera together with other inputs.
    """
    images: dict[str, None] = {}
    videos: dict[str, None] = {}
    for name in names:
        if name.isascii() and name.isdecimal() and not os.path.exists(name):
            if len(names) > 1 or len(name) > 4:
                raise InputError(
                    f"--image_path={name}: is a camera, not a file; expected a single camera, numbered from 0"
                )
            return Inputs(camera=int(name))
        for file in (name,) if name == STANDARD_INPUT else find_images([name]):
            found = videos if Path(file).suffix.lower() in VIDEO_SUFFIXES else images
            found[file] = None
    if STANDARD_INPUT in images and (sys.stdin is None or sys.stdin.isatty()):
        state = "closed" if sys.stdin is None else "a terminal"
        raise InputError(f"--image_path=-: the standard input is {state}; expected an image piped into it")
    return Inputs(tuple(images), tuple(videos))


def read_input(path: str) -> StoredImage:
    """Return the pixels of one of the images. Raises InputError as `read_stored_image` does."""
    return read_image_stream(sys.stdin.buffer, "standard input") if path == STANDARD_INPUT else read_stored_image(path)


def shown_path(path: str) -> str:
    """Return the name of an input from which the names of its outputs are derived."""
    return "stdin_1" if path == STANDARD_INPUT else path
