"""TensorBoard event files with scalars and images, written without TensorFlow and complete after every write."""

import os
import socket
import time

from efficientdet.run_log.logger import Logger


class EventFile(Logger):
    """A new event file in a folder; TensorBoard joins the files of a folder, so a resumed run continues its curves."""

    name = "tensorboard"

    def __init__(self, config, folder):
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")

    def scalars(self, step, values):
        self._write_summary(step, [{"tag": tag, "simple_value": value} for tag, value in values.items()])

    def images(self, step, images):
        from dataset.files.image_files import encode_image

        self._write_summary(
            step,
            [
                {
                    "tag": tag,
                    "image": {
                        "height": image.shape[0],
                        "width": image.shape[1],
                        "colorspace": image.shape[2],
                        "encoded_image_string": encode_image(image, "PNG"),
                    },
                }
                for tag, image in images.items()
            ],
        )

    def close(self):
        if not self._writer.closed:
            self._writer.close()

    def _write_summary(self, step, values):
        self._write(step=int(step), summary={"value": values})

    def _write(self, **fields):
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()
