"""Cells of throughput_matrix.py: what this machine can run, one run with the launcher of the recipes, its figures."""

import importlib.util
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

from efficientdet.run_log.journal import average_speed, read_intervals, read_log
from program_support.claimed_outputs import claim_folder, refuse_unmarked
from program_support.errors import InputError
from program_support.processor import available_cores, processor_name

ROOT = Path(__file__).resolve().parents[1]
PRECISIONS = {"fp32": "float32", "tf32": "float32", "amp": "mixed_float16", "bf16": "mixed_bfloat16"}  # to --precision
Outcome = Mapping[str, Any]  # figures, or the key "reason" alone: why the cell did not run
_SECONDS_TO_END = 180  # horovodrun waits 60 s for its processes; a busy machine takes longer
_RANK = re.compile(r"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")  # horovodrun's, before each line of a process


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
    return _figures(entries[0], speed.images_per_second, latency, waited, (dropped, len(timed)))


def inference_figures(report: Path, *, dropped: int) -> Outcome | None:
    """Return the figures in the report of `inspector.py --mode=benchmark`; None if there is none."""
    if not report.is_file():
        return None
    measured = json.loads(report.read_text(encoding="utf-8"))
    rate = measured["images_per_s"]["end_to_end"]
    return _figures(measured, rate, measured["latency_ms"]["end_to_end"], None, (dropped, measured["runs"]))


def _figures(
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
