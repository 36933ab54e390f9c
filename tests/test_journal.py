import json
import math
from datetime import datetime

import numpy as np
import pytest

from efficientdet.run_log.journal import (
    TRAINING_UNITS,
    Interval,
    Journal,
    Speed,
    Stopwatch,
    average_speed,
    read_curves,
    read_intervals,
)
from efficientdet.run_log.loggers import Logger


def parsed(path):
    """The objects of a log; every line must be one."""
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    lines = text.splitlines()
    assert all(line.startswith("DLLL ") for line in lines)
    return [json.loads(line[5:], parse_constant=pytest.fail) for line in lines]


class Curves(Logger):
    """Keeps what it gets: scalars by tag, images and events."""

    name = "curves"

    def __init__(self):
        self.found, self.is_closed = {}, False

    def scalars(self, step, values):
        for tag, value in values.items():
            self.found.setdefault(tag, []).append((step, value))

    def images(self, step, images):
        self.scalars(step, images)

    def event(self, name, facts):
        self.found[name] = facts

    def close(self):
        self.is_closed = True


def test_the_lines_of_a_run(tmp_path, capsys):
    before, logger = datetime.now().timestamp(), Curves()
    with Journal(tmp_path, loggers=[logger]) as journal:
        journal.log((3, 7), {"loss": 1.5})
        journal.interval(Interval(10, 30, 160, 4.0, 1.5))
        journal.images(4, {"detections/0": "an image"})
        journal.event("epoch_finished", epoch=2)
    lines = parsed(tmp_path / "time_log.txt")
    metadata = lines[: len(TRAINING_UNITS)]
    assert {line["metric"]: line["metadata"] for line in metadata} == {
        "avg_fps_training": {"unit": "images/s"},
        "avg_fps_training_per_GPU": {"unit": "images/s"},
        "avg_latency_training": {"unit": "s"},
        "latency_training_p50": {"unit": "s"},
        "latency_training_p95": {"unit": "s"},
        "input_wait": {"unit": "%"},
        "training_loss": {"unit": None},
        "e2e_training_time": {"unit": "s"},
        "validation_accuracy_mAP": {"unit": "%"},
        "target_mAP": {"unit": "%"},
        "time_to_target": {"unit": "min"},
    }
    assert all(line["type"] == "METADATA" for line in metadata)
    log, interval = lines[len(TRAINING_UNITS) :]
    assert (log["type"], log["step"], log["data"]) == ("LOG", [3, 7], {"loss": 1.5})
    assert (interval["step"], interval["data"]) == (
        "PARAMETER",
        {
            "Latency": "4.00 seconds",
            "fps": 40.0,
            "steps": [10, 30],
            "images": 160,
            "seconds": 4.0,
            "input_seconds": 1.5,
        },
    )
    for line in lines:
        assert set(line) - {"step", "data", "metric", "metadata"} == {"timestamp", "elapsedtime", "datetime", "type"}
        assert before <= float(line["timestamp"]) <= datetime.now().timestamp()
        assert datetime.strptime(line["datetime"], "%Y-%m-%d %H:%M:%S.%f").timestamp() == float(line["timestamp"])
        assert 0 <= float(line["elapsedtime"]) < 60
    assert capsys.readouterr().out == "3 7 loss 1.5\n"
    assert logger.found == {
        "global_step/sec": [(30, 5.0)],
        "examples/sec": [(30, 40.0)],
        "detections/0": [(4, "an image")],
        "epoch_finished": {"epoch": 2},
    }
    assert logger.is_closed


def test_a_resumed_run_appends_even_after_half_a_line(tmp_path):
    for step in (1, 2):
        with Journal(tmp_path, units={}) as journal:
            journal.log(step, {})
    assert [line["step"] for line in parsed(tmp_path / "time_log.txt")] == [1, 2]
    with (tmp_path / "time_log.txt").open("a") as stream:
        stream.write('DLLL {"timestamp": "1')
    with Journal(tmp_path, units={}) as journal:
        journal.log(3, {})
    lines = (tmp_path / "time_log.txt").read_text().splitlines()
    assert len(lines) == 4
    assert json.loads(lines[3][5:])["step"] == 3


def test_numbers_of_every_kind(tmp_path):
    with Journal(tmp_path, units={}) as journal:
        journal.log(
            np.int64(5),
            {
                "a": np.float32(0.5),
                "b": np.arange(2),
                "c": math.nan,
                "d": -math.inf,
                "e": None,
                "f": (1, np.bool_(True)),
                "g": "größe",
            },
        )
    line = parsed(tmp_path / "time_log.txt")[0]
    assert line["step"] == 5
    assert line["data"] == {"a": 0.5, "b": [0, 1], "c": "nan", "d": "-inf", "e": None, "f": [1, True], "g": "größe"}


def test_average_speed_by_hand():
    steady = [Interval(step, step + 1, 8, 2.0) for step in range(1, 9)]
    intervals = [Interval(0, 1, 8, 100.0), *steady, Interval(9, 11, 16, 8.0)]
    # The first of ten is left out: (8 * 8 + 16) images in 24 seconds, 10 steps; of eight times 2 s a step and once 4 s,
    # 0.95 of the way from the first to the last is 0.6 of the way from the eighth to the ninth.
    assert average_speed(intervals) == Speed(pytest.approx(80 / 24), pytest.approx(2.4), 2.0, pytest.approx(3.2))


