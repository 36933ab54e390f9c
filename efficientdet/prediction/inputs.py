"""Inputs of infer.py: images, videos, a camera or network stream, or an image on the standard input."""

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from dataset.files.image_files import IMAGE_SUFFIXES, StoredImage, find_images, read_image_stream, read_stored_image
from dataset.files.pixel_values import ValueRange
from program_support.errors import InputError

STANDARD_INPUT = "-"
_VIDEOS = (
    ".3g2 .3gp .asf .avi .divx .f4v .flv .h264 .h265 .hevc .m2ts .m4v .mjpeg .mjpg .mkv .mov .mp4 .mpeg .mpg .mts .mxf "
    ".ogv .qt .ts .vob .webm .wmv"
)
VIDEO_SUFFIXES = set(_VIDEOS.split())
_ADDRESS = re.compile(r"(https?|mms[ht]?|rtmps?|rtsps?|srt|tcp|udp)://", re.IGNORECASE)


class Inputs(NamedTuple):
    """Images and videos to detect objects in."""

    images: tuple[str, ...] = ()  # files, and STANDARD_INPUT
    videos: tuple[str, ...] = ()  # files and addresses
    camera: int | str | None = None  # a number, a device such as /dev/video0, or the address of a stream


def is_stream(name: str | int) -> bool:
    """Return whether an input is the address of a network stream or video."""
    return isinstance(name, str) and _ADDRESS.match(name) is not None


def shown_source(source: str | int) -> str:
    """Return a video, camera or stream for messages: an address without user, password and query."""
    if isinstance(source, str) and is_stream(source):
        parts = urlsplit(source)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"camera {source}" if isinstance(source, int) else source


def recording_stem(source: str | int) -> str:
    """Return the name, without suffix, of the recording of a camera or stream."""
    if isinstance(source, str) and is_stream(source):
        return "stream_" + (re.sub(r"[^\w.-]+", "_", urlsplit(source).hostname or "").strip("._") or "1")
    return f"camera_{PurePosixPath(str(source)).name}"


def find_inputs(names: Sequence[str]) -> Inputs:
    """Return the files of paths, folders (their images and videos) and globs, or a camera or stream.

    `-` is an image on the standard input; a number that is not a file, and a device, is a camera; an address such as
    rtsp://HOST/PATH is a stream, or a video if it ends with a video's suffix.

    Raises:
        InputError: for a name without a match, and for a camera or stream together with other inputs.
    """
    images: dict[str, None] = {}
    videos: dict[str, None] = {}
    for name in names:
        if (camera := _camera(name)) is not None:
            if len(names) > 1 or (isinstance(camera, int) and len(name) > 4):
                raise InputError(
                    f"--image_path={shown_source(name)}: is a camera, not a file; expected a single camera, numbered "
                    "from 0, or a single stream"
                )
            return Inputs(camera=camera)
        whole = name == STANDARD_INPUT or is_stream(name)
        for file in (name,) if whole else find_images([name], suffixes=IMAGE_SUFFIXES | VIDEO_SUFFIXES):
            files_of_kind = videos if _suffix(file) in VIDEO_SUFFIXES else images
            files_of_kind[file] = None
    if STANDARD_INPUT in images and (sys.stdin is None or sys.stdin.isatty()):
        state = "closed" if sys.stdin is None else "a terminal"
        raise InputError(f"--image_path=-: the standard input is {state}; expected an image piped into it")
    return Inputs(tuple(images), tuple(videos))


def _camera(name: str) -> int | str | None:
    """Return the camera or stream that a name stands for, None for anything else."""
    if name.isascii() and name.isdecimal() and not os.path.exists(name):
        return int(name[:5])
    if not is_stream(name):
        is_device = name.startswith("/dev/video") or (os.path.exists(name) and stat.S_ISCHR(os.stat(name).st_mode))
        return name if is_device else None
    if _suffix(name) in IMAGE_SUFFIXES:
        raise InputError(f"--image_path={shown_source(name)}: is the address of an image; download it first")
    return None if _suffix(name) in VIDEO_SUFFIXES else name


def _suffix(name: str) -> str:
    return Path(urlsplit(name).path if is_stream(name) else name).suffix.lower()


def read_input(path: str, *, value_range: ValueRange) -> StoredImage:
    """Return the pixels of one of the images.

    Raises:
        InputError: as `read_stored_image` does.
    """
    if path == STANDARD_INPUT:
        return read_image_stream(sys.stdin.buffer, "standard input", value_range=value_range)
    return read_stored_image(path, value_range=value_range)


def shown_path(path: str) -> str:
    """Return the name of an input from which the names of its outputs are derived."""
    return "stdin_1" if path == STANDARD_INPUT else path
