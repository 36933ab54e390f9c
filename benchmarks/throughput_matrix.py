r"""Measure the throughput of one model by GPUs, precision and batch size, with the launcher of the recipes.

    python benchmarks/throughput_matrix.py --model=mask-rcnn-resnet50 --gpus=1,8 --precision=fp32,tf32,amp,bf16 \
        --batch_sizes=2,4,8 [--mode=training|inference --hparams=image_size=512 --records='DIR/train-*' \
        --output_dir=DIR --dropped_steps=100 --timed_steps=200 --device=auto|gpu|cpu --minutes_per_cell=30]

Writes matrix.md. A cell that cannot run here shows the reason. Published figures of other machines are in separate
columns. Running the same command again resumes an interrupted matrix, and repeats cells that failed.
"""

import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from absl import flags
from inference_table import published_figures

from dataset.synthetic import draw_data_set
from efficientdet.configuration.flag_paths import records_of, writable_folder
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.families.hyperparameters import with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of
from efficientdet.run_log.journal import average_speed, read_intervals, read_log
from program_support.atomic_files import unfinished_folder, write_text
from program_support.checked_fields import Count
from program_support.claimed_outputs import claim_folder, refuse_unmarked
from program_support.command_line import define_flag, run, whole_numbers
from program_support.errors import InputError
from program_support.processor import available_cores, processor_name

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = {"fp32": "float32", "tf32": "float32", "amp": "mixed_float16", "bf16": "mixed_bfloat16"}  # to --precision
Outcome = Mapping[str, Any]  # figures, or the key "reason" alone: why the cell did not run
_SECONDS_TO_END = 180  # horovodrun waits 60 s for its processes; a busy machine takes longer
_RANK = re.compile(r"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")  # horovodrun's, before each line of a process


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


class Cell(NamedTuple):
    """One measurement: model, mode, GPUs, precision and batch size."""

    model: str
    mode: str  # training or inference
    gpus: int
    precision: str
    batch_size: int  # per GPU

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.model}-{self.mode}-{self.gpus}x-{self.precision}-batch-{self.batch_size}"


class Machine(NamedTuple):
    """This machine: `count` GPUs, or processes that its cores can run."""

    device: str  # gpu or cpu
    name: str
    count: int
    compute_capability: float
    has_horovod: bool
    description: str = ""  # GPU with memory and driver, and processor

    @classmethod
    def here(cls, device: str) -> "Machine":
        """Return this machine with a device: gpu, cpu, or auto (GPUs if there are any).

        Raises:
            InputError: for gpu if there is none.
        """
        gpus = ""
        if device != "cpu" and shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]
            gpus = subprocess.run(query, capture_output=True, text=True).stdout
        if device == "gpu" and not gpus:
            raise InputError("--device=gpu: nvidia-smi shows none; expected --device=cpu or auto")
        has_horovod = importlib.util.find_spec("horovod") is not None
        if not gpus:
            cores = available_cores()
            return cls("cpu", f"CPU with {cores} cores", cores, 0.0, has_horovod, processor_name())
        name, capability, driver, memory = gpus.splitlines()[0].rsplit(", ", 3)
        description = f"{name}, {memory}, driver {driver}; {processor_name()}"
        return cls("gpu", name, len(gpus.splitlines()), float(capability), has_horovod, description)

    def skip_reason(self, cell: Cell) -> str:
        """Return the reason why a cell cannot run on this machine; empty if it can."""
        if cell.gpus > self.count:
            here = f"{self.name} here, no GPU"
            return here if self.device == "cpu" else f"{self.count} GPU{'s' * (self.count != 1)} here"
        if cell.mode == "inference" and cell.gpus > 1:
            return "inference is one process"
        if cell.gpus > 1 and not self.has_horovod:
            return "Horovod is not installed: bash scripts/install_horovod.sh"
        if self.device == "cpu" and cell.precision in ("tf32", "amp"):
            return f"{cell.precision} is for GPUs, {self.name} here"
        if cell.precision == "tf32" and self.compute_capability < 8.0:  # older than Ampere
            return f"{self.name} has no TF32"
        return ""


