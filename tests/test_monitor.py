"""AP without labels: the estimate, the test for drift, the reference, and what monitor.py writes."""

import dataclasses
import hashlib
import io
import itertools
import json
import shutil
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest
from color_artifact import write_color_artifact
from drawn_records import draw_records
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from serving import running, wait_until

from dataset.class_names import ClassNames
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.detect import Detector
from efficientdet.operations import monitor_images as monitor_images_operation
from efficientdet.operations.monitor_images import monitor
from efficientdet.options.monitor import MonitorOptions
from efficientdet.options.serve import RequestLimits, ServeOptions
from efficientdet.plugins.monitor import served_images
from efficientdet.plugins.monitor.estimates import (
    OF_IMAGES,
    Estimator,
    as_jpeg,
    change_point,
    detection_statistics,
    drift_p_values,
    image_statistics,
    window_statistics,
)
from efficientdet.plugins.monitor.monitoring import monitor_images
from efficientdet.plugins.monitor.reference import (
    _visible,
    _zoomed,
    counts_of_images,
    make_reference,
    precision_and_recall,
    read_reference,
    reference_path,
    seen_image,
    statistics,
)
from efficientdet.plugins.monitor.served_images import monitor_served
from efficientdet.serving.batching import Batcher, Metrics, ServedModel
from object_detection.coco.evaluation import CocoEvaluator, GroundTruth, ground_truth_from_dataset
from object_detection.coco.results import CocoResults, DetectionRows
from object_detection.coco.score_calibration import ScoreMap
from program_support.errors import InputError

GENERATOR = np.random.default_rng(0)


def test_statistics_of_a_window():
    some = detection_statistics(np.array([0.5, 0.8]), np.array([0.2, 0.1]), np.array([1, 1]), num_classes=2)
    nothing = detection_statistics(np.zeros(0), np.zeros(0), np.zeros(0, int), num_classes=2)
    assert some == pytest.approx([0.89, 0.18, 0, 1.3])
    images = np.array([[1, 2, 3, 4, 5, *some], [3, 2, 3, 4, 5, *nothing]])
    expected = [2, 2, 3, 4, 5, 1.3 / 2 / 4, 0.89 / 1.3, np.log(0.18 / 1.3)]
    assert window_statistics(images.mean(axis=0), 4.0) == pytest.approx(expected)
    assert np.isfinite(window_statistics(images[1], 4.0)).all()


def windows(*, kinds=4, levels=4):
    """Statistics of windows whose AP falls with the confidence, which each kind of change lowers."""
    statistics, names = [np.zeros(8)], ["none"]
    for kind, level in itertools.product(range(kinds), range(1, levels + 1)):
        point = np.zeros(8)
        point[kind], point[5] = level, -0.1 * level
        statistics.append(point)
        names.append(str(kind))
    statistics = np.array(statistics)
    return statistics, 0.6 + statistics[:, 5], names


def images_at(statistics, count):
    """Equal images [n, 8], whose window has the given statistics where an image has one object."""
    total = max(1 + statistics[5], 1e-6)
    one = [*statistics[:5], total * statistics[6], total * np.exp(statistics[7]), total]
    return np.tile(one, (count, 1))


def test_the_estimate_is_near_what_was_measured_and_unknown_far_from_it():
    statistics, aps, kinds = windows()
    points = statistics + np.array([0, 0, 0, 0, 0, 1, 0, 0])
    measures = np.stack([aps, aps / 2 + 0.3, np.zeros(len(aps))], axis=1)
    estimator = Estimator(points, measures, kinds, spread=np.array([0.1, 0.05, 0]))

    def estimated(point, count=50):
        return estimator.estimates(images_at(point, count), objects=1.0, reference_images=50)

    for point, expected in zip(statistics, measures, strict=True):
        estimates = estimated(point)
        assert [*estimates] == ["ap", "precision", "recall"]
        for estimate, value in zip(estimates.values(), expected, strict=True):
            assert estimate.value == pytest.approx(value, abs=0.03)
            assert estimate.is_trusted == (value > 0)  # a recall of 0 on the reference tells nothing
            assert estimate.low <= value <= estimate.high
    few = estimated(statistics[0], 2)["ap"]
    assert few.high - few.low > 2 * 1.64 * 0.1 / np.sqrt(2)  # the sample of two images
    far = estimated(statistics[0] + 30)["ap"]
    assert not far.is_trusted
    assert far.value == pytest.approx(0.6)  # nothing is known