def test_average_speed_of_few_intervals():
    assert average_speed([]) is None
    assert average_speed([Interval(0, 2, 8, 4.0)]) == Speed(2.0, 2.0, 2.0, 2.0)
    few = [Interval(step, step + 1, 8, 2.0 if step else 60.0) for step in range(6)]
    assert average_speed(few) == Speed(4.0, 2.0, 2.0, 2.0)  # without the compilation


def test_intervals_are_read_as_they_were_written(tmp_path):
    written = [Interval(0, 1, 8, 1 / 3, 0.1), Interval(1, 4, 24, 2.5)]
    with Journal(tmp_path) as journal:
        for interval in written:
            journal.interval(interval)
            journal.log((), {"loss": 1.0})
    with (tmp_path / "time_log.txt").open("a") as log:
        log.write('DLLL {"step": "PARAM')
    assert read_intervals(tmp_path / "time_log.txt") == written
    assert read_intervals(tmp_path / "nosuch.txt") == []


def test_finish_and_validation(tmp_path, capsys):
    with Journal(tmp_path, units=TRAINING_UNITS) as journal:
        for step in range(20):
            journal.interval(Interval(step, step + 1, 16, 2.0 if step >= 2 else 50.0))
        journal.validation(10, step=20, average_precision=0.51236)
        averages = journal.finish(
            training_loss=0.7,
            seconds=140.0,
            devices=4,
            input_wait=0.25,
            goal={"target_mAP": 34.0, "time_to_target": 2.25},
        )
    wanted = {
        "avg_fps_training": 8.0,
        "avg_fps_training_per_GPU": 2.0,
        "avg_latency_training": 2.0,
        "latency_training_p50": 2.0,
        "latency_training_p95": 2.0,
        "input_wait": 25.0,
        "training_loss": 0.7,
        "e2e_training_time": 140.0,
        "target_mAP": 34.0,
        "time_to_target": 2.25,
    }
    assert averages == wanted
    validation, curve, last = parsed(tmp_path / "time_log.txt")[-3:]
    assert (curve["step"], curve["data"]) == (20, {"validation/AP": 0.51236})
    assert (validation["step"], validation["data"]) == ([], {"epoch": 10, "validation_accuracy_mAP": 51.24})
    assert (last["step"], last["data"]) == ([], wanted)
    printed = capsys.readouterr().out
    assert "epoch 10 validation_accuracy_mAP 51.24 %\n" in printed
    assert "target_mAP 34 % time_to_target 2.25 min\n" in printed


def test_a_run_without_a_step_has_no_loss_and_no_speed_and_days_are_written_in_full(tmp_path, capsys):
    with Journal(tmp_path) as journal:
        assert journal.finish(training_loss=None, seconds=123456.7, devices=1) == {"e2e_training_time": 123456.7}
    assert capsys.readouterr().out == "e2e_training_time 123457 s\n"


def test_other_ranks_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Journal(None) as journal:
        journal.log(1, {"loss": 1.0})
        journal.curves(1, {"loss": 1.0})
        journal.interval(Interval(0, 1, 8, 2.0))
        journal.print("hello")
        assert journal.finish(training_loss=1.0, seconds=2.0, devices=1)["avg_fps_training"] == 4.0
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_curves_come_back_without_any_logger_and_a_repeated_step_counts_once(tmp_path):
    path = tmp_path / "log.txt"
    for values in ({1: 5.0, 2: 4.0}, {2: math.nan, 3: 2.0}):  # the second run went on from step 1
        with Journal(tmp_path, file_name="log.txt") as journal:
            for step, value in values.items():
                journal.curves(step, {"train/loss": value})
                journal.log((step,), {"val_loss": 1.0})
                journal.interval(Interval(step - 1, step, 8, 2.0))
        with path.open("a") as stream:
            stream.write('DLLL {"step": 9, "data": {"train/lo')  # killed
    found = read_curves(path)
    assert found.keys() == {"train/loss", "examples/sec"}
    assert found["examples/sec"] == [(1, 4.0), (2, 4.0), (3, 4.0)]
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3]
    assert [value for _, value in found["train/loss"]] == [5.0, pytest.approx(math.nan, nan_ok=True), 2.0]
    assert read_curves(tmp_path / "nothing") == {}


def test_seconds_by_name():
    times = iter([0.0, 3.0, 10.0, 11.0, 20.0, 24.0])
    watch = Stopwatch(clock=lambda: next(times))
    for name in ("input", "compute", "input"):
        with watch.measuring(name):
            pass
    assert watch.totals() == {"input": 7.0, "compute": 1.0}
    assert watch.recent_share("input") == pytest.approx(7 / 8)
    assert watch.recent_share("evaluation") == 0.0


def test_waiting_for_input_is_a_share_of_the_steps_alone():
    times = iter([0.0, 1.0, 1.0, 4.0, 10.0, 990.0, 990.0, 999.0])
    watch = Stopwatch(clock=lambda: next(times))
    for name in ("input", "compute", "evaluation", "checkpoints"):
        with watch.measuring(name):
            pass
    assert watch.recent_share("input") == 0.25
    assert watch.totals()["evaluation"] == 980.0
