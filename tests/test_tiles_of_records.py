"""Training draws tiles at the scale of detection, and evaluation in tiles finds what is in the complete images."""

import io
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from dataset.class_names import ClassNames
from dataset.input.augmentation import RandomTile
from dataset.input.examples import InputConfig
from dataset.input.pipeline import epoch_length, evaluation_dataset, training_dataset
from dataset.input.resize import letterbox
from dataset.input.tiling import Tiling, tiles_per_epoch
from dataset.records.labeled_records import labeled_records
from dataset.records.record_index import index_records
from dataset.records.schema import Record, RecordObject, encode_record
from efficientdet.checkpoints.description import Description
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator
from efficientdet.families.inputs import input_config
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.detect import Detector
from efficientdet.inference.tiles import TiledDetector
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import run_lengths
from object_detection.structures import Detections

NAMES = ClassNames((3,), ("square",))
TILE, INPUT, SIDE = 60, 120, 12  # pixels of a tile, of the network's input, and of an object
TILING = Tiling(size=(TILE, TILE), overlap=0.25, whole=False, keeps_scale=True)
IMAGES = {  # (height, width) and the places (top, left) of its objects
    (130, 200): [(5, 5), (40, 52), (75, 118), (118, 188), (60, 60)],  # some lie on borders of tiles
    (40, 50): [(10, 20)],  # smaller than a tile
    (300, 90): [],
    (61, 60): [(49, 48)],
}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiles") / "val-00000-of-00001.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, (size, places) in enumerate(IMAGES.items(), start=1):
            image = np.zeros((*size, 3), np.uint8)
            for top, left in places:
                image[top : top + SIDE, left : left + SIDE] = 255
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            objects = [
                RecordObject(box_xywh=(left, top, SIDE, SIDE), category_id=3, category_name="square", area=SIDE * SIDE)
                for top, left in places
            ]
            record = Record(
                encoded=file.getvalue(),
                height=size[0],
                width=size[1],
                file_name=f"{number}.png",
                image_id=number,
                image_format="png",
                objects=objects,
            )
            writer.write(encode_record(record))
    return index_records([str(path)])


def config(**changes):
    settings = {
        "resize": letterbox((INPUT, INPUT)),
        "augmentation": RandomTile(resize=letterbox((INPUT, INPUT)), tiling=TILING),
        "tiling": TILING,
        "batch_size": 3,
        "category_ids": NAMES.category_ids,
        "least_visible": 0.5,
    }
    return InputConfig(**{**settings, **changes})


def white_boxes(image):
    """The boxes of the white squares in an input, found by their pixels; they do not touch each other."""
    import cv2

    _, _, stats, _ = cv2.connectedComponentsWithStats((image[..., 0] > 127).astype(np.uint8))
    return [[y, x, y + height, x + width] for x, y, width, height, _ in stats[1:].tolist()]


def find_white(images, sizes, scales):
    """A detector that sees the white squares, in pixels of the tiles."""
    found = [white_boxes(np.asarray(image)) for image in images]
    boxes, scores = np.zeros((len(found), 9, 4), np.float32), np.zeros((len(found), 9), np.float32)
    for number, of_image in enumerate(found):
        boxes[number, : len(of_image)] = np.float32(of_image).reshape(-1, 4) * np.tile(np.asarray(scales)[number], 2)
        scores[number, : len(of_image)] = 0.9
    return Detections(boxes, scores, np.zeros(scores.shape, np.int32), scores > 0)


@pytest.mark.parametrize(("batch_size", "whole"), [(1, True), (3, False), (64, False)])
def test_what_tiles_show_is_found_once_in_the_complete_images(index, batch_size, whole):
    inputs = config(batch_size=batch_size, tiling=replace(TILING, whole=whole))
    rows = detect_all(find_white, evaluation_dataset(index, inputs), class_names=NAMES)
    assert rows.evaluated_ids.tolist() == [1, 2, 3, 4]
    for number, places in enumerate(IMAGES.values(), start=1):
        found = rows.boxes[rows.image_ids == number]
        expected = sorted([top, left, top + SIDE, left + SIDE] for top, left in places)
        np.testing.assert_allclose(np.reshape(sorted(found.tolist()), (-1, 4)), np.reshape(expected, (-1, 4)), atol=1)
    evaluator = read_evaluator(index, NAMES, json_file=None)
    assert evaluator.evaluate(rows).numbers["AP50"] == pytest.approx(1.0)


