"""The throughput matrix: its cells, what it reads, keeps and writes; with programs in the place of the real ones."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficientdet.run_log.journal import Interval, Journal
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from throughput import launching  # noqa: E402
from throughput.cells import Cell, Machine, cells_of, host_description  # noqa: E402
from throughput.figures import Figures, inference_figures, training_figures  # noqa: E402
from throughput.launching import Launch, Outcome, run_cell  # noqa: E402
from throughput.matrix import Matrix  # noqa: E402
from throughput.published import published_figures  # noqa: E402
from throughput.rendering import weak_scaling, write_tables  # noqa: E402

SETTINGS = {
    "commit": "abc",
    "machine": "a box",
    "hparams": "",
    "image_size": (64, 96),
    "records": "64 drawn images",
    "dropped_steps": 100,
    "timed_steps": 200,
}
A100 = Machine("gpu", "NVIDIA A100", 1, 8.0, True)
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


def measured(rate, timed=200):
    return Outcome(Figures(rate, 20.0, 30.0, 2 * 10**9, 0.25, 0.5, 10**9, 100, timed, "a chip", 1.5))


def fill(folder, cells, outcomes, *, settings=None, machine=None, retry_failed=False):
    """The matrix after a run in which these outcomes come one after the other, the cells that ran, and the output."""
    ran, waiting = [], iter(outcomes)

    def run(cell):
        ran.append(cell)
        outcome = next(waiting)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    matrix = Matrix(folder, cells, settings=settings or SETTINGS, retry_failed=retry_failed)
    said = []
    try:
        for line in matrix.measure(
            run,
            skip_reason=machine.skip_reason if machine else lambda cell: "",
            written=lambda: write_tables(folder, matrix),
        ):
            said.append(line)
    except KeyboardInterrupt:
        pass
    return matrix, ran, said


def table(folder):
    """The cells of each row of the Markdown's first table, without its head."""
    lines = (folder / "matrix.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([part.strip() for part in line.strip("|").split("|")])
    return rows


def test_cells_are_all_combinations_once_fewest_gpus_first():
    found = cells_of(model="m", mode="training", gpus=(1, 8), precisions=["fp32", "amp", "fp32"], batch_sizes=(2, 4))
    assert [tuple(found_cell[2:]) for found_cell in found] == [
        (1, "fp32", 2),
        (1, "fp32", 4),
        (1, "amp", 2),
        (1, "amp", 4),
        (8, "fp32", 2),
        (8, "fp32", 4),
        (8, "amp", 2),
        (8, "amp", 4),
    ]
    with pytest.raises(InputError, match="--precision=fp64: expected some of fp32,tf32,amp,bf16"):
        cells_of(model="m", mode="training", gpus=(1,), precisions=["fp64"], batch_sizes=(2,))


@pytest.mark.parametrize(
    ("machine", "asked", "reason"),
    [
        (A100, cell(precision="tf32"), ""),
        (A100, cell(gpus=8), "1 GPU here"),
        (A100._replace(count=4), cell(gpus=8), "4 GPUs here"),
        (A100._replace(count=8), cell(gpus=8), ""),
        (
            A100._replace(count=8, has_horovod=False),
            cell(gpus=8),
            "Horovod is not installed: bash scripts/install_horovod.sh",
        ),
        (A100._replace(count=8), cell(gpus=8, mode="inference"), "inference is one process"),
        (Machine("gpu", "Tesla V100", 1, 7.0, True), cell(precision="tf32"), "Tesla V100 has no TF32"),
        (Machine("gpu", "Tesla V100", 1, 7.0, True), cell(precision="amp"), ""),
        (Machine("cpu", "CPU with 2 cores", 2, 0.0, True), cell(gpus=2, precision="bf16"), ""),
        (Machine("cpu", "CPU with 2 cores", 2, 0.0, True), cell(gpus=8), "CPU with 2 cores here, no GPU"),
        (
            Machine("cpu", "CPU with 2 cores", 2, 0.0, True),
            cell(precision="amp"),
            "amp is for GPUs, CPU with 2 cores here",
        ),
    ],
)
def test_what_a_machine_cannot_run_says_why(machine, asked, reason):
    assert machine.skip_reason(asked) == reason


def test_gpus_are_nvidia_smis(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("""#!/bin/sh
if [ $# = 0 ]; then echo '| NVIDIA-SMI 570.86.15   Driver Version: 570.86.15   CUDA Version: 12.8 |'
else echo 'NVIDIA H200, 9.0, 570.86.15, 143771'; echo 'NVIDIA H200, 9.0, 570.86.15, 143771'; fi
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Machine.here("auto")[:4] == ("gpu", "NVIDIA H200", 2, 9.0)
    assert Machine.here("auto").description.startswith(
        "NVIDIA H200, 143,771 MiB, driver 570.86.15, CUDA 12.8 by the driver"
    )
    assert re.fullmatch(r"CPU with \d+ cores, [\d,]+ MiB", Machine.here("cpu").description)
    assert re.fullmatch(r".+, \d+ cores, [\d,]+ MiB of RAM, .+, Linux \S+", host_description())
    assert Machine.here("cpu").device == "cpu"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert Machine.here("auto").device == "cpu"
    with pytest.raises(InputError, match="--device=gpu: nvidia-smi shows none"):
        Machine.here("gpu")


def test_figures_of_a_training_by_hand(tmp_path):
    """Three steps dropped; then 2, 2, 2 and 4 s for 8 images each, 0.5 s of them waiting, and 40 G multiply-adds."""
    with Journal(tmp_path) as journal:
        for step, seconds in enumerate((50.0, 9.0, 9.0, 2.0, 2.0, 2.0, 4.0)):
            journal.interval(Interval(step, step + 1, 8, seconds, 0.5))
        journal.finish(training_loss=1.0, seconds=99.0, devices=1)
        assert training_figures(tmp_path / "time_log.txt", dropped=3) is None  # it broke off
        journal.log((), SURROUNDINGS)
    found = training_figures(tmp_path / "time_log.txt", dropped=3)
    assert found == Figures(
        images_per_second=3.2,
        p50_ms=2000.0,
        p95_ms=pytest.approx(3700.0),
        memory_bytes=2e9,
        input_share=0.2,
        arithmetic_share=pytest.approx(0.08),
        multiply_adds_per_image=10**9,
        dropped_steps=3,
        timed_steps=4,
        device="a chip",
        load_average=1.5,
    )
    assert found.is_short
    assert training_figures(tmp_path / "time_log.txt", dropped=7) is None
    assert training_figures(tmp_path / "nosuch.txt", dropped=3) is None


def test_figures_of_an_inference_by_hand(tmp_path):
    report = {
        **SURROUNDINGS,
        "peak_device_memory_bytes": 5,
        "runs": 200,
        "images_per_s": {"end_to_end": 20.0, "network": 25.0},
        "latency_ms": {"end_to_end": {"p50": 99.0, "p95": 120.0}, "network": {"p50": 80.0, "p95": 90.0}},
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    found = inference_figures(tmp_path / "report.json", dropped=100)
    assert found[:6] == (20.0, 99.0, 120.0, 5, None, pytest.approx(0.5))  # of memory the device's, where there is one
    assert not found.is_short
    assert inference_figures(tmp_path / "nosuch.json", dropped=100) is None


def test_weak_scaling_by_hand(tmp_path):
    cells = [cell(gpus) for gpus in (1, 2, 8)]
    matrix, *_ = fill(tmp_path, cells, [measured(10.0), measured(15.0), Outcome(None, "exit code 1")])
    assert [weak_scaling(matrix, each) for each in cells] == [None, 0.75, None]
    matrix, *_ = fill(tmp_path / "without", [cell(2)], [measured(15.0)])
    assert weak_scaling(matrix, cell(2)) is None


def test_tables(tmp_path):
    """What was not measured says why and has no figure; what others published stands in columns of its own."""
    cells = cells_of(
        model="mask-rcnn-resnet50", mode="training", gpus=(1, 8), precisions=["fp32", "amp"], batch_sizes=(2, 4)
    )
    outcomes = [
        measured(10.5),
        Outcome(None, "out of memory at --batch_size=4"),
        measured(12.25, timed=20),
        measured(13.0),
    ]
    fill(tmp_path, cells, outcomes, machine=A100)
    rows = table(tmp_path)
    assert [row[:3] for row in rows] == [[str(each.gpus), each.precision, str(each.batch_size)] for each in cells]
    assert [row[3] for row in rows] == [
        "10.5",
        "not run: out of memory at --batch_size=4",
        "12.25 \\*",
        "13",
        *["not run: 1 GPU here"] * 4,
    ]
    assert rows[0][4:11] == ["20", "30", "2.00 GB", "25.0%", "-", "-", "50.0%"]
    assert [row[9] for row in rows[2:4]] == ["1.17", "-"]  # 12.25 over 10.5; batch 4 has no fp32
    assert [row[4:11] for row in rows if row[3].startswith("not run")] == [[""] * 7] * 5
    # mlperf-detectors.md 7.1: Paddle's report and the logs beside it
    assert [row[11] for row in rows][:3] == ["9.2; 5.3", "12; 8.5; 9.8; 5.8", "10.4; 8.1"]
    assert rows[4][11:] == ["37.8", "NVIDIA TF2, run by Paddle, V100-SXM2-16G"]
    text = (tmp_path / "matrix.md").read_text()
    assert "fewer than 100 steps dropped or 200 timed" in text
    assert "64 x 96 pixels; 64 drawn images; a box; a chip" in text
    with (tmp_path / "matrix.csv").open(newline="") as stream:
        found = list(csv.DictReader(stream))
    assert [row["images_per_second"] for row in found] == ["10.5", "", "12.25", "13.0", "", "", "", ""]
    assert found[4]["published_images_per_second"] == "37.8"
    assert found[4]["not_run"] == "1 GPU here"
    stored = json.loads((tmp_path / "matrix.json").read_text())
    assert stored["settings"]["commit"] == "abc"
    assert [row["weak_scaling"] for row in stored["cells"]] == [None] * 8
    assert [row["is_short"] for row in stored["cells"]][:4] == [False, None, True, False]


def test_more_than_the_machine_does_is_no_share(tmp_path):
    busy = Outcome(measured(10.0).figures._replace(arithmetic_share=2.84))
    fill(tmp_path, [cell()], [busy])
    assert table(tmp_path)[0][10] == "none: the machine was busier during the product"


def test_a_model_that_nobody_measured(tmp_path):
    fill(tmp_path, [cell(model="retinanet-resnet18")], [measured(10.0)])
    assert [row[11:] for row in table(tmp_path)] == [["-", "-"]]
    text = (tmp_path / "matrix.md").read_text()
    assert "No published figure of this model is known here." in text
    assert "fewer than" not in text


def test_goes_on_where_it_was_stopped(tmp_path):
    cells = [cell(batch_size=size) for size in (2, 4, 8)]
    _, ran, _ = fill(tmp_path, cells, [measured(1.0), KeyboardInterrupt()])
    assert ran == cells[:2]
    assert [row[3] for row in table(tmp_path)] == ["1", *["not run: pending"] * 2]
    matrix, ran, said = fill(tmp_path, cells, [measured(2.0), Outcome(None, "exit code 1")])
    assert ran == cells[1:]
    assert said[0] == "mask-rcnn-resnet50-training-1x-fp32-batch-2: 1 images/s (measured before)"
    assert [matrix[each].figures and matrix[each].figures.images_per_second for each in cells] == [1.0, 2.0, None]
    again, ran, _ = fill(tmp_path, cells, [])
    assert ran == []
    assert [again[each] for each in cells] == [matrix[each] for each in cells]
    _, ran, _ = fill(tmp_path, cells, [measured(3.0)], retry_failed=True)
    assert ran == cells[2:]


def test_other_settings_measure_anew_and_say_so(tmp_path):
    cells = [cell()]
    fill(tmp_path, cells, [measured(1.0)])
    matrix, ran, said = fill(tmp_path, cells, [measured(2.0)], settings={**SETTINGS, "commit": "def"})
    assert ran == cells
    assert said[0] == "mask-rcnn-resnet50-training-1x-fp32-batch-2: again, as commit was 'abc' and is 'def'"
    assert matrix[cells[0]].figures.images_per_second == 2.0


def test_published_figures_name_their_source():
    found = [
        row
        for model in ("efficientdet-d0", "retinanet-resnext50", "ssd300-resnet34", "mask-rcnn-resnet50")
        for mode in ("training", "inference", "accuracy")
        for row in published_figures(model=model, mode=mode)
    ]
    with (ROOT / "benchmarks" / "throughput" / "published.csv").open(newline="") as stream:
        assert len(found) == len(list(csv.DictReader(stream)))
    for row in found:
        assert re.search(r"https://github\.com/\S+", row.source), row
        assert row.images_per_second or row.box_ap


def test_all_rows_of_the_references_tables_are_there(tmp_path):
    """NVIDIA's README: 6 accuracies, 5 seeds of mean 34.39, and 4 columns of latencies, 3 of them up to 128 images."""
    ours = [
        row for row in published_figures(model="efficientdet-d0", mode="accuracy") if row.program == "NVIDIA TF2 22.03"
    ]
    assert [(row.gpus, row.precision, row.box_ap, row.hours) for row in ours if row.hours] == [
        (8, "tf32", 34.53, 8.5),
        (8, "amp", 34.27, 4.6),
        (8, "fp32", 34.42, 16.9),
        (8, "amp", 34.45, 14.3),
        (32, "fp32", 34.14, 5.6),
        (32, "amp", 34.02, 4.19),
    ]
    seeds = [row.box_ap for row in ours if not row.hours]
    assert (len(seeds), sum(seeds) / 5) == (5, pytest.approx(34.396))
    latencies = published_figures(model="efficientdet-d0", mode="inference")
    assert len(latencies) == 9 + 3 * 8
    for row in latencies:  # the two columns of the README agree
        assert row.images_per_second == pytest.approx(1000 * row.batch_size / row.latency_ms, rel=0.02)
    fill(tmp_path, [cell(model="efficientdet-d0")], [measured(10.0)])
    assert (
        "| 8 A100-80G | amp | 200 | 2174 | 34.27 | 4.6 | NVIDIA TF2 22.03 | https://"
        in (tmp_path / "matrix.md").read_text()
    )


# A cell through the real launcher

WRITES_A_LOG = f"""
sys.path.insert(0, {str(ROOT)!r})
from efficientdet.run_log.journal import Interval, Journal
with Journal(flags["model_dir"], loggers=()) as journal:
    for step in range(int(flags["benchmark_steps"])):
        journal.interval(Interval(step, step + 1, int(flags["batch_size"]), 0.5, 0.0))
    journal.log((), {SURROUNDINGS!r})
"""
WRITES_A_REPORT = f"""
latency = {{"p50": 1.0, "p95": 2.0}}
json.dump({{**{SURROUNDINGS!r}, "runs": int(flags["bm_runs"]), "images_per_s": {{"end_to_end": 7.0}},
           "latency_ms": {{"end_to_end": latency}}}}, open(flags["output_json"], "w"))
"""


@pytest.fixture
def launch(tmp_path):
    """A function: a launch whose interpreter runs this text in the place of a program, its flags at hand."""
    (tmp_path / "train-0.tfrecord").touch()

    def with_program(text, **changes):
        program = tmp_path / "python"
        program.write_text(f"""#!{sys.executable}
import json, os, signal, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--"))
{text}""")
        program.chmod(0o755)
        return Launch(
            folder=tmp_path,
            records=f"{tmp_path}/train-*",
            device="cpu",
            hparams="image_size=64",
            dropped=2,
            timed=3,
            minutes=changes.pop("minutes", 1),
            python=str(program),
        )

    return with_program


def test_a_training_cell_through_the_launcher(launch, tmp_path):
    outcome = run_cell(
        cell(precision="bf16", batch_size=4),
        launch(WRITES_A_LOG + "print(json.dumps([sys.argv, os.environ.get('NVIDIA_TF32_OVERRIDE')]))"),
    )
    assert outcome.reason == ""
    assert (outcome.figures.images_per_second, outcome.figures.timed_steps, outcome.figures.dropped_steps) == (
        8.0,
        3,
        2,
    )
    [output] = (tmp_path / "runs" / "mask-rcnn-resnet50-training-1x-bf16-batch-4").glob("train-*.log")
    words, override = json.loads(output.read_text().splitlines()[-1])
    assert words[1] == str(ROOT / "train.py")
    assert "--precision=mixed_bfloat16" in words
    assert {"--batch_size=4", "--hparams=image_size=64", "--benchmark=True", "--model_name=mask-rcnn-resnet50"} <= {
        *words
    }
    assert not any(word.startswith("--backbone_init") for word in words)  # a benchmark downloads nothing
    assert override is None


def test_true_float32_is_asked_for(launch, tmp_path):
    run_cell(cell(), launch("print(os.environ['NVIDIA_TF32_OVERRIDE'])"))
    [output] = (tmp_path / "runs").glob("*/train-*.log")
    assert output.read_text().splitlines()[-1] == "0"


def test_an_inference_cell_through_the_launcher(launch):
    outcome = run_cell(cell(mode="inference"), launch(WRITES_A_REPORT))
    assert (outcome.figures.images_per_second, outcome.figures.timed_steps, outcome.figures.input_share) == (
        7.0,
        3,
        None,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "print('[1]<stderr>: train.py: error: out of memory at --batch_size=2 --eval_batch_size=16: "
            "--batch_size=1 should fit');"
            "sys.exit(1)",
            "out of memory at --batch_size=2 --eval_batch_size=16",
        ),
        (
            "print('train.py: error: hparam zz does not exist', file=sys.stderr); sys.exit(2)",
            "hparam zz does not exist",
        ),
        ("raise ZeroDivisionError('division by zero')", "exit code 1: ZeroDivisionError: division by zero"),
        (
            "print('[1]<stderr>:KeyError: 3'); print('horovodrun: error: one or more'); print('Exit code: 1'); "
            "sys.exit(1)",
            "exit code 1: KeyError: 3",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "killed, probably out of memory (exit code 137)",
        ),
        ("", "exited with code 0, but logged no speed"),
    ],
)
def test_a_cell_that_fails_says_why(launch, text, reason):
    assert run_cell(cell(), launch(text)) == Outcome(None, reason)


def test_the_launchers_own_refusal_is_a_reason(launch, tmp_path):
    (tmp_path / "train-0.tfrecord").unlink()
    outcome = run_cell(cell(), launch(""))
    assert outcome.reason == f"no records match TRAIN={tmp_path}/train-*; set DATA= to the folder of train-* and val-*"


def is_running(number):
    """Whether a process does anything; one that no one has fetched the exit code of does not."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_cell_that_hangs_is_given_up_with_all_that_it_started(launch, tmp_path, monkeypatch):
    """One process ends when asked to, its child, in a session of its own as Horovod's are, does not."""
    monkeypatch.setattr(launching, "_SECONDS_TO_END", 1)
    hangs = f"""
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({str(tmp_path / "numbers")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(600)
"""
    outcome = run_cell(cell(), launch(hangs, minutes=0.02))
    assert outcome == Outcome(None, "not finished within 0.02 minutes")
    for number in (tmp_path / "numbers").read_text().split():
        deadline = time.monotonic() + 30  # a kill takes a moment
        while is_running(number):
            assert time.monotonic() < deadline
            time.sleep(0.05)


MISTAKES = [
    ("--precision=fp64", "--precision=fp64: expected some of fp32,tf32,amp,bf16"),
    ("--gpus=0", "--gpus=0: expected whole"),
    ("--batchsizes=2", "the nearest is --batch_sizes"),
    ("--records=/nosuch/x-*", "/nosuch/x-*"),
]


def call(*flags):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks" / "throughput_matrix.py"), *flags],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_mistake_is_one_line_and_2():
    for process, (flag, message) in [(call(flag), (flag, message)) for flag, message in MISTAKES]:
        shown, error = process.communicate(timeout=120)
        assert (process.returncode, shown, error.count("\n")) == (2, "", 1), flag
        assert error.startswith("throughput_matrix.py: error: ")
        assert message in error


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
    assert (process.returncode, error) == (
        143,
        "throughput_matrix.py: stopped by SIGTERM; run the same command to resume\n",
    )
    rows = table(tmp_path)
    assert [row[:3] for row in rows] == [["1", "fp32", "1"], ["1", "fp32", "2"]]
    assert float(rows[0][3].removesuffix(" \\*")) > 0
    assert rows[1][3] == "not run: pending"
    assert json.loads((tmp_path / "matrix.json").read_text())["cells"][0]["arithmetic_share"] > 0
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1
