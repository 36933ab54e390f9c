"""The throughput matrix: what a machine can run, figures and tables by hand, and cells through the real launcher."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl import flags
from text_tables import rows

from efficientdet.run_log.journal import Interval, Journal
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import throughput_matrix  # noqa: E402
from throughput_matrix import (  # noqa: E402
    Cell,
    Machine,
    failure_reason,
    run_cell,
    training_figures,
    write_table,
)

SETTINGS = {
    "commit": "abc",
    "machine": "a box",
    "hparams": "image_size=64",
    "image_size": (64, 96),
    "records": "64 drawn images",
    "dropped_steps": 2,
    "timed_steps": 3,
}
A100 = Machine("gpu", "NVIDIA A100", 1, 8.0, True)
V100 = Machine("gpu", "Tesla V100", 1, 7.0, True)
CPU = Machine("cpu", "CPU with 2 cores", 2, 0.0, True)
SURROUNDINGS = {
    "device": "a chip",
    "load_average": 1.5,
    "peak_host_memory_bytes": 2e9,
    "peak_device_memory_bytes": None,
    "multiply_adds_per_image": 10**9,
    "machine_multiply_adds_per_second": 4e10,
}


def cell(gpus=1, precision="fp32", batch_size=2, model="mask-rcnn-resnet50", mode="training"):
    return Cell(model, mode, gpus, precision, batch_size)


def measured(rate, timed=200, **changes):
    return {
        "images_per_second": rate,
        "p50_ms": 20.0,
        "p95_ms": 30.0,
        "memory_bytes": 2 * 10**9,
        "input_share": 0.25,
        "arithmetic_share": 0.5,
        "multiply_adds_per_image": 10**9,
        "dropped_steps": 100,
        "timed_steps": timed,
        "device": "a chip",
        "load_average": 1.5,
        **changes,
    }


def table(folder):
    """Return the cells of each row of the Markdown's first table, without its head."""
    rows = [line.strip("|").split("|") for line in (folder / "matrix.md").read_text().split("\n\n")[2].splitlines()]
    return [[part.strip() for part in row] for row in rows[2:]]


