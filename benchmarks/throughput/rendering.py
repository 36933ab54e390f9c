"""Write a matrix as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from program_support.atomic_files import write_text
from throughput.cells import Cell
from throughput.figures import Figures
from throughput.matrix import Matrix
from throughput.published import Published, published_figures

_HEADS = (
    "GPUs",
    "precision",
    "batch per GPU",
    "images/s",
    "p50 ms",
    "p95 ms",
    "memory",
    "input wait",
    "weak scaling",
    "speed-up",
    "utilization",
    "published: images/s",
    "published: program, GPU",
)
_MARK = " \\*"  # of a figure that few steps were timed for
_BUSIER = "none: the machine was busier during the product"
_SHORT = "\\*: fewer than 100 steps dropped or 200 timed."
_NOTES = (
    "Memory: maximum over the processes, on the GPU, or on the host without one. Input wait: fraction of the time of "
    "the timed steps. Weak scaling: images/s of n GPUs by n times those of one, at the same batch size per GPU. "
    "Speed-up: images/s by those of tf32 (else fp32) on as many GPUs, at the same batch size per GPU. Utilization: "
    "multiply-adds per second of the network's convolutions and matrix products, by those of a matrix product in the "
    "same precision, timed in the same processes after the last step."
)
_WORK = {
    "training": "a training step of an image (three times the forward pass, frozen layers once)",
    "inference": "an image",
}


def write_tables(folder: Path, matrix: Matrix) -> None:
    """Write matrix.md, matrix.csv and matrix.json."""
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
    """Return the weak scaling, 1 if n GPUs are n times as fast as one; None for one GPU or without both."""
    alone = cell._replace(gpus=1)
    if cell.gpus == 1 or alone not in matrix.cells or not matrix[cell].figures or not matrix[alone].figures:
        return None
    return matrix[cell].figures.images_per_second / (cell.gpus * matrix[alone].figures.images_per_second)


def speed_up(matrix: Matrix, cell: Cell) -> float | None:
    """Return the speed-up over full precision (tf32 if measured, else fp32); None without both."""
    for precision in ("tf32", "fp32"):
        full = cell._replace(precision=precision)
        if full in matrix.cells and matrix[full].figures:
            found = matrix[cell].figures
            return (
                None
                if full == cell or found is None
                else found.images_per_second / matrix[full].figures.images_per_second
            )
    return None


def _row(matrix: Matrix, cell: Cell, published: list[Published]) -> dict[str, Any]:
    """Return all fields of a cell; unknown ones are None."""
    figures, reason = matrix[cell]
    measured: Mapping[str, Any] = figures._asdict() if figures else dict.fromkeys(Figures._fields)
    others = [row for row in published if row.is_of(cell)]
    return {
        **cell._asdict(),
        "not_run": reason or None,
        **measured,
        "is_short": figures.is_short if figures else None,
        "weak_scaling": weak_scaling(matrix, cell),
        "speed_up": speed_up(matrix, cell),
        "published_images_per_second": "; ".join(f"{row.images_per_second:g}" for row in others) or None,
        "published_by": "; ".join(f"{row.program}, {row.gpu}" for row in others) or None,
        "published_source": "; ".join(row.source for row in others) or None,
    }


def _markdown(matrix: Matrix, published: list[Published]) -> list[str]:
    settings, (first, *_) = matrix.settings, matrix.cells
    found = [figures for cell in matrix.cells if (figures := matrix[cell].figures)]
    height, width = settings["image_size"]
    given = [f"hparams {settings['hparams']}"] if settings["hparams"] else []
    data = [settings["records"]] if first.mode == "training" else []
    facts = [
        f"{height} x {width} pixels",
        *given,
        *data,
        settings["machine"],
        *_of_the_runs(found, first.mode),
        f"commit {settings['commit']}",
    ]
    lines = [
        f"## {first.model}, {first.mode}",
        "",
        "; ".join(facts) + ".",
        "",
        f"| {' | '.join(_HEADS)} |",
        "|" + "---|" * len(_HEADS),
    ]
    lines += [f"| {' | '.join(_cells_of_row(matrix, cell, published))} |" for cell in matrix.cells]
    lines += ["", _NOTES, *([_SHORT] if any(figures.is_short for figures in found) else [])]
    accuracies = published_figures(model=first.model, mode="accuracy") if first.mode == "training" else []
    return lines + _others(published, accuracies)


def _of_the_runs(found: list[Figures], mode: str) -> list[str]:
    if not found:
        return []
    loads = [figures.load_average for figures in found]
    return [
        ", ".join(dict.fromkeys(figures.device for figures in found)),
        f"load average {min(loads):g} to {max(loads):g}",
        f"{found[0].dropped_steps} steps dropped, {found[0].timed_steps} timed",
        f"{found[0].multiply_adds_per_image / 1e9:.3g} G multiply-adds for {_WORK[mode]}",
    ]


def _cells_of_row(matrix: Matrix, cell: Cell, published: list[Published]) -> list[str]:
    figures, reason = matrix[cell]
    measured = [f"not run: {reason}", *[""] * 7]
    if figures:
        scaling, faster = weak_scaling(matrix, cell), speed_up(matrix, cell)
        measured = [
            f"{_number(figures.images_per_second)}{_MARK if figures.is_short else ''}",
            _number(figures.p50_ms),
            _number(figures.p95_ms),
            f"{figures.memory_bytes / 1e9:.2f} GB",
            "-" if figures.input_share is None else f"{figures.input_share:.1%}",
            "-" if scaling is None else f"{scaling:.2f}",
            "-" if faster is None else f"{faster:.2f}",
            f"{figures.arithmetic_share:.1%}" if figures.arithmetic_share <= 1 else _BUSIER,
        ]
    others = [row for row in published if row.is_of(cell)]
    return [
        str(cell.gpus),
        cell.precision,
        str(cell.batch_size),
        *(text.replace("|", "\\|") for text in measured),
        "; ".join(f"{row.images_per_second:g}" for row in others) or "-",
        "; ".join(f"{row.program}, {row.gpu}" for row in others) or "-",
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _others(published: list[Published], accuracies: list[Published]) -> list[str]:
    """Return every published figure of the model, whatever its cell, and the accuracies of complete trainings."""
    if not published:
        return ["", "No published figure of this model is known here."]
    lines = [
        "",
        "Published by others, on their machines and at the published input size:",
        "",
        "| GPUs | precision | batch per GPU | images/s | latency ms | by | source |",
        "|" + "---|" * 7,
    ]
    lines += [
        f"| {_where(row)} | {_stated(row.images_per_second)} | {_stated(row.latency_ms)} | {row.program} | "
        f"{row.source} |"
        for row in published
    ]
    if accuracies:
        lines += [
            "",
            "Complete trainings, published by others:",
            "",
            "| GPUs | precision | batch per GPU | images/s | box AP | hours | by | source |",
            "|" + "---|" * 8,
        ]
        lines += [
            f"| {_where(row)} | {_stated(row.images_per_second)} | {_stated(row.box_ap)} | {_stated(row.hours)} | "
            f"{row.program} | {row.source} |"
            for row in accuracies
        ]
    return lines


def _where(row: Published) -> str:
    """Return the cells of a published row with GPU, precision and batch size."""
    return f"{row.gpus} {row.gpu}".strip() + f" | {row.precision or '-'} | {row.batch_size or '-'}"


def _stated(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