def test_intervals_are_wider_where_one_kind_of_change_contradicts_the_others():
    statistics, aps, kinds = windows()
    statistics[5:] = np.tile(statistics[1:5], (3, 1)) + 0.01  # all kinds look alike
    widths = []
    for last in (aps[-4:], [0.9] * 4):
        aps[-4:] = last
        estimator = Estimator(statistics, np.tile(aps[:, None], 3), kinds, spread=np.zeros(3))
        estimate = estimator.estimates(images_at(statistics[2], 50), objects=1.0, reference_images=50)["ap"]
        widths.append(estimate.high - estimate.low)
    assert widths[1] > 1.5 * widths[0]


def test_p_values_are_those_of_all_permutations():
    values = GENERATOR.normal(size=(7, 3)) + np.repeat([[0, 0, 0], [2, 0, 0]], (4, 3), axis=0)
    ranks = values.argsort(axis=0).argsort(axis=0) - 3.0
    sums = np.array([abs(ranks[list(chosen)].sum(axis=0)) for chosen in itertools.combinations(range(7), 3)])
    expected = [(sums.max(axis=1) >= abs(ranks[4:, column].sum())).mean() for column in range(3)]
    assert drift_p_values(values[:4], values[4:], rate=0.01) == pytest.approx(expected, abs=0.03)


def test_false_alarms_are_as_rare_as_promised():
    alarms = 0
    for _ in range(150):
        values = np.exp(GENERATOR.normal(size=(60, 12)) + GENERATOR.normal(size=(60, 1)))  # skewed and correlated
        values[:, 3] = 7  # gray images have no saturation
        values[:, 4] = np.round(values[:, 4])  # ties
        p_values = drift_p_values(values[:40], values[40:], rate=0.05)
        assert p_values[3] == 1
        alarms += p_values.min() <= 0.05
    assert alarms <= 15  # 7.5 are expected; more than 15 have a probability of 0.4 %


def test_the_first_image_that_differs():
    assert change_point(np.zeros(9), np.array([0.1, -0.2, 0, 0.1, 3, 2, 4, 3])) == 4
    assert change_point(np.zeros(9), np.array([-3.0, -2, -4, -3])) == 0


def test_statistics_of_an_image_are_those_of_its_jpeg():
    """Images of a camera are compared with records, which are JPEGs."""
    image = cv2.resize(GENERATOR.integers(0, 250, (24, 36, 3), np.uint8), (648, 480))
    image += GENERATOR.integers(0, 3, (480, 648, 1), np.uint8)  # noise, which JPEG reduces
    stored = image_statistics(as_jpeg(image, 95))
    assert image_statistics(image) == pytest.approx(stored, abs=0.02)
    sharpness = OF_IMAGES.index("sharpness")
    assert image_statistics(cv2.GaussianBlur(image, (0, 0), 1))[sharpness] < stored[sharpness] - 0.2
    for size in ((1, 1), (5, 300), (20, 7), (129, 1000)):
        assert np.isfinite(image_statistics(np.ones((*size, 3), np.uint8))).all()


def test_images_of_a_gray_camera_are_like_those_of_the_reference():
    [rows] = detect([gray := np.repeat(GENERATOR.integers(0, 90, (40, 50, 1), np.uint8), 3, axis=2)])
    window = statistics([seen_image(gray, rows)] * 20, NAMES, ScoreMap())
    assert drift_p_values(window.astype(np.float32), window, rate=0.01).tolist() == [1] * 9


