"""metrics.jsonl, one JSON object per line: `{"step": 10, "train/loss": 1.5, ..}`; without images."""

import json

import numpy as np

from efficientdet.run_log.logger import Logger

FILE_NAME = "metrics.jsonl"


class JsonLines(Logger):
    """Writer of metrics.jsonl."""

    name = "json"

    def __init__(self, config, folder):
        self._stream = (folder / FILE_NAME).open("a", encoding="utf-8", buffering=1)

    def scalars(self, step, values):
        numbers = {tag: float(value) if np.isfinite(value) else str(value) for tag, value in values.items()}
        self._stream.write(json.dumps({"step": int(step), **numbers}) + "\n")

    def close(self):
        self._stream.close()