def test_processes_share_the_images_and_not_the_tiles(index):
    ids = [
        {int(image_id) for batch, valid, *_ in batches for image_id in np.asarray(batch.image_ids)[np.asarray(valid)]}
        for batches in (evaluation_dataset(index, config(), rank=rank, world_size=2) for rank in (0, 1))
    ]
    assert ids == [{1, 3}, {2, 4}]
    first = evaluation_dataset(index, config(), samples=1)
    assert {int(batch.image_ids[0]) for batch, *_ in first} == {1}


def test_the_same_detections_as_in_the_images_themselves(index):
    """eval.py tiles records, infer.py images."""

    def detect(images):
        found = []
        for image in images:
            resized, size, scale = letterbox((INPUT, INPUT))(tf.constant(image))
            boxes, scores, _, valid = find_white([resized], [size], [scale])[:4]
            here = valid[0]
            found.append(DetectionRows.of_image(boxes[0][here], scores[0][here], np.full(here.sum(), 3)))
        return found

    rows = detect_all(find_white, evaluation_dataset(index, config()), class_names=NAMES)
    images = [np.zeros((*size, 3), np.uint8) for size in IMAGES]
    for image, places in zip(images, IMAGES.values(), strict=True):
        for top, left in places:
            image[top : top + SIDE, left : left + SIDE] = 255
    by_image = TiledDetector(detect, TILING, batch_size=2)(images)
    np.testing.assert_array_equal(rows.boxes, np.concatenate([of_image.boxes for of_image in by_image]))


def test_a_stored_model_detects_in_its_tiles_with_any_runtime():
    """The rule is in the description, which checkpoints and exported files have."""
    shapes = []

    def detect(images):
        shapes.extend(image.shape[:2] for image in images)
        return [DetectionRows.of_image(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)) for _ in images]

    description = Description(
        model_name="efficientdet-d0",
        hparams={"tile_size": "90x60", "tile_overlap": 0.0, "tile_whole": True},
        categories=NAMES.to_categories(),
        weights="raw",
    )
    detector = Detector.described(detect, description, batch_size=2)
    detector.predict(np.zeros((100, 180, 3), np.uint8))
    assert shapes == [(60, 90)] * 4 + [(100, 180)]
    shapes.clear()
    without = detector.with_tiling(None, batch_size=1, on_progress=lambda done, total: None)
    without.predict(np.zeros((100, 180, 3), np.uint8))
    assert (shapes, without.tiling) == ([(100, 180)], None)
    assert str(detector.tiling) == "tiles of 90x60 pixels with an overlap of 0, and the complete image"


def test_masks_of_a_padded_tile_are_cut_to_the_image():
    def detect(images):
        mask = np.zeros(images[0].shape[:2])
        mask[5:20, 3:60] = 1
        return [
            DetectionRows.of_image(
                np.float32([[5, 3, 20, 60]]), np.float32([0.9]), np.array([3]), masks=[run_lengths(mask)]
            )
        ]

    [rows] = TiledDetector(detect, TILING, batch_size=1)([np.zeros((40, 50, 3), np.uint8)])
    assert rows.boxes.tolist() == [[5, 3, 20, 50]]
    assert rows.masks[0]["size"] == [40, 50]


def training_rows(index, count, **changes):
    batches = iter(training_dataset(index, config(batch_size=1, **changes)))
    return [next(batches) for _ in range(count)]


def test_training_shows_objects_as_large_as_detection_does(index):
    """Objects have twice their size in pixels, in all images, and the boxes are where the pixels are."""
    seen = 0
    for batch in training_rows(index, 40):
        shown = white_boxes(batch.images[0].numpy())
        objects = batch.objects
        boxes = objects.boxes[0][objects.valid[0]].numpy()
        np.testing.assert_allclose(
            np.reshape(sorted(shown), (-1, 4)), np.reshape(sorted(boxes.tolist()), (-1, 4)), atol=1.5
        )
        uncut = boxes[~objects.crowd[0][objects.valid[0]].numpy()]
        whole = [box for box in uncut if min(box[:2]) > 0 and max(box[2:]) < INPUT]
        np.testing.assert_allclose([box[2:] - box[:2] for box in whole], 2 * SIDE, atol=0.01)
        seen += len(whole)
    assert seen > 10