def test_precision_and_recall_of_the_detections_that_reach_the_thresholds():
    boxes = [[0, 0, 10, 10], [20, 0, 30, 10], [0, 0, 10, 10], [40, 0, 50, 10]]  # x, y, x, y
    annotations = [
        {"id": 1, "image_id": image, "category_id": category, "bbox": [left, top, 10, 10]}
        for image, category, (left, top, *_) in zip((1, 1, 2, 2), (2, 5, 2, 2), boxes, strict=True)
    ]
    content = {"images": [{"id": 1}, {"id": 2}], "annotations": annotations, "categories": NAMES.to_categories()}
    results, yxyx = CocoResults(), np.float32(boxes)[:, [1, 0, 3, 2]]
    of_first = DetectionRows.of_image(yxyx[[0, 1, 3]], np.float32([0.9, 0.5, 0.7]), np.int64([2, 5, 2]))
    of_second = DetectionRows.of_image(yxyx[[2, 3]], np.float32([0.8, 0.3]), np.int64([2, 2]))
    for number, rows in ((1, of_first), (2, of_second)):
        results.add_rows(rows.with_image_id(number))
    comparison = CocoEvaluator(ground_truth_from_dataset(content, source="")).compare(results.rows())
    thresholds = ScoreThresholds(overall=0.4, by_category={5: 0.6})
    counts = counts_of_images(comparison, Detector(detect, NAMES, thresholds))
    assert counts.tolist() == [[1, 2, 2], [1, 1, 2]]
    assert precision_and_recall(counts.sum(axis=0)).tolist() == [2 / 3, 2 / 4]
    assert precision_and_recall(np.zeros(3)).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("box", "expected"), [((30, 30, 20, 20), (30, 30, 20, 20)), ((10, 40, 20, 20), (20, 40, 10, 20))]
)
def test_labels_of_an_enlarged_image(box, expected):
    """At factor 2 the middle half of an image of 80 x 160 pixels is visible: 20 to 60 and 40 to 120."""
    truth = GroundTruth(
        source="",
        image_sizes={1: (160, 80)},
        categories={1: "a"},
        annotations=tuple(
            {"id": number, "image_id": 1, "category_id": 1, "bbox": values, "area": 1.0, "iscrowd": 0}
            for number, values in enumerate([(box[0], box[1] + 20, *box[2:]), (0, 0, 30, 45)])
        ),
    )
    [annotation] = _visible(truth, 2.0).annotations
    assert annotation["bbox"] == [expected[0], expected[1] + 20, *expected[2:]]


def test_zoom_about_the_center():
    image = np.zeros((40, 80, 3), np.uint8)
    image[10:30, 20:60] = 200
    assert abs(_zoomed(image, 2.0)[2:-2, 2:-2].astype(int) - 200).max() <= 1
    small = _zoomed(image, 0.5)
    assert small[20, 40, 0] == 200
    assert small[20, 5, 0] == 50  # the mean of the image


NAMES = ClassNames((2, 5), ("red", "green"))


def detect(images):
    """Find bright squares; what is less bright has a lower score."""
    found = []
    for image in images:
        boxes, scores, categories = [], [], []
        for channel, category in ((0, 2), (1, 5)):
            _, _, areas, _ = cv2.connectedComponentsWithStats((image[..., channel] > 60).astype(np.uint8))
            for left, top, width, height, area in areas[1:]:
                if area >= 12:
                    boxes.append([top, left, top + height, left + width])
                    inside = image[top : top + height, left : left + width, channel]
                    scores.append(min(float(inside.mean()) / 220, 1.0))
                    categories.append(category)
        order = np.argsort(scores)[::-1]
        rows = np.float32(boxes).reshape(-1, 4), np.float32(scores), np.int64(categories)
        found.append(DetectionRows.of_image(*(values[order] for values in rows)))
    return found


def draw(folder, *, count, brightness=1.0, seed=0):
    """Draw squares on noise; return their COCO annotations."""
    generator, content = (
        np.random.default_rng(seed),
        {"images": [], "annotations": [], "categories": NAMES.to_categories()},
    )
    folder.mkdir(parents=True)
    for number in range(1, count + 1):
        image = generator.uniform(0, 50, (72, 96, 3))
        for row, column in itertools.product((4, 40), (4, 36, 68)):
            if generator.random() < 0.6:
                side, kind = int(generator.integers(8, 24)), int(generator.integers(2))
                image[row : row + side, column : column + side, kind] = generator.uniform(90, 250)
                annotation = {"category_id": NAMES.category_ids[kind], "bbox": [column, row, side, side]}
                annotation |= {"id": len(content["annotations"]) + 1, "image_id": number, "area": side**2, "iscrowd": 0}
                content["annotations"].append(annotation)
        Image.fromarray((image * brightness).astype(np.uint8)).save(folder / f"{number:03}.png")
        content["images"].append({"id": number, "file_name": f"{number:03}.png", "height": 72, "width": 96})
    return content


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A folder with a model that has a reference, the records of the reference, and the detector."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "labels.json").write_text(json.dumps(draw(folder / "images", count=24)))
    config = ConversionConfig(
        image_folder=str(folder / "images"),
        output_prefix=str(folder / "val"),
        num_shards=1,
        processes=1,
        max_bad_fraction=0.0,
    )
    convert(read_coco(object_annotations_file=str(folder / "labels.json")), config, log=lambda line: None)
    (folder / "model.onnx").write_bytes(b"weights")
    detector = Detector(detect, NAMES)
    make_reference(str(folder / "model.onnx"), detector, [*map(str, folder.glob("val-*.tfrecord"))])
    return folder, detector


