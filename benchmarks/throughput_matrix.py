r"""Measure the throughput of one model by GPUs, precision and batch size, with the launcher of the recipes.

    python benchmarks/throughput_matrix.py --model=mask-rcnn-resnet50 --gpus=1,8 --precision=fp32,tf32,amp,bf16 \
        --batch_sizes=2,4,8 --records='DIR/train-*' [--mode=training|inference --hparams=image_size=512 \
        --output_dir=DIR --dropped_steps=100 --timed_steps=200 --device=auto|cpu --minutes_per_cell=30]

Writes matrix.md. A cell that cannot run here shows the reason. Published figures of other machines are in separate
columns. Running the same command again resumes an interrupted matrix, and repeats cells that failed.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from inference_table import published_figures

from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.families.registry import DEFAULT_MODEL
from efficientdet.run_log.journal import read_intervals, read_log
from program_support.atomic_files import write_text
from program_support.checked_fields import Count
from program_support.claimed_outputs import read_mark
from program_support.command_line import define_flag, run, whole_numbers
from program_support.processor import available_cores, processor_name

ROOT = Path(__file__).resolve().parents[1]
FLAGS = flags.FLAGS
PRECISIONS = {"fp32": "float32", "tf32": "float32", "amp": "mixed_float16", "bf16": "mixed_bfloat16"}  # to --precision
Outcome = Mapping[str, Any]  # figures, or the key "reason" alone: why the cell did not run
_SECONDS_TO_END = 180  # horovodrun waits 60 s for its processes; a busy machine takes longer
_HEAD = (
    "| GPUs | precision | batch per GPU | images/s | p50 ms | p95 ms | memory | input wait | load average | "
    "utilization | weak scaling | published: images/s, program, GPU |"
)


class Cell(NamedTuple):
    """One measurement: model, mode, GPUs, precision and batch size."""

    model: str
    mode: str  # training or inference
    gpus: int
    precision: str
    batch_size: str  # per GPU

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"{self.model}-{self.mode}-{self.gpus}x-{self.precision}-batch-{self.batch_size}"


def first_gpu() -> str:
    """Return the first GPU's name, memory, driver and compute capability; empty if there is no GPU."""
    query = "nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader"
    code, output = subprocess.getstatusoutput(query)
    return "" if code else output.partition("\n")[0]


def skip_reason(cell: Cell, gpu: str) -> str:
    """Return why a cell cannot run on this GPU ("": on the CPU), if not for a reason that the launcher states."""
    if cell.mode == "inference" and cell.gpus > 1:
        return "inference is one process"
    if not gpu and cell.precision in ("tf32", "amp"):
        return f"{cell.precision} is for GPUs"
    if not gpu and cell.gpus > available_cores():
        return f"{available_cores()} cores here, no GPU"
    if cell.precision == "tf32" and float(gpu.split(", ")[-1]) < 8.0:  # before Ampere
        return f"{gpu} has no TF32"
    return ""


