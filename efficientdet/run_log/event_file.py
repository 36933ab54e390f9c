"""TensorBoard event files with scalars and images, written without TensorFlow and complete after every write."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dataset.files.image_files import encode_image

_FORMAT_VERSION = "brain.Event:2"


class EventFile:
    """A new event file in a folder; TensorBoard joins the files of a folder, so a resumed run continues its curves."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._write(Event(wall_time=time.time(), file_version=_FORMAT_VERSION))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars by tag, after `step` steps."""
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(Event(wall_time=time.time(), step=int(step), summary=summary))

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write images by tag, each uint8 [h, w, 3]."""
        values = [Summary.Value(tag=tag, image=_summary_image(image)) for tag, image in images.items()]
        self._write(Event(wall_time=time.time(), step=int(step), summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self._writer.closed:
            self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()


def _summary_image(image: np.ndarray) -> Summary.Image:
    height, width, channels = image.shape
    encoded = encode_image(image, "PNG")
    return Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=encoded)
