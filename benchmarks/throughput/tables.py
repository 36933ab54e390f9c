"""Write a matrix as Markdown, CSV and JSON, with published figures of other machines in separate columns."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from program_support.atomic_files import write_text
from throughput.machine import Cell

FIGURES = (
    "images_per_second",  # of all GPUs
    "p50_ms",  # of a step
    "p95_ms",
    "memory_bytes",  # largest of all processes: GPU memory, or host memory on a CPU
    "input_share",  # share of the timed steps spent waiting for input; None for inference
    "arithmetic_share",  # of the multiply-adds per second of a matrix product of this precision
    "multiply_adds_per_image",  # of inference, or of a training step
    "dropped_steps",
    "timed_steps",
    "device",
    "load_average",
)
Outcome = Mapping[str, Any]  # FIGURES, or the key "reason" alone: why the cell did not run
_PUBLISHED = Path(__file__).with_name("published.csv")
_HEADS = (
    "GPUs|precision|batch per GPU|images/s|p50 ms|p95 ms|memory|input wait|weak scaling|speed-up|utilization|"
    "published: images/s|published: program, GPU"
)
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


_SHARES = {"input_share": ".1%", "weak_scaling": ".2f", "speed_up": ".2f"}


def write_tables(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[Cell, Outcome]) -> None:
    """Write matrix.md, matrix.csv and matrix.json."""
    rows = [_row(outcomes, cell) for cell in outcomes]
    write_text(folder / "matrix.md", "\n".join(_markdown(settings, rows)) + "\n")
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "matrix.csv", table.getvalue())
    write_text(folder / "matrix.json", json.dumps({"settings": settings, "cells": rows}, indent=1) + "\n")


def published_figures(**values: str) -> list[dict[str, str]]:
    """Return the rows of published.csv with these values; what the source does not state is empty."""
    with _PUBLISHED.open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if values.items() <= row.items()]


def _row(outcomes: Mapping[Cell, Outcome], cell: Cell) -> dict[str, Any]:
    """Return all fields of a cell; unknown ones are None."""
    outcome = outcomes[cell]

    def rate_relative_to(other: Cell) -> float | None:
        rate, base = (outcomes.get(each, {}).get("images_per_second") for each in (cell, other))
        return rate / base if rate and base and cell != other else None

    scaling = rate_relative_to(cell._replace(gpus=1))
    full = [cell._replace(precision=precision) for precision in ("tf32", "fp32")]
    full = [each for each in full if "images_per_second" in outcomes.get(each, {})]
    others = published_figures(**{name: str(value) for name, value in cell._asdict().items()})
    return {
        **cell._asdict(),
        "not_run": outcome.get("reason"),
        **{name: outcome.get(name) for name in FIGURES},
        "is_short": None if "reason" in outcome else outcome["dropped_steps"] < 100 or outcome["timed_steps"] < 200,
        "weak_scaling": scaling and scaling / cell.gpus,
        "speed_up": rate_relative_to(full[0]) if full else None,
        "published_images_per_second": "; ".join(row["images_per_second"] for row in others) or None,
        "published_by": "; ".join(f"{row['program']}, {row['gpu']}" for row in others) or None,
        "published_source": "; ".join(row["source"] for row in others) or None,
    }


def _markdown(settings: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    model, mode = rows[0]["model"], rows[0]["mode"]
    height, width = settings["image_size"]
    facts = [f"{height} x {width} pixels"]
    facts += [f"hparams {settings['hparams']}"] if settings["hparams"] else []
    facts += [settings["records"]] if mode == "training" else []
    facts.append(settings["machine"])
    if measured := [row for row in rows if not row["not_run"]]:
        loads = [row["load_average"] for row in measured]
        facts += [
            ", ".join(dict.fromkeys(row["device"] for row in measured)),
            f"load average {min(loads):g} to {max(loads):g}",
            f"{measured[0]['dropped_steps']} steps dropped, {measured[0]['timed_steps']} timed",
            f"{measured[0]['multiply_adds_per_image'] / 1e9:.3g} G multiply-adds for {_WORK[mode]}",
        ]
    lines = [f"## {model}, {mode}", "", f"{'; '.join([*facts, 'commit ' + settings['commit']])}.", ""]
    lines += [*_table(_HEADS, map(_cells, rows)), "", _NOTES]
    if any(row["is_short"] for row in measured):
        lines.append("\\*: fewer than 100 steps dropped or 200 timed.")
    published = published_figures(model=model, mode=mode)
    if not published:
        return [*lines, "", "No published figure of this model is known here."]
    lines += ["", "Published by others, on their machines and at the published input size:", ""]
    lines += _published_table({"images/s": "images_per_second", "latency ms": "latency_ms"}, published)
    trainings = published_figures(model=model, mode="accuracy") if mode == "training" else []
    if trainings:
        lines += ["", "Complete trainings, published by others:", ""]
        lines += _published_table({"images/s": "images_per_second", "box AP": "box_ap", "hours": "hours"}, trainings)
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    measured = [f"not run: {row['not_run']}", *[""] * 7]
    if not row["not_run"]:
        share = row["arithmetic_share"]
        measured = [
            _number(row["images_per_second"]) + " \\*" * row["is_short"],
            _number(row["p50_ms"]),
            _number(row["p95_ms"]),
            f"{row['memory_bytes'] / 1e9:.2f} GB",
            *("-" if row[name] is None else f"{row[name]:{form}}" for name, form in _SHARES.items()),
            f"{share:.1%}" if share <= 1 else "none: the machine was busier during the product",
        ]
    return [
        *(str(row[name]) for name in ("gpus", "precision", "batch_size")),
        *(text.replace("|", "\\|") for text in measured),
        row["published_images_per_second"] or "-",
        row["published_by"] or "-",
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _published_table(columns: Mapping[str, str], rows: list[dict[str, str]]) -> list[str]:
    head = "|".join(["GPUs|precision|batch per GPU", *columns, "by|source"])
    names = ("precision", "batch_size", *columns.values(), "program", "source")
    return _table(
        head, ([f"{row['gpus']} {row['gpu']}".strip(), *(row[name] or "-" for name in names)] for row in rows)
    )


def _table(head: str, rows: Iterable[list[str]]) -> list[str]:
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head.split("|"), *rows))
    return [first, "|" + "---|" * (first.count("|") - 1), *others]
