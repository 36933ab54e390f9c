import pytest

from efficientdet.run_log.stopwatch import Stopwatch, input_stall


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


def test_a_failing_block_counts():
    times = iter([0.0, 2.0])
    watch = Stopwatch(clock=lambda: next(times))
    with pytest.raises(KeyError), watch.measuring("compute"):
        raise KeyError
    assert watch.totals() == {"compute": 2.0}


def test_nothing_measured():
    assert Stopwatch().recent_share("input") == 0.0


def test_a_training_that_waits_is_told_why():
    assert input_stall(0.1) == ""
    assert input_stall(0.37).startswith("waiting for input 37% of the time: decoding")
