"""A matrix as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from object_detection.atomic_files import write_text
from throughput.cells import Cell
from throughput.figures import Figures
from throughput.matrix import Matrix
from throughput.published import Published, published_figures

_HEADS = ("GPUs", "precision", "batch of each", "images/s", "p50 ms", "p95 ms", "memory", "waits for input", "weak scaling",
          "of the arithmetic", "published: images/s", "published: by whom, on what")
_MARK = " \\*"  # of a figure that few steps were timed for
_BUSIER = "no share: the machine was busier in the product"
_SHORT = "\\*: fewer than 100 steps dropped or 200 timed."
_NOTES = (
    "Memory: of the process that took most, on its GPU, or without one in the host. Waits for input: share of the time of the "
    "timed steps. Weak scaling: images/s over those of 1 GPU at the same batch of each, times the GPUs. Of the arithmetic: "
    "multiply-adds of the network's convolutions and matrix products a second, over those of a matrix product in the same "
    "precision, timed in the same processes after the last step.")
_WORK = {"training": "a training step of an image (three times the forward pass, frozen layers once)",
         "inference": "an image"}


def write_tables(folder: Path, matrix: Matrix) -> None:
    """matrix.md, matrix.csv and matrix.json."""
    first = matrix.cells[0]
    published = published_figures(model=first.model, mode=first.mode)
    write_text(folder / "matrix.md", "\n".join(_markdown(matrix, published)) + "\n")
    rows = [_row(matrix, cell, published) for cell in matrix.cells]
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "matrix.csv", table.getvalue())
    write_text(folder / "matrix.json", json.dumps({"settings": matrix.settings, "cells": rows}, indent=1) + "\n")


def weak_scaling(matrix: Matrix, cell: Cell) -> float | None:
    """1 where n GPUs do n times what one does; None without both, or of one GPU."""
    alone = cell._replace(gpus=1)
    if cell.gpus == 1 or alone not in matrix.cells or not matrix[cell].figures or not matrix[alone].figures:
        return None
    return matrix[cell].figures.images_per_second / (cell.gpus * matrix[alone].figures.images_per_second)


def _row(matrix: Matrix, cell: Cell, published: list[Published]) -> dict[str, Any]:
    """Everything that is known of a cell; what is not is None."""
    figures, reason = matrix[cell]
    measured: Mapping[str, Any] = figures._asdict() if figures else dict.fromkeys(Figures._fields)
    others = [row for row in published if row.is_of(cell)]
    return {**cell._asdict(), "not_run": reason or None, **measured, "is_short": figures.is_short if figures else None,
            "weak_scaling": weak_scaling(matrix, cell),
            "published_images_per_second": "; ".join(f"{row.images_per_second:g}" for row in others) or None,
            "published_by": "; ".join(f"{row.program}, {row.gpu}" for row in others) or None,
            "published_source": "; ".join(row.source for row in others) or None}


def _markdown(matrix: Matrix, published: list[Published]) -> list[str]:
    settings, (first, *_) = matrix.settings, matrix.cells
    found = [figures for cell in matrix.cells if (figures := matrix[cell].figures)]
    height, width = settings["image_size"]
    given = [f"hparams {settings['hparams']}"] if settings["hparams"] else []
    data = [settings["records"]] if first.mode == "training" else []
    facts = [f"{height} x {width} pixels", *given, *data, settings["machine"], *_of_the_runs(found, first.mode),
             f"commit {settings['commit']}"]
    lines = [f"## {first.model}, {first.mode}", "", "; ".join(facts) + ".", "",
             f"| {' | '.join(_HEADS)} |", "|" + "---|" * len(_HEADS)]
    lines += [f"| {' | '.join(_cells_of_row(matrix, cell, published))} |" for cell in matrix.cells]
    lines += ["", _NOTES, *([_SHORT] if any(figures.is_short for figures in found) else [])]
    return lines + _others(published)


def _of_the_runs(found: list[Figures], mode: str) -> list[str]:
    if not found:
        return []
    loads = [figures.load_average for figures in found]
    return [", ".join(dict.fromkeys(figures.device for figures in found)),
            f"load average {min(loads):g} to {max(loads):g}",
            f"{found[0].dropped_steps} steps dropped, {found[0].timed_steps} timed",
            f"{found[0].multiply_adds_per_image / 1e9:.3g} G multiply-adds for {_WORK[mode]}"]


def _cells_of_row(matrix: Matrix, cell: Cell, published: list[Published]) -> list[str]:
    figures, reason = matrix[cell]
    measured = [f"not run: {reason}", *[""] * 6]
    if figures:
        scaling = weak_scaling(matrix, cell)
        measured = [
            f"{figures.images_per_second:.4g}{_MARK if figures.is_short else ''}", f"{figures.p50_ms:.4g}",
            f"{figures.p95_ms:.4g}", f"{figures.memory_bytes / 1e9:.2f} GB",
            "-" if figures.input_share is None else f"{figures.input_share:.1%}",
            "-" if scaling is None else f"{scaling:.2f}",
            f"{figures.arithmetic_share:.1%}" if figures.arithmetic_share <= 1 else _BUSIER]
    others = [row for row in published if row.is_of(cell)]
    return [str(cell.gpus), cell.precision, str(cell.batch_size), *(text.replace("|", "\\|") for text in measured),
            "; ".join(f"{row.images_per_second:g}" for row in others) or "-",
            "; ".join(f"{row.program}, {row.gpu}" for row in others) or "-"]


def _others(published: list[Published]) -> list[str]:
    """Every published figure of the model, whatever its cell."""
    if not published:
        return ["", "No published figure of this model is known here."]
    lines = ["", "Published by others, on their machines:", "", "| GPUs | precision | batch of each | images/s | by | source |",
             "|---|---|---|---|---|---|"]
    return lines + [f"| {row.gpus} {row.gpu} | {row.precision} | {row.batch_size or 'not told'} | {row.images_per_second:g} | "
                    f"{row.program} | {row.source} |" for row in published]