def test_objects_that_a_tile_hardly_shows_are_ignored(index):
    """Neither objects nor background; families that ignore nothing learn their parts."""
    cut, parts = 0, 0
    for batch, other in zip(training_rows(index, 60), training_rows(index, 60, least_visible=0.0), strict=True):
        valid = batch.objects.valid[0].numpy()
        boxes, crowd = batch.objects.boxes[0].numpy()[valid], batch.objects.crowd[0].numpy()[valid]
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        np.testing.assert_array_equal(crowd, areas < 0.5 * (2 * SIDE) ** 2)
        assert not other.objects.crowd.numpy().any()
        cut, parts = cut + crowd.sum(), parts + len(boxes)
    assert 0 < cut < parts


def test_tiles_depend_on_seed_and_position_alone(index):
    first, again = training_rows(index, 8), training_rows(index, 8)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.images, other.images)
    others = training_rows(index, 8, seed=1)
    assert any((one.images != other.images).numpy().any() for one, other in zip(first, others, strict=True))


def test_most_tiles_show_an_object_and_some_do_not():
    sparse = tf.constant([[0.5, 0.5, 0.51, 0.51]])
    tile = RandomTile(resize=letterbox((INPUT, INPUT)), tiling=TILING)
    with_object = 0
    for number in range(200):
        crop = tile.draw(tf.constant([3000, 2000]), seed=tf.constant([0, number]), boxes=sparse)
        offset, window = crop.offset.numpy(), crop.window.numpy()
        assert window.tolist() == [TILE, TILE]
        assert (offset >= 0).all()
        assert (offset + window <= [3000, 2000]).all()
        with_object += (offset <= [1500, 1000]).all() and (offset + window >= [1530, 1020]).all()
    assert 140 < with_object < 180  # 80 %: two standard deviations are 11


def test_the_scale_varies_by_the_jitter_and_the_complete_image_is_sometimes_a_tile():
    tile = RandomTile(
        resize=letterbox((INPUT, INPUT)), tiling=replace(TILING, whole=True), jitter_min=0.5, jitter_max=2.0
    )
    windows = [
        tuple(tile.draw(tf.constant([600, 900]), seed=tf.constant([0, number])).window.numpy().tolist())
        for number in range(200)
    ]
    assert 20 < windows.count((600, 900)) < 60  # a fifth
    sides = [height for height, width in windows if height == width]
    assert 30 <= min(sides) < 33
    assert 100 < max(sides) <= 120


def test_an_epoch_has_as_many_tiles_as_images_have_objects_and_no_more_than_they_have():
    class Images:
        sizes = np.array([[130, 200], [130, 200], [40, 50]])

        def counts(self):
            return np.array([2, 100, 7])

    assert tiles_per_epoch(Images(), TILING).tolist() == [3, 15, 1]  # three rows of five tiles


def test_images_without_objects_are_at_most_a_fifth_of_the_tiles():
    class Images:
        sizes = np.array([[130, 200]] * 11)

        def counts(self):
            return np.array([7] + [0] * 10)

    factors = tiles_per_epoch(Images(), TILING)
    assert factors[0] == 8
    np.testing.assert_allclose(factors[1:], 0.2)
    assert epoch_length(factors) == 10


def test_sizes_and_objects_of_records_are_counted(index):
    assert tiles_per_epoch(labeled_records(index, NAMES), TILING).tolist() == [6, 1, 1, 2]


@pytest.mark.parametrize("model", ["efficientdet-lite0", "retinanet-resnet18", "ssd300-resnet34", "mask-rcnn-resnet18"])
def test_every_family_trains_on_tiles(model):
    """Families without regions that the loss ignores learn the parts of objects."""
    hparams = hyperparameters_of(model, {"tile_size": "640x480", "tile_overlap": 0.3})
    inputs = input_config(hparams, class_names=NAMES, batch_size=1)
    assert inputs.tiling == Tiling(size=(480, 640), overlap=0.3, whole=False, keeps_scale=True)
    assert isinstance(inputs.augmentation, RandomTile)
    assert (inputs.least_visible > 0) == model.startswith(("efficientdet", "retinanet"))