@pytest.mark.parametrize(
    ("machine", "asked", "reason"),
    [
        (A100, cell(precision="tf32"), ""),
        (A100, cell(gpus=8), "1 GPU here"),
        (A100._replace(count=4), cell(gpus=8), "4 GPUs here"),
        (A100._replace(count=8), cell(gpus=8), ""),
        (A100._replace(count=8, has_horovod=False), cell(gpus=8), "Horovod is not installed: bash scripts/install_h"),
        (A100._replace(count=8), cell(gpus=8, mode="inference"), "inference is one process"),
        (V100, cell(precision="tf32"), "Tesla V100 has no TF32"),
        (V100, cell(precision="amp"), ""),
        (CPU, cell(gpus=2, precision="bf16"), ""),
        (CPU, cell(gpus=8), "CPU with 2 cores here, no GPU"),
        (CPU, cell(precision="amp"), "amp is for GPUs, CPU with 2 cores here"),
    ],
)
def test_reports_why_a_machine_cannot_run_a_cell(machine, asked, reason):
    found = machine.skip_reason(asked)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_gpus_are_nvidia_smis(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nfor gpu in 1 2; do echo 'NVIDIA H200, 9.0, 570.86.15, 143771 MiB'; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = Machine.here("auto")
    assert machine[:4] == ("gpu", "NVIDIA H200", 2, 9.0)
    assert re.fullmatch(r"NVIDIA H200, 143771 MiB, driver 570.86.15; .+, \d+ cores", machine.description)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert Machine.here("auto").device == "cpu"
    with pytest.raises(InputError, match="--device=gpu: nvidia-smi shows none"):
        Machine.here("gpu")


def test_figures_of_a_training_by_hand(tmp_path):
    """Three steps dropped; then 2, 2, 2 and 4 s for 8 images each, 0.5 s of them waiting, and 40 G multiply-adds."""
    log = tmp_path / "time_log.txt"
    with Journal(tmp_path) as journal:
        for step, seconds in enumerate((50.0, 9.0, 9.0, 2.0, 2.0, 2.0, 4.0)):
            journal.interval(Interval(step, step + 1, 8, seconds, 0.5))
        journal.finish(training_loss=1.0, seconds=99.0, devices=1)
        assert training_figures(log, dropped=3) is None  # it broke off
        journal.log((), SURROUNDINGS)
    by_hand = {"p50_ms": 2000.0, "p95_ms": pytest.approx(3700.0), "input_share": 0.2, "dropped_steps": 3}
    by_hand["arithmetic_share"] = pytest.approx(0.08)
    assert training_figures(log, dropped=3) == measured(3.2, timed=4, **by_hand)
    assert training_figures(log, dropped=7) is None
    assert training_figures(tmp_path / "nosuch.txt", dropped=3) is None


def test_tables_by_hand(tmp_path):
    """A cell that was not measured has a reason and no figure; published figures are in separate columns."""
    outcomes = {
        cell(): measured(10.5),
        cell(batch_size=4): {"reason": "out of memory at --batch_size=4"},
        cell(precision="amp"): measured(12.25, timed=20),
        cell(precision="amp", batch_size=4): measured(13.0),
        cell(8): measured(63.0),
        cell(8, batch_size=4): {"reason": "1 GPU here"},
    }
    write_table(tmp_path, SETTINGS, outcomes)
    rows = table(tmp_path)
    assert [row[:3] for row in rows] == [[str(each.gpus), each.precision, str(each.batch_size)] for each in outcomes]
    failed, missing = "not run: out of memory at --batch_size=4", "not run: 1 GPU here"
    assert [row[3] for row in rows] == ["10.5", failed, "12.25 \\*", "13", "63", missing]
    assert rows[0][4:11] == ["20", "30", "2.00 GB", "25.0%", "-", "-", "50.0%"]
    assert [row[8:10] for row in rows] == [["-", "-"], ["", ""], ["-", "1.17"], ["-", "-"], ["0.75", "-"], ["", ""]]
    # mlperf-detectors.md 7.1: Paddle's report and the logs beside it
    assert [row[11] for row in rows][:3] == ["9.2; 5.3", "12; 8.5; 9.8; 5.8", "10.4; 8.1"]
    assert rows[4][11:] == ["37.8", "NVIDIA TF2, run by Paddle, V100-SXM2-16G"]
    text = (tmp_path / "matrix.md").read_text()
    assert "64 x 96 pixels; hparams image_size=64; 64 drawn images; a box; a chip" in text
    write_table(tmp_path, SETTINGS, {cell(model="retinanet-resnet18"): measured(10.0)})
    assert [row[11:] for row in table(tmp_path)] == [["-", "-"]]


# A cell through the real launcher

WRITES_A_LOG = f"""
sys.path.insert(0, {str(ROOT)!r})
from efficientdet.run_log.journal import Interval, Journal
with Journal(flags["model_dir"], loggers=()) as journal:
    for step in range(int(flags["benchmark_steps"])):
        journal.interval(Interval(step, step + 1, int(flags["batch_size"]), 0.5, 0.0))
    journal.log((), {SURROUNDINGS!r})
print(json.dumps([sys.argv, os.environ.get('NVIDIA_TF32_OVERRIDE')]))
"""
WRITES_A_REPORT = f"""
latency = {{"p50": 1.0, "p95": 2.0}}
json.dump({{**{SURROUNDINGS!r}, "runs": int(flags["bm_runs"]), "images_per_s": {{"end_to_end": 7.0}},
           "latency_ms": {{"end_to_end": latency}}}}, open(flags["output_json"], "w"))
"""


@pytest.fixture
def replace_python(tmp_path, monkeypatch):
    """Return a function that makes this text the interpreter of the measured programs, their flags at hand."""
    (tmp_path / "train-0.tfrecord").touch()

    def replace(text):
        program = tmp_path / "python"
        program.write_text(f"""#!{sys.executable}
import json, os, signal, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--"))
{text}""")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


def outcome_of(asked, folder, minutes=1):
    return run_cell(asked, folder, SETTINGS, records=f"{folder}/train-*", device="cpu", minutes=minutes)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_training_cell_through_the_launcher(replace_python, tmp_path, precision):
    replace_python(WRITES_A_LOG)
    outcome = outcome_of(cell(precision=precision, batch_size=4), tmp_path)
    assert (outcome["images_per_second"], outcome["timed_steps"], outcome["dropped_steps"]) == (8.0, 3, 2)
    [output] = (tmp_path / "runs" / f"mask-rcnn-resnet50-training-1x-{precision}-batch-4").glob("train-*.log")
    words, override = json.loads(output.read_text().splitlines()[-1])
    assert words[1] == str(ROOT / "train.py")
    wanted = {"--batch_size=4", "--hparams=image_size=64", "--benchmark=True", "--model_name=mask-rcnn-resnet50"}
    assert {*wanted, f"--precision={'mixed_bfloat16' if precision == 'bf16' else 'float32'}"} <= {*words}
    assert not any(word.startswith("--backbone_init") for word in words)  # a benchmark downloads nothing
    assert override == (None if precision == "bf16" else "0")  # true float32


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    rows(r"""
1 | '[1]<stderr>: train.py: error: out of memory at --batch_size=2: try 1' | out of memory at --batch_size=2
2 | 'train.py: error: hparam zz' | hparam zz
1 | "Traceback\nZeroDivisionError: division by zero" | exit code 1: ZeroDivisionError: division by zero
1 | '[1]<stderr>:KeyError: 3\nhorovodrun: error: one or more' | exit code 1: KeyError: 3
137 | '' | killed, probably out of memory (exit code 137)
3 | '' | exit code 3
"""),
)
def test_a_cell_that_fails_says_why(code, output, reason):
    assert failure_reason(code, output) == reason


