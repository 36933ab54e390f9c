"""A server whose detector waits as long as FOLDER/gate is there: `python gated_server.py FOLDER REQUEST_TIMEOUT_S`.

A black image makes the detector fail; the numbers are small, so that each limit can be reached.
"""

import sys
import time
from pathlib import Path

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.options.serve import RequestLimits
from efficientdet.serving import server
from efficientdet.serving.application import build_application
from efficientdet.serving.batching import ServedModel
from object_detection.coco.results import DetectionRows

MOST_IMAGES = 6
HEAD_S, CONNECTIONS = 3.0, 24


def main() -> None:
    folder = Path(sys.argv[1])
    limits = RequestLimits(
        max_batch=4, max_queue=MOST_IMAGES, request_timeout_s=float(sys.argv[2]), max_request_bytes=100_000
    )

    def detect(images):
        (folder / "entered").touch()
        while (folder / "gate").exists():
            time.sleep(0.01)
        if any(image.max() == 0 for image in images):
            raise RuntimeError("cannot see in the dark")
        return [
            DetectionRows.of_image(np.float32([[0, 0, 1, 1]]), np.float32([0.9]), np.int64([image.max()]))
            for image in images
        ]

    server._HEAD_S, server._STALL_S, server._MAX_CONNECTIONS = HEAD_S, HEAD_S, CONNECTIONS
    names = ClassNames(tuple(range(256)), tuple(f"shade {number}" for number in range(256)))
    model = ServedModel(detect=detect, class_names=names, name="gated")
    server.serve(build_application(model, limits=limits), server.bind("127.0.0.1", 0), limits)


if __name__ == "__main__":
    main()
