"""Published figures of other machines and programs, which are shown in separate columns."""

import csv
from pathlib import Path
from typing import NamedTuple

from throughput.cells import Cell

_TABLE = Path(__file__).with_name("published.csv")
_NUMBERS = ("images_per_second", "latency_ms", "box_ap", "hours")


class Published(NamedTuple):
    """Row of published.csv; a value that its source does not state is None."""

    model: str
    mode: str
    gpus: int
    gpu: str
    precision: str
    batch_size: int | None  # per GPU
    images_per_second: float | None  # of all GPUs
    latency_ms: float | None  # per batch
    box_ap: float | None  # of COCO val2017
    hours: float | None  # of the training that reached it
    program: str
    source: str  # URL, and the place on that page

    def is_of(self, cell: Cell) -> bool:
        """Return whether model, mode, number of GPUs, precision and batch size are equal."""
        return cell == (self.model, self.mode, self.gpus, self.precision, self.batch_size)


def published_figures(*, model: str, mode: str) -> list[Published]:
    """Return the rows of a model; mode: training, inference, or accuracy of complete trainings."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        rows = [Published(**row) for row in csv.DictReader(stream)]
    return [
        row._replace(
            gpus=int(row.gpus),
            batch_size=int(row.batch_size) if row.batch_size else None,
            **{name: float(value) if (value := getattr(row, name)) else None for name in _NUMBERS},
        )
        for row in rows
        if (row.model, row.mode) == (model, mode)
    ]