def test_a_cell_that_hangs_is_ended(replace_python, tmp_path, monkeypatch):
    monkeypatch.setattr(throughput_matrix, "_SECONDS_TO_END", 1)
    replace_python("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flags, flush=True)
time.sleep(600)
""")
    assert outcome_of(cell(), tmp_path, minutes=0.02) == {"reason": "not finished within 0.02 minutes"}
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1


def test_an_interrupted_matrix_resumes(replace_python, tmp_path, monkeypatch, capsys):
    """The second of three cells fails, so that it alone runs again; all do after a change of settings."""
    if "batch_sizes" not in flags.FLAGS:
        throughput_matrix.define_flags()
    replace_python(WRITES_A_REPORT + "if flags['batch_size'] == '2' and not os.path.exists('fixed'): sys.exit(3)")
    monkeypatch.chdir(tmp_path)

    def lines(*words):
        flags.FLAGS.unparse_flags()
        words = ("--mode=inference", "--device=cpu", "--precision=fp32", f"--output_dir={tmp_path}/out", *words)
        flags.FLAGS(["matrix", "--batch_sizes=1,2,4", "--hparams=", *words])
        throughput_matrix.main()
        return [line.partition("batch-")[2] for line in capsys.readouterr().out.splitlines()[:-1]]

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert lines() == ["1: 7 images/s", "2: not run: exit code 3", "4: 7 images/s"]
        (tmp_path / "out" / "cells" / "efficientdet-d0-inference-1x-fp32-batch-4.json").unlink()  # as after a stop
        (tmp_path / "fixed").touch()
        assert lines() == ["1: 7 images/s (measured before)", "2: 7 images/s", "4: 7 images/s"]
        assert lines("--hparams=image_size=128") == ["1: 7 images/s", "2: 7 images/s", "4: 7 images/s"]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [row[3] for row in table(tmp_path / "out")] == ["7"] * 3


def call(*words):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "throughput_matrix.py"), *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
def test_a_real_cell_and_the_end_of_a_matrix(tmp_path):
    """The first cell of two completes; on a stop request the program stops in the second, and keeps nothing of it."""
    process = call(
        "--model=ssd300-resnet34",
        "--hparams=image_size=257,backbone_name=resnet18",
        "--mode=inference",
        "--device=cpu",
        "--precision=fp32",
        "--batch_sizes=1,2",
        "--dropped_steps=1",
        "--timed_steps=1",
        f"--output_dir={tmp_path}",
    )
    for line in process.stdout:
        if "batch-1: " in line:
            break
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    stopped = "throughput_matrix.py: stopped by SIGTERM; run the same command to resume\n"
    assert (process.returncode, error) == (143, stopped)
    rows = table(tmp_path)
    assert [row[:3] for row in rows] == [["1", "fp32", "1"], ["1", "fp32", "2"]]
    assert float(rows[0][3].removesuffix(" \\*")) > 0
    assert rows[1][3] == "not run: pending"
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1