def commit_here() -> str:
    """Return the commit of this checkout, marked if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' and changes' * bool(changed)}"


def run_cell(
    cell: Cell, main_folder: Path, settings: Mapping[str, Any], *, records: str | None, device: str, minutes: float
) -> Outcome:
    """Run a cell in a folder of its own, which has its output; failures are outcomes.

    settings: hparams, dropped_steps and timed_steps.

    NVIDIA's libraries round float32 to TF32 by default, also in the matrix product that is timed for comparison.
    Horovod's stall timeout is off, as a step may be slow in several processes.
    """
    folder = main_folder / "runs" / cell.name
    refuse_unmarked(folder)
    shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder)
    dropped, timed, report = settings["dropped_steps"], settings["timed_steps"], folder / "report.json"
    words = (
        [f"NGPU={cell.gpus}", "BACKBONE=", f"TRAIN={records}", f"STEPS={dropped + timed}"]
        if cell.mode == "training"
        else [f"RUNS={timed}", f"--bm_warm_up_runs={dropped}", f"--output_json={report}"]
    )
    command = [
        "bash",
        str(ROOT / "scripts" / "benchmark" / f"{cell.mode}.sh"),
        f"MODEL={cell.model}",
        f"BS={cell.batch_size}",
        f"MODEL_DIR={folder}",
        f"DEVICE={device}",
        f"HPARAMS={settings['hparams']}",
        f"PYTHON={sys.executable}",
        f"PRECISION={PRECISIONS[cell.precision]}",
        *words,
    ]
    environment = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0", **os.environ}
    environment.pop("NVIDIA_TF32_OVERRIDE", None)
    if cell.precision == "fp32":
        environment["NVIDIA_TF32_OVERRIDE"] = "0"
    # In a separate session: Ctrl-C reaches only this program, which then ends the cell.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate(timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            return {"reason": f"not finished within {minutes} minutes"}
        finally:
            _end_process(process)
    if process.returncode:
        return {"reason": failure_reason(process.returncode, output)}
    figures = (
        training_figures(folder / "time_log.txt", dropped=dropped)
        if cell.mode == "training"
        else inference_figures(report, dropped=dropped)
    )
    return figures or {"reason": "exited with code 0, but logged no speed"}


def training_figures(log: Path, *, dropped: int) -> Outcome | None:
    """Return the figures in the log of `train.py --benchmark`; None if the log is incomplete."""
    intervals = read_intervals(log)
    speed = average_speed(intervals, dropped=dropped)
    entries = [entry["data"] for entry in read_log(log) if "machine_multiply_adds_per_second" in entry.get("data", {})]
    if speed is None or not entries:
        return None
    timed = intervals[dropped:]
    waited = sum(interval.input_seconds for interval in timed) / sum(interval.seconds for interval in timed)
    latency = {"p50": 1000 * speed.p50, "p95": 1000 * speed.p95}
    return _outcome(entries[0], speed.images_per_second, latency, waited, (dropped, len(timed)))


def inference_figures(report: Path, *, dropped: int) -> Outcome | None:
    """Return the figures in the report of `inspector.py --mode=benchmark`; None if there is none."""
    if not report.is_file():
        return None
    measured = json.loads(report.read_text(encoding="utf-8"))
    rate = measured["images_per_s"]["end_to_end"]
    return _outcome(measured, rate, measured["latency_ms"]["end_to_end"], None, (dropped, measured["runs"]))


def _outcome(
    machine: Mapping[str, Any],
    rate: float,
    latency: Mapping[str, float],
    input_share: float | None,
    steps: tuple[int, int],
) -> Outcome:
    work = machine["multiply_adds_per_image"]
    return {
        "images_per_second": rate,  # of all GPUs
        "p50_ms": latency["p50"],  # of a step
        "p95_ms": latency["p95"],
        "memory_bytes": machine["peak_device_memory_bytes"] or machine["peak_host_memory_bytes"],
        "input_share": input_share,  # share of the timed steps spent waiting for input
        "arithmetic_share": rate * work / machine["machine_multiply_adds_per_second"],
        "multiply_adds_per_image": work,  # of inference, or of a training step
        "dropped_steps": steps[0],
        "timed_steps": steps[1],
        "device": machine["device"],
        "load_average": machine["load_average"],
    }


def failure_reason(code: int, output: str) -> str:
    """Return in a few words why a cell failed."""
    of_ranks = [line for line in output.splitlines() if _RANK.match(line)]  # more specific than the lines of horovodrun
    lines = [line for line in (_RANK.sub("", line).strip() for line in of_ranks or output.splitlines()) if line]
    errors = [match[1] for line in lines if (match := re.search(r"[\w-]+\.(?:py|sh): error: (.+)", line))]
    if errors:
        # without the advice after the colon
        out_of_memory = [error.partition(": ")[0] for error in errors if error.startswith("out of memory")]
        return (out_of_memory or errors)[0]
    if code in (137, -9):
        return f"killed, probably out of memory (exit code {code})"
    return f"exit code {code}" + (f": {lines[-1]}" if lines else "")


def _end_process(process: subprocess.Popen) -> None:
    """Terminate a launcher, which ends its processes, and kill its session if it hangs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


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
    write_table(folder, settings, outcomes)
    for cell in [cell for cell in cells if outcomes[cell] == _PENDING]:
        if cell.mode == "training" and not records:
            records = _synthetic_records(folder, hparams.input_size)
        outcomes[cell] = run_cell(
            cell, folder, settings, records=records, device=machine.device, minutes=FLAGS.minutes_per_cell
        )
        if "reason" not in outcomes[cell]:
            stored = {"cell": cell._asdict(), "settings": settings, "outcome": outcomes[cell]}
            write_text(_path(folder, cell), json.dumps(stored, indent=1) + "\n")
        write_table(folder, settings, outcomes)
        print(f"{cell.name}: {_summary(outcomes[cell])}", flush=True)
    print(f"wrote {folder}/matrix.md")


_PENDING = {"reason": "pending"}


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}.json"


def _stored_outcome(folder: Path, cell: Cell, settings: Mapping[str, Any]) -> Outcome:
    """Return the outcome of an earlier call with the same settings, else pending."""
    path = _path(folder, cell)
    path.parent.mkdir(exist_ok=True)
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return stored["outcome"] if stored.get("settings") == settings else _PENDING


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


def write_table(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[Cell, Outcome]) -> None:
    """Write matrix.md."""
    write_text(folder / "matrix.md", _markdown(settings, [_row(outcomes, cell) for cell in outcomes]))


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
