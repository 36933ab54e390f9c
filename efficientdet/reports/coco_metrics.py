"""Tables of the COCO metrics, miss rates and score calibration, and the reference's line of six metrics."""

import math
from collections.abc import Mapping

from efficientdet.reports.html_page import chart_figure, paragraph, subheading, table
from object_detection.coco.error_analysis import Reliability
from object_detection.coco.miss_rate import MissRateThresholds
from object_detection.coco.score_calibration import ScoreCalibration

_AREAS = {
    "s": "small objects, below 32 x 32 pixels",
    "m": "medium objects, 32 x 32 to 96 x 96 pixels",
    "l": "large objects, above 96 x 96 pixels",
}
_DEFINITIONS = {
    "AP": "mean over the IoU thresholds 0.50 to 0.95 in steps of 0.05",
    "AP50": "IoU threshold 0.50",
    "AP75": "IoU threshold 0.75",
    **{f"AP{area}": text for area, text in _AREAS.items()},
    **{f"ARmax{count}": f"at most {count} detection{'s' * (count > 1)} per image" for count in (1, 10, 100)},
    **{f"AR{area}": text for area, text in _AREAS.items()},
}
_PERCENT = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def csv_line(epoch: int, numbers: Mapping[str, float]) -> str:
    """Return the line "csv format: EPOCH,AP,AP50,AP75,APs,APm,APl", in percent, as the reference prints it."""
    return f"csv format: {epoch}," + ",".join(f"{100 * numbers[name]:.2f}" for name in _PERCENT)


def metrics_table(
    columns: Mapping[str, Mapping[str, float]], intervals: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """Return a table with a column of metrics per name; negative values (no such object) become a dash.

    intervals: 95 % intervals as text of the columns of these names, shown beside them.
    """
    names, intervals = list(next(iter(columns.values()), {})), intervals or {}
    titles = [title for column in columns for title in (column, *(["95 % interval"] if column in intervals else []))]
    rows = [
        (
            name,
            *(
                cell
                for column, metrics in columns.items()
                for cell in (
                    f"{metrics[name]:.4f}" if metrics[name] >= 0 else "\N{EN DASH}",
                    *([intervals[column].get(name, "")] if column in intervals else []),
                )
            ),
            _DEFINITIONS.get(name, ""),
        )
        for name in names
    ]
    return table(("Metric", *titles, "Definition"), rows, label="COCO metrics")


def miss_rate_table(thresholds: MissRateThresholds | None) -> str:
    """Return the table of score thresholds for a miss rate, with its explanation; empty without them."""
    if thresholds is None:
        return ""
    lead = (
        f"The highest score from which on, on new images of the same kind, {thresholds.meaning} (for each class; the "
        "images must not be training images). An object is missed if no detection of its class has an IoU of 0.5 or "
        "more with it."
    )
    names = ("Class", "Threshold", "Missed here", "False positives per image", "Objects", "Images", "")
    title = "Score thresholds for a miss rate"
    return subheading(title) + paragraph(lead) + table(names, thresholds.rows(), label=title)


def reliability_diagram(bins: Reliability, calibration: ScoreCalibration | None) -> str:
    """Return the chart of the precision of scores, also of the calibrated scores if there are any."""

    def points(bins: Reliability) -> list[tuple[float, float]]:
        pairs = zip(bins.scores.tolist(), bins.precision.tolist(), strict=True)
        return [(score, precision) for score, precision in pairs if not math.isnan(score)]

    if not (measured := points(bins)):
        return ""
    curves = {"Measured": measured, "Perfect calibration": [(0.0, 0.0), (1.0, 1.0)]}
    if calibration:
        curves["Calibrated scores, held out"] = points(calibration.after)
    return chart_figure(
        "Reliability diagram", curves, x_label="Confidence score", y_label="Precision at IoU 0.5", highest=1.0
    )


def score_calibration_table(calibration: ScoreCalibration | None) -> str:
    """Return the table of calibration errors, with its explanation; empty without a calibration."""
    if calibration is None:
        return ""
    lead = (
        "Expected calibration error of the scores before and after a map of each class to the probability that a "
        "detection is correct. Half of the images measures what the other half is fitted to; the map is kept where "
        "this error and the log loss fall."
    )
    names, title = ("Class", "Before", "After", "Objects", "Not calibrated"), "Calibration of the scores"
    return subheading(title) + paragraph(lead) + table(names, calibration.rows(), label=title)
