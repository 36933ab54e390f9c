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
    by_id = dict(zip(names.category_ids, names.names, strict=True))
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


class JsonLines:
    """Writer of messages as lines of JSON, each at once."""

    def __init__(self, path: str, *, append: bool, standard_output: TextIO):
        """Open a file for writing, or use `standard_output` for "-"; raise InputError if it cannot be written."""
        self._path, self._stream = path, standard_output
        if path == STANDARD_OUTPUT:
            return
        with report_write_errors(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
            self._stream = os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8")

    def put(self, message: dict[str, Any]) -> None:
        """Write a line.

        Raises:
            ReaderGone: the standard output is a pipe whose other end was closed.
            InputError: the disk is full.
        """
        try:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()
        except BrokenPipeError as error:
            with open(os.devnull, "wb") as nothing:  # otherwise Python reports the same error when it exits
                os.dup2(nothing.fileno(), self._stream.fileno())
            raise ReaderGone("the standard output was closed by its reader; ended") from error
        except OSError as error:
            raise InputError(f"--json_lines={self._path}: cannot be written ({error.strerror or error})") from error

    def close(self) -> None:
        """Close the file."""
        if self._path != STANDARD_OUTPUT:
            self._stream.close()


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
        self._receivers: list[Any] = []
        self._changes = None
        if mqtt is not None:
            self._changes = load_plugin("efficientdet.message_receivers", "changes")(mqtt=mqtt)
        self._json_lines, self._append = json_lines, append
        self._standard_output = sys.stdout if standard_output is None else standard_output
        if json_lines not in (None, STANDARD_OUTPUT) and Path(str(json_lines)).suffix != ".jsonl":
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
            self._receivers.append(self._changes)
        if self._json_lines is not None:
            self._receivers.append(
                JsonLines(self._json_lines, append=self._append, standard_output=self._standard_output)
            )

    def __bool__(self) -> bool:
        """Return whether there is any receiver."""
        return bool(self._receivers)

    def put(self, message: dict[str, Any]) -> None:
        """Hand a message to all receivers; raises as `JsonLines.put`."""
        for receiver in self._receivers:
            receiver.put(message)

    def close(self) -> None:
        """Close all."""
        for receiver in self._receivers:
            receiver.close()


NO_MESSAGES = Messages()
