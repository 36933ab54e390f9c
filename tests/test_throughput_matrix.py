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

from efficientdet.run_log.journal import Interval, Journal, read_intervals

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import throughput_matrix  # noqa: E402
from throughput_matrix import Cell, failure_reason, first_gpu, run_cell, skip_reason, training_figures, write_table  # noqa: E402

A100, V100 = "NVIDIA A100, 81920 MiB, 570.86.15, 8.0", "Tesla V100, 16384 MiB, 470.57.02, 7.0"
FACTS = {
    "load_average": 1.5,
    "peak_host_memory_bytes": 2e9,
    "peak_device_memory_bytes": None,
    "multiply_adds_per_image": 10**9,
    "machine_multiply_adds_per_second": 4e10,
}


def cell(gpus=1, precision="fp32", batch_size="2", model="mask-rcnn-resnet50", mode="training"):
    return Cell(model, mode, gpus, precision, batch_size)


def measured(rate, **changes):
    return {**FACTS, "rate": rate, "p50": 20.0, "p95": 1030.0, "input_share": 0.25, **changes}


def table(folder):
    """Return the cells of each row of matrix.md, without its head."""
    lines = (folder / "matrix.md").read_text().splitlines()[6:]
    return [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize(
    ("gpu", "asked", "reason"),
    [
        (A100, cell(precision="tf32"), ""),
        (A100, cell(gpus=8), ""),  # the launcher counts them
        (A100, cell(gpus=8, mode="inference"), "inference is one process"),
        (V100, cell(precision="tf32"), f"{V100} has no TF32"),
        (V100, cell(precision="amp"), ""),
        ("", cell(gpus=2, precision="bf16"), ""),
        ("", cell(gpus=8), "2 cores here, no GPU"),
        ("", cell(precision="amp"), "amp is for GPUs"),
    ],
)
def test_reports_why_a_machine_cannot_run_a_cell(gpu, asked, reason, monkeypatch):
    monkeypatch.setattr(throughput_matrix, "available_cores", lambda: 2)
    assert skip_reason(asked, gpu) == reason


def test_gpus_are_nvidia_smis(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nfor gpu in 1 2; do echo '{A100}'; done\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert first_gpu() == A100
    program.write_text("#!/bin/sh\necho has failed\nexit 9\n")
    assert first_gpu() == ""


def test_figures_of_a_training_by_hand(tmp_path):
    """Three steps dropped; then 2, 2, 2 and 4 s for 8 images each, .5 s of them waiting."""
    with Journal(tmp_path) as journal:
        for step, seconds in enumerate((50.0, 9.0, 9.0, 2.0, 2.0, 2.0, 4.0)):
            journal.interval(Interval(step, step + 1, 8, seconds, 0.5))
        journal.finish(training_loss=1.0, seconds=99.0, devices=1)
        journal.log((), FACTS)
    by_hand = measured(pytest.approx(3.2), p50=2000.0, p95=pytest.approx(3700.0), input_share=0.2)
    assert training_figures(tmp_path / "time_log.txt", 3) == by_hand


def test_tables_by_hand(tmp_path):
    """A cell that was not measured has a reason and no figure; published figures are in a separate column."""
    outcomes = {
        cell(): measured(10.5),
        cell(batch_size="4"): {"reason": "out of memory at | --batch_size=4"},
        cell(precision="amp"): measured(12.25),
        cell(precision="amp", batch_size="4"): measured(13.0),
        cell(8): measured(63.0, peak_device_memory_bytes=3e9),
    }
    write_table(tmp_path, {"hparams": "image_size=64", "records": "", "timed_steps": 3}, outcomes)
    assert "\n\nhparams image_size=64; timed steps 3.\n\n" in (tmp_path / "matrix.md").read_text()
    rows = table(tmp_path)
    assert [row[:3] for row in rows] == [[str(each.gpus), each.precision, each.batch_size] for each in outcomes]
    failed = "not run: out of memory at \\| --batch_size=4"
    assert [row[3] for row in rows] == ["10.5", failed, "12.25", "13", "63"]
    assert rows[0][4:10] == ["20.0", "1,030.0", "2.00 GB", "25.0%", "1.5", "26.2%"]
    assert [row[10] for row in rows] == ["1.00", "-", "1.00", "1.00", "0.75"]
    assert (rows[1][4:11], rows[4][6]) == (["-"] * 7, "3.00 GB")
    # mlperf-detectors.md 7.1: Paddle's report and the logs beside it
    assert rows[4][11] == "37.8 (NVIDIA TF2, run by Paddle, V100-SXM2-16G)"
    assert re.findall(r"([\d.]+) \(", rows[1][11]) == ["12", "8.5", "9.8", "5.8"]


# A cell through the real launcher

WRITES_A_LOG = f"""
sys.path.insert(0, {str(ROOT)!r})
from efficientdet.run_log.journal import Interval, Journal
with Journal(flags["model_dir"], loggers=()) as journal:
    for step in range(int(flags["benchmark_steps"])):
        journal.interval(Interval(step, step + 1, int(flags["batch_size"]), 0.5, 0.0))
    journal.log((), {FACTS!r})
print(json.dumps([sys.argv, os.environ.get('NVIDIA_TF32_OVERRIDE')]))
"""
WRITES_A_REPORT = f"""
latency = {{"p50": 1.0, "p95": 2.0}}
json.dump({{**{FACTS!r}, "images_per_s": {{"end_to_end": 7.0}}, "latency_ms": {{"end_to_end": latency}}}},
          open(flags["output_json"], "w"))
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
    settings = {"records": f"{folder}/train-*", "hparams": "image_size=64", "dropped_steps": 2, "timed_steps": 3}
    return run_cell(asked, folder / "cell", {**settings, "device": "cpu"}, minutes=minutes)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_training_cell_through_the_launcher(replace_python, tmp_path, precision):
    replace_python(WRITES_A_LOG)
    asked = cell(precision=precision, batch_size="4")
    assert [outcome_of(asked, tmp_path)["rate"] for _ in range(2)] == [8.0, 8.0]
    assert len(read_intervals(tmp_path / "cell" / "time_log.txt")) == 5  # of the second run alone
    output = next((tmp_path / "cell").glob("train-*.log"))
    words, override = json.loads(output.read_text().splitlines()[-1])
    assert words[1] == str(ROOT / "train.py")
    wanted = {"--batch_size=4", "--hparams=image_size=64", "--benchmark=True", "--model_name=mask-rcnn-resnet50"}
    assert {*wanted, f"--precision={'mixed_bfloat16' if precision == 'bf16' else 'float32'}"} <= {*words}
    assert not any(word.startswith("--backbone_init") for word in words)  # a benchmark downloads nothing
    assert override == (None if precision == "bf16" else "0")  # true float32


def test_the_launcher_says_what_is_wrong(tmp_path):
    for asked in (cell(batch_size="0"), cell(precision="fp8"), cell()):
        assert re.fullmatch(
            "exit code 2: (BS=0|PRECISION=fp8|no records match TRAIN=.+)", outcome_of(asked, tmp_path)["reason"]
        )


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    rows(r"""
2 | 'train.py: error: hparam zz; expected aa' | exit code 2: hparam zz
1 | "Traceback\nZeroDivisionError: division by zero\n\n" | exit code 1: ZeroDivisionError: division by zero
137 | '' | exit code 137: no output
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
    replace_python(
        WRITES_A_REPORT
        + "open('runs', 'a').write(flags['batch_size'])\n"
        + "if flags['batch_size'] == '2' and not os.path.exists('fixed'): sys.exit('x.py: error: no')"
    )
    monkeypatch.chdir(tmp_path)

    def runs_and_speeds(*words):
        flags.FLAGS.unparse_flags()
        words = ("--mode=inference", "--device=cpu", "--precision=fp32", f"--output_dir={tmp_path}/out", *words)
        flags.FLAGS(["matrix", "--batch_sizes=1,2,4", "--hparams=", *words])
        Path("runs").unlink(missing_ok=True)
        throughput_matrix.main()
        lines = [line.split(" | ")[3] for line in capsys.readouterr().out.splitlines()[1:-1]]
        assert lines == [row[3] for row in table(tmp_path / "out")]
        return Path("runs").read_text(), lines

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert runs_and_speeds() == ("124", ["7", "not run: exit code 1: no", "7"])
        (tmp_path / "out" / "efficientdet-d0-inference-1x-fp32-batch-4" / "cell.json").unlink()  # as after a stop
        (tmp_path / "fixed").touch()
        assert runs_and_speeds() == ("24", ["7"] * 3)
        assert runs_and_speeds("--hparams=image_size=128") == ("124", ["7"] * 3)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_real_cell_and_the_end_of_a_matrix(tmp_path):
    """The first cell of two completes; on a stop request the program stops in the second, and keeps nothing of it."""
    words = (
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
    with subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "throughput_matrix.py"), *words],
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        next(line for line in process.stdout if line.startswith("| 1 | fp32 | 1 |"))
        time.sleep(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 143
    done, stopped = table(tmp_path)
    assert float(done[3]) > 0
    assert stopped[:4] == ["1", "fp32", "2", "not run: pending"]
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1
