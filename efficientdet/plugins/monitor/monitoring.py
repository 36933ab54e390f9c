"""Detect in unlabeled images, compare them with the reference, and write a page with the images that differ most."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.files.image_files import read_stored_image
from efficientdet.inference.detect import Detector
from efficientdet.operations.results import MonitorResult
from efficientdet.options.monitor import MonitorOptions
from efficientdet.plugins.monitor.estimates import (
    MEASURES,
    OF_IMAGES,
    Estimate,
    Estimator,
    change_point,
    drift_p_values,
)
from efficientdet.plugins.monitor.reference import (
    SHOWN,
    Reference,
    Seen,
    make_reference,
    read_reference,
    reference_path,
    seen_image,
    statistics,
)
from efficientdet.reports.drawing import resized
from efficientdet.reports.html_page import image_figure, image_row, notices, page, row
from object_detection.coco.score_calibration import ScoreMap
from program_support.atomic_files import report_write_errors, write_text
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError, printable
from program_support.progress import Progress

_LONGER_SIDE = 320  # pixels of an image on the page, which is shown at half its size
_SMALL = '<div style="--thumbnail:160px">{}</div>'
_LEAD = (
    "AP is estimated from the scores and from statistics of the images, by a comparison with labeled images that were "
    "changed in many ways. It cannot know of objects that the detector does not respond to, such as a new class."
)


class Drift(NamedTuple):
    """A statistic that differs from the reference."""

    statistic: str
    difference: float  # of the means, in standard deviations of an image of the reference
    p_value: float
    since: str  # the first image that differs, in the order of their names

    def __str__(self) -> str:
        """Return a line for the console."""
        side = "higher" if self.difference > 0 else "lower"
        return f"{self.statistic} {side} by {abs(self.difference):.1f} standard deviations, since {self.since}"


def monitor_images(
    options: MonitorOptions, *, detector: Detector, model: str, images: Sequence[str], records: Sequence[str]
) -> MonitorResult:
    """Estimate AP on images, report drift, and write monitor.html and monitor.json.

    Args:
        options: the options.
        detector: the opened model.
        model: its path, beside which the reference is.
        images: files.
        records: shards to make the reference from, if it is asked for or there is none.

    Raises:
        InputError: there is no reference, or no image could be decoded.
    """
    outputs = [Path(options.output_dir, f"monitor.{suffix}") for suffix in ("html", "json")]
    with claimed_outputs(*outputs):
        if options.reference or (records and not reference_path(model).exists()):
            make_reference(model, detector, records)
        reference = read_reference(model)
        paths, seen = _seen(images, detector)
        window = statistics(seen, detector.class_names, ScoreMap(*reference.score_map.tolist()))
        names = [Path(path).name for path in paths]
        estimates, drifts, alarm = compared(
            reference, window, names, detector.class_names.names, rate=options.false_alarms
        )
        drifts = [one for one in drifts if one.p_value <= options.false_alarms]
        result = MonitorResult(
            images=len(paths),
            reference_ap=float(reference.measures[0, 0]),
            **{name: one.value if one.is_trusted else None for name, one in estimates.items()},
            intervals={name: (one.low, one.high) for name, one in estimates.items() if one.is_trusted},
            drift={drift.statistic: drift.p_value for drift in drifts},
            alarm=alarm,
            page=outputs[0],
            json=outputs[1],
        )
        lines = [*_lines(result, estimates, reference, drifts, options)]
        print("\n".join(lines))
        differing = _most_different(reference.images, window)
        texts = (
            _page(lines, reference, [paths[number] for number in differing], detector),
            _json(result, drifts),
        )
        for output, text in zip(outputs, texts, strict=True):
            with report_write_errors(output):
                write_text(output, text)
    return result


def _seen(paths: Sequence[str], detector: Detector) -> tuple[list[str], list[Seen]]:
    """Return the images that can be decoded, each content once, as the detector sees them."""
    distinct: dict[bytes, tuple[str, Seen]] = {}
    failures, repeated = list[str](), 0
    with Progress("monitor", total=len(paths), noun="image") as progress:
        for path in paths:
            try:
                image = read_stored_image(path, value_range=detector.value_range).upright()
            except InputError as error:
                failures.append(str(error))
                print(f"skipped: {printable(failures[-1])}")
                progress.advance(1, images=0)
                continue
            digest = hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).digest()
            repeated += digest in distinct
            if digest not in distinct:
                [rows] = detector.detect([image])
                distinct[digest] = path, seen_image(image, rows)
            progress.advance(1, images=1)
    if not distinct:
        raise InputError(f"--images: none of {len(paths)} images could be decoded; the first: {failures[0]}")
    if repeated:
        print(f"{repeated} of {len(paths)} images have the pixels of others, and are left out")
    names, seen = zip(*distinct.values(), strict=True)
    return [*names], [*seen]


def compared(
    reference: Reference, window: np.ndarray, images: Sequence[str], classes: Sequence[str], *, rate: float
) -> tuple[dict[str, Estimate], list[Drift], bool]:
    """Compare a window of n images with the reference.

    Args:
        reference: the reference.
        window: [n, 7 + K] statistics of the images.
        images: n names.
        classes: K names.
        rate: share of windows without a change that may raise an alarm.

    Returns:
        The estimates of MEASURES, the difference of each statistic (the largest first), and whether there is an alarm.
    """
    estimator = Estimator(reference.windows, reference.measures, reference.kinds.tolist(), spread=reference.spread)
    estimates = estimator.estimates(window, objects=float(reference.objects), reference_images=len(reference.images))
    names = [*OF_IMAGES, "confidence", "object size", *(f"objects of class {name}" for name in classes)]
    p_values = drift_p_values(reference.images, window, rate=rate)
    differences = _in_deviations(reference.images, window).mean(axis=0)
    drifts = [
        Drift(
            names[number],
            float(differences[number]),
            float(p_values[number]),
            images[change_point(reference.images[:, number], window[:, number])],
        )
        for number in np.argsort(-abs(differences)).tolist()
    ]
    is_low = estimates["ap"].is_trusted and estimates["ap"].high < reference.measures[0, 0] / 2
    return estimates, drifts, bool(is_low or p_values.min() <= rate)


def _in_deviations(reference: np.ndarray, window: np.ndarray) -> np.ndarray:
    return (window - reference.mean(axis=0)) / np.maximum(reference.std(axis=0), 1e-3)


def _most_different(reference: np.ndarray, window: np.ndarray) -> list[int]:
    """Return the numbers of the images whose statistics differ most."""
    distances = (np.minimum(abs(_in_deviations(reference, window)), 10) ** 2).sum(axis=1)
    return np.argsort(-distances, kind="stable")[:SHOWN].tolist()


def _lines(
    result: MonitorResult,
    estimates: dict[str, Estimate],
    reference: Reference,
    drifts: Sequence[Drift],
    options: MonitorOptions,
) -> Iterator[str]:
    known = f"AP {result.reference_ap:.3f} on the {len(reference.images)} labeled images of the reference"
    yield f"estimated AP on {result.images} images: {estimates['ap']}; {known}"
    for name, known in zip(MEASURES[1:], reference.measures[0, 1:], strict=True):
        yield f"estimated {name} at the score threshold: {estimates[name]}; {known:.3f} on the reference"
    for drift in drifts[:5]:
        yield f"drift: {drift}"
    if not result.alarm:
        yield f"no alarm: nothing differs (at most {options.false_alarms:g} false alarms a call)"
        return
    worse = result.ap is None or result.intervals["ap"][1] < result.reference_ap
    advice = "train with labels of such images" if worse else "AP is not known to be lower; look at the images"
    yield f"ALARM: {advice}. To label first: python next_images.py --model={options.model} " + " ".join(
        f"--images={name}" for name in options.images
    )


def _page(lines: Sequence[str], reference: Reference, paths: Sequence[str], detector: Detector) -> str:
    pixels = (read_stored_image(path, value_range=detector.value_range).upright() for path in paths)
    names = (Path(path).name for path in paths)
    differing = zip(names, (resized(image, longer_side=_LONGER_SIDE) for image in pixels), strict=True)
    jpegs = np.split(reference.shown, np.cumsum(reference.shown_sizes)[:-1])
    return page(
        "Unlabeled images beside the reference",
        {
            "Images that differ most": _SMALL.format(image_row(differing, thumbnails=True)),
            "Images of the reference": _SMALL.format(
                row((image_figure("", jpeg.tobytes()) for jpeg in jpegs), thumbnails=True)
            ),
        },
        figure=lines[0],
        lead=_LEAD,
        notes=notices([("warning" if "ALARM" in line else "", line) for line in lines[1:]]),
    )


def _json(result: MonitorResult, drifts: Sequence[Drift]) -> str:
    content: dict[str, Any] = {
        name: getattr(result, name) for name in ("images", "reference_ap", *MEASURES, "intervals", "alarm")
    }
    return json.dumps({**content, "drift": [one._asdict() for one in drifts]}, indent=1) + "\n"