def monitored(watched, images, output, **options):
    folder, detector = watched
    model = str(folder / "model.onnx")
    options = MonitorOptions(model=model, images=(str(images),), output_dir=str(output), **options)
    return monitor_images(
        options, detector=detector, model=model, images=sorted(map(str, images.iterdir())), records=()
    )


def test_the_reference_is_small_and_knows_what_lowers_ap(watched):
    folder, _ = watched
    path = reference_path(str(folder / "model.onnx"))
    assert path.stat().st_size < 200_000
    reference = read_reference(str(folder / "model.onnx"))
    assert reference.measures[0].min() > 0.5
    assert reference.measures[reference.kinds == "dark"][-1].tolist() == [0, 0, 0]
    assert reference.measures[reference.kinds == "larger"].min() > 0.2  # labels are cut off as the images are
    assert reference.images.shape == (24, 9)


def test_images_like_the_reference_raise_no_alarm(watched, tmp_path, capsys):
    draw(tmp_path / "week", count=20, seed=1)
    shutil.copy(tmp_path / "week" / "001.png", tmp_path / "week" / "002 again.png")
    (tmp_path / "week" / "broken.png").write_bytes(b"no image")
    result = monitored(watched, tmp_path / "week", tmp_path / "out")
    assert not result.alarm
    assert result.images == 20
    assert result.intervals["ap"][0] < result.reference_ap <= result.intervals["ap"][1]
    assert result.intervals["recall"][0] < result.recall <= result.intervals["recall"][1]
    content = json.loads(result.json.read_text())
    assert content["precision"] == result.precision
    assert content["intervals"]["precision"] == [*result.intervals["precision"]]
    printed = capsys.readouterr().out
    assert "1 of 22 images have the pixels of others" in printed
    assert "broken.png" in printed
    assert "no alarm" in printed
    assert f"estimated recall at the score threshold: {result.recall:.3f}, 90 % interval " in printed


def test_a_change_within_the_week_raises_an_alarm(watched, tmp_path, capsys):
    draw(tmp_path / "week", count=12, seed=2)
    draw(tmp_path / "dark", count=12, seed=3, brightness=0.35)
    for path in (tmp_path / "dark").iterdir():
        path.rename(tmp_path / "week" / f"dark {path.name}")
    result = monitored(watched, tmp_path / "week", tmp_path / "out")
    assert result.alarm
    content = json.loads(result.json.read_text())
    assert content["alarm"]
    since, difference = {one["statistic"]: (one["since"], one["difference"]) for one in content["drift"]}["saturation"]
    assert since == "dark 001.png"
    assert difference < 0
    page = result.page.read_text()
    shown = page[page.index("Images that differ most") : page.index("Images of the reference")]
    assert shown.count("<figure>") == 20
    assert shown[shown.index("<figcaption>") :].startswith("<figcaption>dark 0")
    assert page.count("<figure>") == 40
    assert "ALARM" in (printed := capsys.readouterr().out)
    assert "next_images.py" in printed


def test_half_of_the_ap_is_noticed(watched, tmp_path):
    draw(tmp_path / "week", count=20, seed=4, brightness=0.35)
    result = monitored(watched, tmp_path / "week", tmp_path / "out")
    assert result.alarm
    assert result.ap is None or result.ap < result.reference_ap / 2


def test_one_image_is_accepted(watched, tmp_path):
    draw(tmp_path / "week", count=1, seed=5)
    assert monitored(watched, tmp_path / "week", tmp_path / "out").images == 1


