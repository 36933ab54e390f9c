r"""Measure the throughput of one model by GPUs, precision and batch size, with the launcher of the recipes.

    python benchmarks/throughput_matrix.py --model=mask-rcnn-resnet50 --gpus=1,8 --precision=fp32,tf32,amp,bf16 \
        --batch_sizes=2,4,8 [--mode=training|inference --hparams=image_size=512 --records='DIR/train-*' \
        --output_dir=DIR --dropped_steps=100 --timed_steps=200 --device=auto|gpu|cpu --minutes_per_cell=30 \
        --retry_failed]

Writes matrix.md and matrix.csv. A cell that cannot run here shows the reason. Published figures of other
machines are in separate columns. Running the same command again resumes an interrupted matrix.
"""

import csv
import io
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from absl import flags
from inference_table import published_figures
from throughput_cells import PRECISIONS, ROOT, Cell, Machine, Outcome, commit_here, run_cell

from dataset.synthetic import draw_data_set
from efficientdet.configuration.flag_paths import records_of, writable_folder
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.families.hyperparameters import with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of
from program_support.atomic_files import unfinished_folder, write_text
from program_support.checked_fields import Count
from program_support.command_line import define_flag, run, whole_numbers
from program_support.errors import InputError

FLAGS = flags.FLAGS
SYNTHETIC_IMAGES = 64
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


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_string("model", DEFAULT_MODEL, "Model; see --model_name of train.py.")
    flags.DEFINE_enum("mode", "training", ["training", "inference"], "Mode to measure.")
    flags.DEFINE_list("gpus", ["1"], "Numbers of GPUs, such as 1,8; with --device=cpu of processes.")
    flags.DEFINE_list("precision", [*PRECISIONS], f"Precisions to measure, any of {','.join(PRECISIONS)}.")
    flags.DEFINE_list("batch_sizes", ["2", "4", "8"], "Batch size per GPU.")
    flags.DEFINE_string("hparams", "", "Hyperparameters: comma-separated key=value items, or a .yaml file.")
    flags.DEFINE_string(
        "records", None, f"Glob of TFRecords to train on. Default: {SYNTHETIC_IMAGES} synthetic images."
    )
    flags.DEFINE_string("output_dir", "/tmp/throughput", "Output folder for tables, logs and synthetic records.")
    define_flag("dropped_steps", Count, 100, "Number of untimed steps at the start of a cell.")
    define_flag("timed_steps", Count, 200, "Number of timed steps after them.")
    flags.DEFINE_enum("device", "auto", ["auto", "gpu", "cpu"], "Device. auto: GPUs if there are any, else the CPU.")
    define_flag("minutes_per_cell", Count, 30, "Timeout per cell in minutes.")
    flags.DEFINE_bool("retry_failed", False, "Run failed cells again.")


