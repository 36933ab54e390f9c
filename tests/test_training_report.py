import re

import numpy as np
from html_reading import Balanced

from efficientdet.reports.html_page import chart
from efficientdet.reports.training_report import RunSummary, training_page, write_report


def summary(**changes):
    return RunSummary(
        **{
            "title": "efficientdet-d0 on <my> cells",
            "goal": "target AP < 0.6",
            "facts": {"records": 205, "classes": "a < b"},
            "curves": {"train/loss": [(0, 3.0), (10, 1.0)], "validation/AP": [(10, 0.4)]},
            "numbers": {"AP": 0.5569, "AP50": 0.8941},
            "per_class": {"<RBC>": 0.55, "WBC": 0.0},
            "seconds": {"input": 1.0, "compute": 9.0},
            "images": [("image 7", np.zeros((8, 8, 3), np.uint8))],
            **changes,
        }
    )


def test_everything_is_on_the_page_and_escaped(tmp_path):
    text = write_report(tmp_path, summary()).read_text()
    words = " ".join(Balanced(text).text)
    for wanted in (
        "efficientdet-d0 on <my> cells",
        "<RBC>",
        "0.5569",
        "AP 0.557",
        "Largest share: compute, 90%.",
        "image 7",
        "a < b",
        "205",
        "target AP < 0.6",
    ):
        assert wanted in words
    assert "<my>" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert text.count("data:image/jpeg;base64,") == 1


def test_every_loss_of_a_family_is_in_the_chart_the_sum_first():
    points = [(1, 1.0), (2, 0.5)]
    tags = ("train/rpn_loss", "train/mask_loss", "train/loss", "train/det_loss", "train/loss_scale")
    words = Balanced(training_page(RunSummary(title="t", curves=dict.fromkeys(tags, points)))).text
    assert [word.split()[-1] for word in words if word.endswith(("loss", "loss_scale"))] == [
        "loss",
        "rpn_loss",
        "mask_loss",
    ]


def test_positions_by_hand():
    # The drawing area is x 66 .. 412, y 178 (0) .. 10 (3).
    points = re.search(r'points="([^"]*)"', chart([[(0, 3.0), (5, 0.0), (10, 1.5)]], x_label="Step", y_label="Loss"))[1]
    assert points == "66.0,10.0 239.0,178.0 412.0,94.0"


def test_a_long_curve_is_thinned_to_what_can_be_seen():
    drawn = chart([[(step, 1.0) for step in range(100_001)]], x_label="Step", y_label="Loss")
    points = re.search(r'points="([^"]*)"', drawn)[1].split()
    assert 400 < len(points) < 1000
    assert (points[0], points[-1]) == ("66.0,10.0", "412.0,10.0")


def test_the_throughput_is_a_mean_of_twenty_points():
    speed = [(step, 60.0 if step % 2 else 20.0) for step in range(41)]
    curves = {"train/loss": [(0, 3.0)], "examples/sec": speed}
    text = training_page(RunSummary(title="t", curves=curves))
    drawn = [line.split() for line in re.findall(r'points="([^"]*)"', text)]
    heights = [point.split(",")[1] for point in max(drawn, key=len)]
    assert len(heights) == 41
    assert len(set(heights[19:])) == 1  # each has as many of both
    assert len(set(heights[:3])) == 3


def test_long_times_nothing_to_measure_and_what_the_curve_of_ap_is():
    curve = [(1, 0.254), (2, 0.3)]
    text = training_page(
        RunSummary(
            title="t",
            seconds={"compute": 1110.2},
            numbers={"AP": 0.25, "APs": -1.0},
            curves={"validation/AP": curve},
        )
    )
    assert "1110.2 s" in text
    assert "-1.0000" not in text
    assert "AP of averaged weights" in text


def test_nothing_is_known():
    text = training_page(RunSummary(title="t"))
    Balanced(text)
    assert "<h2>" not in text
    assert "NaN" not in training_page(summary(per_class={"a": -1.0, "b": 0.0}, seconds={"input": 0.0}))
