"""Run a cell with the launcher of the recipes and read its outcome."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from program_support.marked_folders import claim_folder, refuse_unmarked
from throughput.cells import PRECISIONS, Cell
from throughput.figures import Figures, inference_figures, training_figures

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_TO_END = 180  # horovodrun waits 60 s for its processes; a busy machine takes longer
_ERROR = re.compile(r"[\w-]+\.(?:py|sh): error: (.+)")
_RANK = re.compile(r"^\[\d+(?:,\d+)?\]<std(?:out|err)>: ?")  # horovodrun's, before each line of a process
_KILLED = (137, -9)


class Launch(NamedTuple):
    """Settings that all cells of a matrix share."""

    folder: Path
    records: str  # a glob; unused for inference
    device: str  # gpu or cpu
    hparams: str
    dropped: int
    timed: int
    minutes: int
    python: str = sys.executable


class Outcome(NamedTuple):
    """Figures of a cell, or the reason why there are none."""

    figures: Figures | None
    reason: str = ""


def run_cell(cell: Cell, launch: Launch) -> Outcome:
    """Run a cell in a separate folder, which has the output of the launcher. Failures are outcomes too."""
    folder = launch.folder / "runs" / cell.name
    refuse_unmarked(folder)
    shutil.rmtree(folder, ignore_errors=True)
    claim_folder(folder)
    done = _run(_command(cell, launch, folder), _environment(cell), seconds=60 * launch.minutes)
    if done is None:
        return Outcome(None, f"not finished within {launch.minutes} minutes")
    if done.returncode:
        return Outcome(None, _reason(done.returncode, done.stdout))
    figures = (
        training_figures(folder / "time_log.txt", dropped=launch.dropped)
        if cell.mode == "training"
        else inference_figures(folder / "report.json", dropped=launch.dropped)
    )
    return Outcome(figures, "" if figures else "exited with code 0, but logged no speed")


def commit_here() -> str:
    """Return the commit of this checkout, marked if files differ from it."""

    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "--short", "HEAD")
    return f"{commit} and changes" if git("status", "--porcelain", "--untracked-files=no") else commit or "unknown"


def _command(cell: Cell, launch: Launch, folder: Path) -> list[str]:
    shared = [
        f"MODEL={cell.model}",
        f"BS={cell.batch_size}",
        f"MODEL_DIR={folder}",
        f"DEVICE={launch.device}",
        f"HPARAMS={launch.hparams}",
        f"PYTHON={launch.python}",
        f"PRECISION={PRECISIONS[cell.precision]}",
    ]
    if cell.mode == "training":
        return [
            "bash",
            str(ROOT / "scripts" / "benchmark" / "training.sh"),
            *shared,
            f"NGPU={cell.gpus}",
            "BACKBONE=",
            f"TRAIN={launch.records}",
            f"STEPS={launch.dropped + launch.timed}",
        ]
    return [
        "bash",
        str(ROOT / "scripts" / "benchmark" / "inference.sh"),
        *shared,
        f"RUNS={launch.timed}",
        f"--bm_warm_up_runs={launch.dropped}",
        f"--output_json={folder / 'report.json'}",
    ]


def _environment(cell: Cell) -> dict[str, str]:
    """Return the environment of a cell.

    NVIDIA's libraries round float32 to TF32 by default, also in the matrix product that is timed for comparison.
    Horovod's stall timeout is off, as a step may be slow in several processes; a cell that hangs ends after
    --minutes_per_cell.
    """
    kept = {name: value for name, value in os.environ.items() if name != "NVIDIA_TF32_OVERRIDE"}
    return {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0", **kept} | (
        {"NVIDIA_TF32_OVERRIDE": "0"} if cell.precision == "fp32" else {}
    )


def _run(command: list[str], environment: dict[str, str], *, seconds: float) -> subprocess.CompletedProcess | None:
    """Return exit code and output; None on timeout. No process is left when this returns or raises."""
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
            output, _ = process.communicate(timeout=seconds)  # until the launcher's tee has written everything
            return subprocess.CompletedProcess(command, process.returncode, output)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """Terminate a process and its descendants, then kill them; horovodrun starts them in separate sessions."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        for number in [*_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()


def _descendants(number: int) -> list[int]:
    """Return the descendants of a process; none if there is no /proc."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended
            _, _, fields = status.read_text(encoding="utf-8", errors="replace").rpartition(")")
            children.setdefault(int(fields.split()[1]), []).append(int(status.parent.name))
    found = children.get(number, [])
    for child in found:  # grows during the loop
        found.extend(children.get(child, []))
    return found


def _reason(code: int, output: str) -> str:
    """Return in a few words why a cell failed."""
    of_ranks = [line for line in output.splitlines() if _RANK.match(line)]  # more specific than the lines of horovodrun
    lines = [line for line in (_RANK.sub("", line).strip() for line in of_ranks or output.splitlines()) if line]
    errors = [match[1] for line in lines if (match := _ERROR.search(line))]
    if errors:
        # without the advice after the colon
        out_of_memory = [error.partition(": ")[0] for error in errors if error.startswith("out of memory")]
        return (out_of_memory or errors)[0]
    if code in _KILLED:
        return f"killed, probably out of memory (exit code {code})"
    return f"exit code {code}" + (f": {lines[-1]}" if lines else "")