def commit_here() -> str:
    """Return the commit of this checkout, marked if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty= and changes"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def run_cell(cell: Cell, folder: Path, settings: Mapping[str, Any], *, minutes: float) -> Outcome:
    """Run a cell in a folder of its own, which has its output; failures are outcomes.

    settings: records, hparams, dropped_steps, timed_steps and device.

    NVIDIA's libraries round float32 to TF32 by default, also in the matrix product that is timed for comparison.
    Horovod's stall timeout is off, as a step may be slow in several processes.
    """
    log, report = folder / "time_log.txt", folder / "report.json"
    log.unlink(missing_ok=True)  # a new training would continue it
    dropped, timed = settings["dropped_steps"], settings["timed_steps"]
    words = {
        "training": [f"NGPU={cell.gpus}", "BACKBONE=", f"TRAIN={settings['records']}", f"STEPS={dropped + timed}"],
        "inference": [f"RUNS={timed}", f"--bm_warm_up_runs={dropped}", f"--output_json={report}"],
    }
    command = [
        "timeout",  # in a process group of its own: Ctrl-C reaches only this program, which then ends the cell
        f"--kill-after={_SECONDS_TO_END}",
        f"{minutes}m",
        "bash",
        f"{ROOT}/scripts/benchmark/{cell.mode}.sh",
        f"MODEL={cell.model}",
        f"BS={cell.batch_size}",
        f"MODEL_DIR={folder}",
        f"DEVICE={settings['device']}",
        f"HPARAMS={settings['hparams']}",
        f"PYTHON={sys.executable}",
        f"PRECISION={PRECISIONS.get(cell.precision, cell.precision)}",
        *words[cell.mode],
    ]
    environment = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0", **os.environ}
    if cell.precision == "fp32":
        environment["NVIDIA_TF32_OVERRIDE"] = "0"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, errors="replace"
    ) as process:
        try:
            output, _ = process.communicate()
        finally:
            process.terminate()
    if process.returncode in (124, -signal.SIGKILL):  # of `timeout`, after SIGTERM and SIGKILL
        return {"reason": f"not finished within {minutes} minutes"}
    if process.returncode:
        return {"reason": failure_reason(process.returncode, output)}
    return training_figures(log, dropped) if cell.mode == "training" else inference_figures(report)


def training_figures(log: Path, dropped: int) -> Outcome:
    """Return the figures in the log of `train.py --benchmark`, and the facts about the machine."""
    *_, last = read_log(log)
    _, _, images, seconds, waits = np.transpose(read_intervals(log)[dropped:])
    p50, p95 = np.percentile(1000 * seconds, (50, 95))
    rate, input_share = np.array([images.sum(), waits.sum()]) / seconds.sum()
    return {**last["data"], "rate": rate, "p50": p50, "p95": p95, "input_share": input_share}


def inference_figures(report: Path) -> Outcome:
    """Return the figures in the report of `inspector.py --mode=benchmark`, and the facts about the machine."""
    measured = json.loads(report.read_text(encoding="utf-8"))
    figures = {**measured["latency_ms"]["end_to_end"], "rate": measured["images_per_s"]["end_to_end"]}
    return {**measured, **figures, "input_share": 0.0}  # pixels in memory


def failure_reason(code: int, output: str) -> str:
    """Return the exit code and the last error without its advice, or the last line if it is no error of ours."""
    lines = re.findall(r"error: ([^;\n]+)", output) or output.strip().splitlines() or ["no output"]
    return f"exit code {code}: {lines[-1]}"


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_string("model", DEFAULT_MODEL, "Model; see --model_name of train.py.")
    flags.DEFINE_enum("mode", "training", ["training", "inference"], "Mode to measure.")
    flags.DEFINE_list("gpus", ["1"], "Numbers of GPUs, such as 1,8; with --device=cpu of processes.")
    flags.DEFINE_list("precision", [*PRECISIONS], f"Precisions to measure, any of {','.join(PRECISIONS)}.")
    flags.DEFINE_list("batch_sizes", ["2", "4", "8"], "Batch size per GPU.")
    flags.DEFINE_string("hparams", "", "Hyperparameters: comma-separated key=value items, or a .yaml file.")
    flags.DEFINE_string("records", "", "Glob of TFRecords to train on.")
    flags.DEFINE_string("output_dir", "/tmp/throughput", "Output folder for the table and logs.")
    define_flag("dropped_steps", Count, 100, "Number of untimed steps at the start of a cell.")
    define_flag("timed_steps", Count, 200, "Number of timed steps after them.")
    flags.DEFINE_enum("device", "auto", ["auto", "cpu"], "Device. auto: GPUs if there are any, else the CPU.")
    define_flag("minutes_per_cell", Count, 30, "Timeout per cell in minutes.")


def main() -> None:
    """Measure every missing cell, and write the table after each."""
    sizes = itertools.product(whole_numbers(FLAGS.gpus, "gpus"), FLAGS.precision, FLAGS.batch_sizes)
    folder = Path(writable_folder(FLAGS.output_dir, "output_dir")).resolve()
    gpu = first_gpu() if FLAGS.device == "auto" else ""
    settings = {name: FLAGS[name].value for name in ("hparams", "records", "dropped_steps", "timed_steps")}
    settings |= {"device": "gpu" if gpu else "cpu", "machine": f"{gpu} {processor_name()}", "commit": commit_here()}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    outcomes: dict[Cell, Outcome] = {Cell(FLAGS.model, FLAGS.mode, *size): {"reason": "pending"} for size in sizes}
    print(_HEAD)
    for cell in outcomes:
        file = folder / cell.name / "cell.json"
        stored = read_mark(file)
        if reason := skip_reason(cell, gpu):
            outcomes[cell] = {"reason": reason}
        elif stored.get("settings") == settings:
            outcomes[cell] = stored["outcome"]
        else:
            outcomes[cell] = run_cell(cell, file.parent, settings, minutes=FLAGS.minutes_per_cell)
        if "reason" not in outcomes[cell]:
            write_text(file, json.dumps({"settings": settings, "outcome": outcomes[cell]}) + "\n")
        write_table(folder, settings, outcomes)
        print(_line(cell, outcomes), flush=True)
    print(f"wrote {folder}/matrix.md")


def write_table(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[Cell, Outcome]) -> None:
    """Write matrix.md."""
    facts = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items() if value)
    title = "## {}, {}".format(*next(iter(outcomes)))
    lines = [title, "", f"{facts}.", "", _HEAD, f"|{'---|' * 12}", *(_line(cell, outcomes) for cell in outcomes)]
    write_text(folder / "matrix.md", "\n".join(lines) + "\n")


def _line(cell: Cell, outcomes: Mapping[Cell, Outcome]) -> str:
    """Return a row: a cell, its figures or the reason why there are none, and published figures."""
    outcome = outcomes[cell]
    if "reason" in outcome:
        figures = ["not run: " + outcome["reason"].replace("|", "\\|"), *"-------"]
    else:
        rates = {other: measured["rate"] for other, measured in outcomes.items() if "rate" in measured}
        arithmetic = outcome["multiply_adds_per_image"] / outcome["machine_multiply_adds_per_second"]
        single = cell._replace(gpus=1)
        figures = [
            f"{outcome['rate']:.4g}",
            f"{outcome['p50']:,.1f}",
            f"{outcome['p95']:,.1f}",
            f"{(outcome['peak_device_memory_bytes'] or outcome['peak_host_memory_bytes']) / 1e9:.2f} GB",
            f"{outcome['input_share']:.1%}",
            str(outcome["load_average"]),
            f"{outcome['rate'] * arithmetic:.1%}",
            f"{outcome['rate'] / rates[single] / cell.gpus:.2f}" if single in rates else "-",
        ]
    published = published_figures(**{name: str(value) for name, value in cell._asdict().items()})
    texts = ["{images_per_second} ({program}, {gpu})".format_map(other) for other in published]
    return f"| {' | '.join(map(str, [*cell[2:], *figures, '; '.join(texts) or '-']))} |"


if __name__ == "__main__":
    define_flags()
    run(main)
