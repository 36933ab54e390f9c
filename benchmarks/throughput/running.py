"""Run a cell with the launcher of the recipes and read its figures, or the reason why there are none."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficientdet.run_log.journal import average_speed, read_intervals, read_log
from program_support.marked_folders import claim_folder, refuse_unmarked
from throughput.machine import PRECISIONS, Cell
from throughput.tables import Outcome

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_END = 180  # horovodrun waits 60 s for its processes; a busy machine takes longer
_RANK = re.compile(r"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")  # horovodrun's, before each line of a process


def commit_here() -> str:
    """Return the commit of this checkout, marked if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{' and changes' * bool(changed)}"


def run_cell(
    cell: Cell,
    main_folder: Path,
    settings: Mapping[str, Any],
    *,
    records: str | None,
    device: str,
    minutes: float,
) -> Outcome:
    """Run a cell with the launcher of the recipes in a separate folder, which has its output; failures are outcomes.

    settings: hparams, dropped_steps and timed_steps.

    NVIDIA's libraries round float32 to TF32 by default, also in the matrix product that is timed for comparison.
    Horovod's stall timeout is off, as a step may be slow in several processes.
    """
    folder = main_folder / "runs" / cell.name
    refuse_unmarked(folder)
    shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder)
    dropped, timed = settings["dropped_steps"], settings["timed_steps"]
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
    ]
    report = folder / "report.json"
    if cell.mode == "training":
        command += [f"NGPU={cell.gpus}", "BACKBONE=", f"TRAIN={records}", f"STEPS={dropped + timed}"]
    else:
        command += [f"RUNS={timed}", f"--bm_warm_up_runs={dropped}", f"--output_json={report}"]
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
        "images_per_second": rate,
        "p50_ms": latency["p50"],
        "p95_ms": latency["p95"],
        "memory_bytes": machine["peak_device_memory_bytes"] or machine["peak_host_memory_bytes"],
        "input_share": input_share,
        "arithmetic_share": rate * work / machine["machine_multiply_adds_per_second"],
        "multiply_adds_per_image": work,
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
    """Terminate a process and its descendants, then kill them; horovodrun starts them in separate sessions."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        parents = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it ended
                _, _, fields = status.read_text(encoding="utf-8", errors="replace").rpartition(")")
                parents[int(status.parent.name)] = int(fields.split()[1])
        numbers = [process.pid]
        for number in numbers:  # grows during the loop
            numbers += [child for child, parent in parents.items() if parent == number]
        for number in reversed(numbers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
