"""Tables of throughput_matrix.py as Markdown and CSV, with published figures of other machines in separate columns."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from throughput_cells import Cell, Outcome

from program_support.atomic_files import write_text

_HEADS = (
    "GPUs|precision|batch per GPU|images/s|p50 ms|p95 ms|memory|input wait|weak scaling|speed-up|utilization|"
    "published: images/s|published: program, GPU"
)
_NOTES = (
    "Memory: maximum over the processes, on the GPU, or on the host without one. Input wait: fraction of the time of "
    "the timed steps. Weak scaling: images/s of n GPUs by n times those of one, at the same batch size per GPU. "
    "Speed-up: images/s by those of tf32 (else fp32) on as many GPUs, at the same batch size per GPU. Utilization: "
    "multiply-adds per second of the network's convolutions and matrix products, by those of a matrix product in the "
    "same precision, timed in the same processes after the last step; a training step counts three times the forward "
    "pass, frozen layers once. \\*: fewer than 100 steps dropped or 200 timed."
)
_SHARES = {"input_share": ".1%", "weak_scaling": ".2f", "speed_up": ".2f", "arithmetic_share": ".1%"}


def write_tables(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[Cell, Outcome]) -> None:
    """Write matrix.md and matrix.csv."""
    rows = [_row(outcomes, cell) for cell in outcomes]
    write_text(folder / "matrix.md", _markdown(settings, rows))
    table = io.StringIO()
    writer = csv.DictWriter(table, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "matrix.csv", table.getvalue())


def published_figures(**values: str) -> list[dict[str, str]]:
    """Return the rows of published.csv with these values; what the source does not state is empty."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if values.items() <= row.items()]


def _row(outcomes: Mapping[Cell, Outcome], cell: Cell) -> dict[str, Any]:
    """Return a cell, its figures or the reason why there are none, and published figures."""

    def rate_relative_to(other: Cell) -> float | None:
        rate, base = (outcomes.get(each, {}).get("images_per_second") for each in (cell, other))
        return rate / base if rate and base and cell != other else None

    scaling = rate_relative_to(cell._replace(gpus=1))
    in_full = (cell._replace(precision=precision) for precision in ("tf32", "fp32"))
    others = published_figures(**{name: str(value) for name, value in cell._asdict().items()})
    return {
        **cell._asdict(),
        **outcomes[cell],
        "weak_scaling": scaling and scaling / cell.gpus,
        "speed_up": next((rate_relative_to(each) for each in in_full if "p50_ms" in outcomes.get(each, {})), None),
        "published_images_per_second": "; ".join(row["images_per_second"] for row in others),
        "published_by": "; ".join(f"{row['program']}, {row['gpu']}" for row in others),
        "published_source": "; ".join(row["source"] for row in others),
    }


def _markdown(settings: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    height, width = settings["image_size"]
    facts = [f"{height} x {width} pixels", f"hparams {settings['hparams']}" * bool(settings["hparams"])]
    facts += [settings["records"] * (rows[0]["mode"] == "training"), settings["machine"]]
    if measured := [row for row in rows if "reason" not in row]:
        loads = [row["load_average"] for row in measured]
        facts += [
            ", ".join(dict.fromkeys(row["device"] for row in measured)),
            f"load average {min(loads):g} to {max(loads):g}",
            f"{measured[0]['dropped_steps']} steps dropped, {measured[0]['timed_steps']} timed",
            f"{measured[0]['multiply_adds_per_image'] / 1e9:.3g} G multiply-adds for an image",
        ]
    facts.append(f"commit {settings['commit']}")
    head = _HEADS.split("|")
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *map(_cells, rows))]
    title = f"## {rows[0]['model']}, {rows[0]['mode']}"
    return "\n".join([title, "", f"{'; '.join(filter(None, facts))}.", "", *lines, "", _NOTES, ""])


def _cells(row: Mapping[str, Any]) -> list[str]:
    measured = [f"not run: {row['reason']}".replace("|", "\\|"), *[""] * 7] if "reason" in row else _figures(row)
    return [
        *(str(row[name]) for name in ("gpus", "precision", "batch_size")),
        *measured,
        row["published_images_per_second"] or "-",
        row["published_by"] or "-",
    ]


def _figures(row: Mapping[str, Any]) -> list[str]:
    shares = ["-" if row[name] is None else f"{row[name]:{form}}" for name, form in _SHARES.items()]
    if row["arithmetic_share"] > 1:
        shares[-1] = "none: the machine was busier during the product"
    is_short = row["dropped_steps"] < 100 or row["timed_steps"] < 200
    numbers = [_number(row[name]) for name in ("images_per_second", "p50_ms", "p95_ms")]
    return [numbers[0] + " \\*" * is_short, *numbers[1:], f"{row['memory_bytes'] / 1e9:.2f} GB", *shares]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