def test_no_image_can_be_decoded(watched, tmp_path):
    (tmp_path / "week").mkdir()
    (tmp_path / "week" / "a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="none of 1 images could be decoded"):
        monitored(watched, tmp_path / "week", tmp_path / "out")


def test_a_reference_of_another_model_and_a_damaged_one_are_refused(watched, tmp_path):
    folder, _ = watched
    for name in ("model.onnx", "model.onnx.monitor.npz"):
        shutil.copy(folder / name, tmp_path)
    model = tmp_path / "model.onnx"
    assert read_reference(str(model)).measures.shape == (32, 3)
    model.write_bytes(b"trained again")
    with pytest.raises(InputError, match=r"of another model than .*--reference="):
        read_reference(str(model))
    content = reference_path(str(model)).read_bytes()
    for damaged in (content[:1000], b"", b"text"):
        reference_path(str(model)).write_bytes(damaged)
        with pytest.raises(InputError, match=r"is damaged or of an earlier version .*--reference="):
            read_reference(str(model))


def test_the_program_checks_what_it_is_given(watched, tmp_path, monkeypatch):
    folder, detector = watched
    monkeypatch.setattr(monitor_images_operation, "load_detector", lambda path: detector)
    (tmp_path / "ckpt.index").touch()
    (tmp_path / "images").mkdir()
    given = {"model": str(tmp_path / "ckpt"), "images": (str(folder / "images"),), "output_dir": str(tmp_path / "out")}
    for options, message in (
        ({"model": None}, "--model is missing"),
        ({"model": str(tmp_path / "no")}, "--model=.*no: there is no checkpoint"),
        ({"images": ()}, "--images is missing"),
        ({"images": (str(tmp_path / "images"),)}, "no image in this folder"),
        ({}, "has no reference; make one .*--reference="),
        ({"reference": str(tmp_path / "val-*")}, "val-"),
    ):
        with pytest.raises(InputError, match=message):
            monitor(MonitorOptions(**given | options))
    with pytest.raises(InputError, match=r"--false_alarms=1\.0: expected above 0 and below 1"):
        MonitorOptions(false_alarms=1.0)


def test_a_reference_needs_images_and_a_detector_that_finds_objects(watched, tmp_path):
    folder, detector = watched
    records = [*map(str, folder.glob("val-*.tfrecord"))]
    blind = dataclasses.replace(detector, detect=lambda images: [rows.chosen(slice(0, 0)) for rows in detect(images)])
    with pytest.raises(InputError, match=r"AP 0\.0000 on .*; expected at least 0\.01"):
        make_reference(str(tmp_path / "model"), blind, records)
    with pytest.raises(InputError, match="3 images; expected at least 10"):
        make_reference(str(tmp_path / "model"), detector, draw_records(tmp_path, images={"val": 3}).records("val"))


# While serving


class Served:
    """A model with a reference in a server, to which folders of images are sent."""

    def __init__(self, folder):
        self.monitor = monitor_served(ServeOptions(model=str(folder / "model.onnx")), None)
        self.batcher = Batcher(ServedModel(detect=detect, class_names=NAMES, name=""), RequestLimits(), Metrics())

    def send(self, folder):
        for path in sorted(folder.glob("*.png")):
            image = np.asarray(Image.open(path))
            [rows], [expected] = self.batcher.model.detect([image]), detect([image])
            assert rows.boxes.tolist() == expected.boxes.tolist()
            self.monitor._thread.join()

    def value(self, value, statistic=""):
        text = self.batcher.metrics.reply(None).body.decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        labels = {"value": value, "statistic": statistic}
        return next((one.value for one in samples if one == ("efficientdet_monitor", labels, *one[2:])), None)


@pytest.fixture
def beside(watched, tmp_path, monkeypatch):
    """A folder with a model and its reference; the monitor never rests."""
    for name in ("model.onnx", "model.onnx.monitor.npz"):
        shutil.copy(watched[0] / name, tmp_path)
    for name, value in {"_WINDOW": 40, "_INTERVAL": 20, "_SHARE": np.inf}.items():
        monkeypatch.setattr(served_images, name, value)
    return tmp_path


WINDOW = "model.onnx.monitor.window.json"


def test_a_server_reports_when_an_alarm_begins_and_ends(beside, capsys):
    for name, brightness in (("light", 1), ("dark", 0.35)):
        draw(beside / name, count=60, brightness=brightness, seed=7)
    served, alarms = Served(beside), []
    with served.monitor.serving(served.batcher):
        assert served.value("alarm") is None
        for name in ("light", "light", "dark", "light"):
            served.send(beside / name)
            alarms.append((served.value("alarm"), *capsys.readouterr().out.splitlines()))
        assert served.value("images") == 40
        for name in ("ap", "precision", "recall"):
            assert served.value(f"estimated_{name}", "low") < served.value(f"estimated_{name}", name) <= 1
        assert served.value("p_value", "brightness") > 0.01
    assert [alarm for alarm, *_ in alarms] == [0, 0, 1, 0]
    assert [len(lines) for _, *lines in alarms] == [0, 0, 1, 1]
    assert alarms[2][1].startswith("ALARM: estimated AP on the last 40 images: ")
    assert alarms[3][1].startswith("alarm ended: estimated AP on the last 40 images: 0.")


def test_repeated_frames_count_once(beside):
    draw(beside / "images", count=5)
    served = Served(beside)
    with served.monitor.serving(served.batcher):
        for _ in range(4):
            served.send(beside / "images")
        assert served.value("images") == 5


def test_a_window_continues_after_the_end_and_a_damaged_one_starts_from_scratch(beside, capsys):
    draw(beside / "images", count=30)
    served = Served(beside)
    with served.monitor.serving(served.batcher):
        served.send(beside / "images")
        assert len(json.loads((beside / WINDOW).read_text())[2]) == 20  # what a kill leaves
    again = Served(beside)
    assert again.monitor._rows == served.monitor._rows
    assert len(again.monitor._rows) == 30
    with again.monitor.serving(again.batcher):
        again.monitor._thread.join()
        assert again.value("images") == 30
    content = (beside / WINDOW).read_text()
    other = json.dumps(["another", *json.loads(content)[1:]])
    ragged = json.dumps([*json.loads(content)[:2], [[1.0] * 9, [2.0]]])
    assert capsys.readouterr().out == ""
    for damaged in (content[:500], "", "{}", other, ragged):
        (beside / WINDOW).write_text(damaged)
        assert Served(beside).monitor._rows == []
        [line] = capsys.readouterr().out.splitlines()
        assert "begins a new window" in line


def test_serving_continues_after_a_failure_of_the_monitor(beside, capsys, monkeypatch):
    draw(beside / "images", count=3)
    served = Served(beside)
    monkeypatch.setattr(served_images, "statistics", lambda *_: 1 / 0)
    with served.monitor.serving(served.batcher):
        served.send(beside / "images")
        assert served.value("images") is None
    assert capsys.readouterr().out == "monitoring ends: ZeroDivisionError: division by zero\n"


def test_what_is_not_monitored(beside, capsys):
    model = str(beside / "model.onnx")
    assert monitor_served(ServeOptions(model=str(beside / "other.onnx")), None) is None
    assert monitor_served(ServeOptions(model=model, calibrated_scores=True), None) is None
    assert capsys.readouterr().out == ""
    (beside / "model.onnx").write_bytes(b"trained again")
    assert monitor_served(ServeOptions(model=model), None) is None
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("not monitored: ")
    assert "of another model" in line


def test_the_window_of_a_server_survives_a_kill(watched, tmp_path):
    model = write_color_artifact(tmp_path / "colors.onnx")
    reference = read_reference(str(watched[0] / "model.onnx"))
    stored = reference._asdict() | {"model": hashlib.sha256(model.read_bytes()).hexdigest()}
    np.savez(reference_path(str(model)), **stored | {"images": np.pad(reference.images, ((0, 0), (0, 1)))})
    count = 'efficientdet_monitor{statistic="",value="images"}'

    def is_counted():
        stream = io.BytesIO()
        Image.fromarray(GENERATOR.integers(100, 256, (8, 8, 3), np.uint8)).save(stream, "PNG")
        server.detect([stream.getvalue()])
        return Path(f"{model}.monitor.window.json").exists()

    with running(tmp_path, "serve.py", f"--model={model}", "--port=0") as server:
        wait_until(is_counted)
        assert server.metric("efficientdet_score_count") > 0
        server.process.kill()
    with running(tmp_path, "serve.py", f"--model={model}", "--port=0") as server:
        wait_until(lambda: count in server.get("/metrics").content)
        assert server.metric(count) >= 20
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
    assert "Traceback" not in server.errors.read_text()