def main() -> None:
    """Measure every missing cell, and write the tables after each."""
    hparams = with_overrides(hyperparameters_of(FLAGS.model, {}), parse_overrides(FLAGS.hparams))
    if unknown := [precision for precision in FLAGS.precision if precision not in PRECISIONS]:
        raise InputError(f"--precision={','.join(unknown)}: expected some of {','.join(PRECISIONS)}")
    cells = [
        Cell(FLAGS.model, FLAGS.mode, *rest)
        for rest in itertools.product(
            dict.fromkeys(_counts("gpus")), dict.fromkeys(FLAGS.precision), dict.fromkeys(_counts("batch_sizes"))
        )
    ]
    machine = Machine.here(FLAGS.device)
    if FLAGS.records:
        records_of(FLAGS.records, "records")
    folder = Path(writable_folder(FLAGS.output_dir, "output_dir")).resolve()
    records = str(Path(FLAGS.records).resolve()) if FLAGS.records else None
    settings = {
        "commit": commit_here(),
        "machine": machine.description,
        "hparams": FLAGS.hparams,
        "image_size": [*hparams.input_size],
        "records": records or f"{SYNTHETIC_IMAGES} drawn images",
        "dropped_steps": FLAGS.dropped_steps,
        "timed_steps": FLAGS.timed_steps,
    }
    signal.signal(signal.SIGTERM, _end)
    outcomes: dict[Cell, Outcome] = {}
    for cell in cells:
        reason = machine.skip_reason(cell)
        outcomes[cell] = {"reason": reason} if reason else _stored_outcome(folder, cell, settings)
        if outcomes[cell] != _PENDING:
            print(f"{cell.name}: {_summary(outcomes[cell])}{'' if reason else ' (measured before)'}", flush=True)
    write_tables(folder, settings, outcomes)
    for cell in [cell for cell in cells if outcomes[cell] == _PENDING]:
        if cell.mode == "training" and not records:
            records = _synthetic_records(folder, hparams.input_size)
        outcomes[cell] = run_cell(
            cell, folder, settings, records=records, device=machine.device, minutes=FLAGS.minutes_per_cell
        )
        stored = {"cell": cell._asdict(), "settings": settings, "outcome": outcomes[cell]}
        write_text(_path(folder, cell), json.dumps(stored, indent=1) + "\n")
        write_tables(folder, settings, outcomes)
        print(f"{cell.name}: {_summary(outcomes[cell])}", flush=True)
    print(f"wrote {folder}/matrix.md and .csv")


_PENDING = {"reason": "pending"}


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}.json"


def _stored_outcome(folder: Path, cell: Cell, settings: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an earlier call with the same settings, else pending; print the setting that changed."""
    path = _path(folder, cell)
    path.parent.mkdir(exist_ok=True)
    if not path.is_file():
        return _PENDING
    stored = json.loads(path.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if stored["settings"].get(name) != value:
            print(f"{cell.name}: again, as {name} was {stored['settings'].get(name)!r} and is {value!r}", flush=True)
            return _PENDING
    return _PENDING if FLAGS.retry_failed and "reason" in stored["outcome"] else stored["outcome"]


def _summary(outcome: Outcome) -> str:
    return f"not run: {outcome['reason']}" if "reason" in outcome else f"{outcome['images_per_second']:.4g} images/s"


def _synthetic_records(folder: Path, image_size: tuple[int, int]) -> str:
    """Return the glob of synthetic records with masks, images of about this size; written once."""
    height, width = image_size
    records = folder / f"drawn-{height}x{width}"
    if not records.is_dir():
        with unfinished_folder(records) as unfinished:
            draw_data_set(unfinished, images={"train": SYNTHETIC_IMAGES}, image_size=image_size)
            subprocess.run(
                [
                    sys.executable,
                    str(ROOT / "dataset" / "create_coco_tfrecord.py"),
                    f"--image_dir={unfinished / 'train'}",
                    f"--object_annotations_file={unfinished / 'annotations' / 'instances_train.json'}",
                    f"--output_file_prefix={unfinished / 'train'}",
                    "--num_shards=8",
                    "--include_masks",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            unfinished.rename(records)
    return str(records / "train-*.tfrecord")


def write_tables(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[Cell, Outcome]) -> None:
    """Write matrix.md and matrix.csv."""
    rows = [_row(outcomes, cell) for cell in outcomes]
    write_text(folder / "matrix.md", _markdown(settings, rows))
    table = io.StringIO()
    writer = csv.DictWriter(table, dict.fromkeys(name for row in rows for name in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "matrix.csv", table.getvalue())


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


def _counts(name: str) -> tuple[int, ...]:
    numbers = whole_numbers(FLAGS[name].value, name)
    if not numbers or min(numbers) < 1:
        raise InputError(f"--{name}={','.join(FLAGS[name].value)}: expected whole numbers from 1 on")
    return numbers


def _end(number: int, _frame) -> None:
    print("throughput_matrix.py: stopped by SIGTERM; run the same command to resume", file=sys.stderr)
    sys.exit(128 + number)


if __name__ == "__main__":
    define_flags()
    run(main)
