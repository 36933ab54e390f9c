"""Figures that others published, for columns of their own: of other machines and programs, and never in the place of ours."""

import csv
from pathlib import Path
from typing import NamedTuple

from throughput.cells import Cell

_TABLE = Path(__file__).with_name("published.csv")


class Published(NamedTuple):
    """A row of published.csv."""

    model: str
    mode: str
    gpus: int
    gpu: str
    precision: str
    batch_size: int | None  # of each GPU; None where it is not told
    images_per_second: float  # of all GPUs
    program: str
    source: str

    def is_of(self, cell: Cell) -> bool:
        """Whether it is the same model, number of GPUs, precision and batch."""
        return cell == (self.model, self.mode, self.gpus, self.precision, self.batch_size)


def published_figures(*, model: str, mode: str) -> list[Published]:
    """Those of a model."""
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        rows = [Published(**row) for row in csv.DictReader(stream)]
    return [row._replace(gpus=int(row.gpus), batch_size=int(row.batch_size) if row.batch_size else None,
                         images_per_second=float(row.images_per_second))
            for row in rows if (row.model, row.mode) == (model, mode)]
