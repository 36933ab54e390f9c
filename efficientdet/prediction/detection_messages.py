"""Detections as JSON while they are found: lines on the standard output or in a file, MQTT messages."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from dataset.class_names import ClassNames
from efficientdet.inference.video_frames import VideoFrame, utc_text
from efficientdet.prediction.inputs import STANDARD_INPUT, shown_source
from program_support.atomic_files import report_write_errors
from program_support.errors import InputError
from program_support.plugins import load_plugin

STANDARD_OUTPUT = "-"
_FIELDS = ("category_id", "track_id", "score", "bbox")


class ReaderGone(Exception):
    """The reader of the standard output has closed it."""


def detection_message(
    source: str | int,
    names: ClassNames,
    results: Sequence[dict[str, Any]],
    size: tuple[int, int],
    frame: VideoFrame | None = None,
) -> dict[str, Any]:
    """Return the detections in an image, or a frame of a video, as JSON.

    Args:
        source: file, number of a camera, device or address; without user, password and query in the message.
        names: classes of the detector.
        results: the detections, see `results_json`.
        size: height and width of the image in pixels.
        frame: the frame; its fields are null for an image.
    """
    by_id = names.by_id()
    return {
        "source": "standard input" if source == STANDARD_INPUT else shown_source(source),
        "frame": frame and frame.number,
        "seconds": frame and round(frame.seconds, 3),
        "time": utc_text(frame.received_at) if frame and frame.received_at else None,
        "width": size[1],
        "height": size[0],
        "detections": [
            {"class": by_id[result["category_id"]], **{key: result[key] for key in _FIELDS if key in result}}
            for result in results
        ],
    }


class Messages:
    """All receivers of the messages of a run, after `open`."""

    def __init__(
        self,
        *,
        json_lines: str | None = None,
        mqtt: str | None = None,
        append: bool = False,
        standard_output: TextIO | None = None,
    ):
        """Check what is requested.

        Args:
            json_lines: file name, or "-" for the standard output.
            mqtt: address of a broker and topic, which receives a message for each change.
            append: keep the lines of an earlier run.
            standard_output: default: sys.stdout.

        Raises:
            InputError: an address or file name is invalid.
        """
        self._changes: Any = None
        if mqtt is not None:
            self._changes = load_plugin("efficientdet.message_receivers", "changes")(mqtt=mqtt)
        self._json_lines, self._append, self._stream = json_lines, append, None
        if json_lines == STANDARD_OUTPUT:
            self._stream = sys.stdout if standard_output is None else standard_output
        elif json_lines is not None and Path(json_lines).suffix != ".jsonl":
            raise InputError(f"--json_lines={json_lines}: expected a file name that ends with .jsonl, or -")

    @property
    def replaced_file(self) -> str | None:
        """The file whose lines of an earlier run are replaced; None without one."""
        return None if self._append or self._json_lines == STANDARD_OUTPUT else self._json_lines

    def open(self) -> None:
        """Connect to the broker and open the file.

        Raises:
            InputError: the broker refuses the connection, or the file cannot be written.
        """
        if self._changes is not None:
            self._changes.open()
        if self._json_lines is not None and self._stream is None:
            with report_write_errors(path := Path(self._json_lines)):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = path.open("a" if self._append else "w", encoding="utf-8")

    def __bool__(self) -> bool:
        """Return whether there is any receiver."""
        return self._changes is not None or self._stream is not None

    def put(self, message: dict[str, Any]) -> None:
        """Hand a message to all receivers, as a line of JSON at once.

        Raises:
            ReaderGone: the standard output is a pipe whose other end was closed.
            InputError: the disk is full.
        """
        if self._changes is not None:
            self._changes.put(message)
        if self._stream is None:
            return
        try:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()
        except BrokenPipeError as error:
            with open(os.devnull, "wb") as nothing:  # otherwise Python reports the same error when it exits
                os.dup2(nothing.fileno(), self._stream.fileno())
            raise ReaderGone("the standard output was closed by its reader; ended") from error
        except OSError as error:
            raise InputError(
                f"--json_lines={self._json_lines}: cannot be written ({error.strerror or error})"
            ) from error

    def close(self) -> None:
        """Close all."""
        if self._changes is not None:
            self._changes.close()
        if self._stream is not None and self._json_lines != STANDARD_OUTPUT:
            self._stream.close()


NO_MESSAGES = Messages()
