import io
import re
import sys

import pytest

from program_support.progress import Progress, duration


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def test_lines_of_a_log_by_hand(clock):
    stream = io.StringIO()
    with Progress("train", total=600, steps_per_epoch=30, stream=stream, clock=clock) as progress:
        progress.show(loss=1.23456, lr="0.08")
        for _ in range(64):
            clock.now += 0.5
            progress.advance(images=8)
    # One at once, then every 10 seconds, 20 steps; the last as the context ends.
    assert stream.getvalue().splitlines() == [
        "train: epoch 1/20 step 1/30 loss 1.235 lr 0.08",
        "train: epoch 1/20 step 21/30 loss 1.235 lr 0.08 16.0 images/s ETA 4:50",
        "train: epoch 2/20 step 11/30 loss 1.235 lr 0.08 16.0 images/s ETA 4:40",
        "train: epoch 3/20 step 1/30 loss 1.235 lr 0.08 16.0 images/s ETA 4:30",
        "train: epoch 3/20 step 4/30 loss 1.235 lr 0.08 16.0 images/s ETA 4:28",
    ]


def test_an_evaluation_slows_no_step_down(clock):
    stream = io.StringIO()
    with Progress("train", total=20, steps_per_epoch=10, stream=stream, clock=clock) as progress:
        for _ in range(10):
            clock.now += 2.0
            progress.advance(images=8)
        with progress.pausing():
            clock.now += 300.0
        clock.now += 2.0
        progress.advance(images=8)
    assert stream.getvalue().splitlines()[-1] == "train: epoch 2/2 step 1/10 4.0 images/s ETA 0:18"


def test_a_resumed_run_counts_only_its_own_time(clock):
    stream = io.StringIO()
    with Progress("train", total=100, steps_per_epoch=10, done=50, stream=stream, clock=clock) as progress:
        for _ in range(2):
            clock.now += 2.0
            progress.advance(images=4)
    assert stream.getvalue().splitlines()[-1] == "train: epoch 6/10 step 2/10 2.0 images/s ETA 1:36"


def test_a_slow_start_counts_for_nothing_where_patience_is_asked_for(clock):
    """The first image after 390 s, from then on four a second: of 1000, 10 s later, 240 s are left."""
    stream, start = io.StringIO(), clock.now
    with Progress("convert", total=1000, noun="image", stream=stream, clock=clock, slow_start=True) as progress:
        told = 0
        for seconds, done in ((200.0, 0), (390.0, 1), (395.0, 20), (400.0, 41), (401.0, 45)):
            clock.now = start + seconds
            progress.advance(done - told, images=done - told)
            told = done
    assert stream.getvalue().splitlines() == [
        "convert: image 41/1000 4.0 images/s ETA 4:00",
        "convert: image 45/1000 4.0 images/s ETA 3:59",
    ]


def test_a_first_step_that_is_compiled_is_no_part_of_the_time_left(clock):
    """Compiled for five minutes, from then on four steps a second: after ten more seconds 59 of 100 are left."""
    stream = io.StringIO()
    with Progress("train", total=200, steps_per_epoch=100, stream=stream, clock=clock) as progress:
        clock.now += 300.0
        progress.advance(images=4)
        for _ in range(40):
            clock.now += 0.25
            progress.advance(images=4)
        progress.end_at(100)
        assert progress.line() == "train: epoch 1/1 step 41/100 16.0 images/s ETA 0:15"
    assert stream.getvalue().splitlines() == [
        "train: epoch 1/2 step 1/100",
        "train: epoch 1/2 step 41/100 16.0 images/s ETA 0:40",
    ]


def test_a_rate_is_that_of_the_last_thousand_steps(clock):
    with Progress("train", total=10_000, stream=io.StringIO(), clock=clock) as progress:
        for seconds, steps in ((10.0, 5), (0.1, 1000)):
            for _ in range(steps):
                clock.now += seconds
                progress.advance(images=4)
    assert "40.0 images/s" in progress.line()


def test_an_error_leaves_the_last_state(clock):
    stream = io.StringIO()

    def fail():
        with Progress("train", total=10, stream=stream, clock=clock) as progress:
            progress.advance()
            progress.advance()
            raise KeyError("reason")

    with pytest.raises(KeyError, match="reason"):
        fail()
    assert stream.getvalue().splitlines()[-1] == "train: step 2/10"


def test_a_bar_on_a_terminal(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream, output = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    with Progress("train [x]", total=4, stream=stream, clock=clock) as progress:
        progress.show(loss=0.5)
        print("AP 0.5")
        for _ in range(4):
            clock.now += 1.0
            progress.advance(images=2)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "100% ETA 0:00 train [x]: step 4/4 loss 0.5 2.0 images/s" in text
    assert output.getvalue() == "AP 0.5\n"


def test_a_dumb_terminal_gets_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress("eval", total=2, stream=stream, clock=clock) as progress:
        progress.advance(2)
    assert stream.getvalue() == "eval: step 2/2\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (83.4, "1:23"), (59.6, "1:00"), (754, "12:34"), (7205, "2:00:05"), (36000, "10:00:00")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
