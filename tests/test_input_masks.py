"""Masks and the flag of difficult objects, from records to batches: cut, mirrored and resampled once, uint8."""

import io
import itertools

import cv2
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from test_pipeline import NAMES, batches, config, image_of, written

from dataset.input.augmentation import Augmentation, ResizeAndFlip, ScaleJitterCrop
from dataset.input.crop import Crop
from dataset.input.examples import InputConfig
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import evaluation_dataset, training_dataset
from dataset.input.resize import fit_within, letterbox
from dataset.records.schema import Record, RecordObject
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator
from efficientdet.plugins.ssd.overlap_crop import OverlapCrop
from object_detection.coco.run_length_masks import decoded
from object_detection.structures import Detections
from program_support.errors import InputError

HEIGHT, WIDTH, SIDE = 60, 80, 14
POLYGONS = [[8, 6, 40, 10, 30, 44], [50, 20, 76, 24, 70, 56, 44, 50], [2, 40, 22, 40, 22, 58, 2, 58]]


def filled(polygon):
    """[h, w] bool, by another implementation than the converter's."""
    canvas = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.fillPoly(canvas, [np.array(polygon, np.int32).reshape(-1, 2)], 1)
    return canvas > 0


def png(mask):
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def objects(*, difficult=(), masks=True):
    found = []
    for number, polygon in enumerate(POLYGONS):
        x, y = np.array(polygon[::2]), np.array(polygon[1::2])
        found.append(
            RecordObject(
                box_xywh=(x.min() - 0.5, y.min() - 0.25, np.ptp(x) + 1.5, np.ptp(y) + 1.25),
                category_id=NAMES.category_ids[number],
                category_name="?",
                area=1.0,
                is_difficult=number in difficult,
                mask_png=png(filled(polygon)) if masks else None,
            )
        )
    return found


def records_of(folder, found, *, count=1):
    return written(
        folder,
        [
            Record(
                encoded=image_of(i, HEIGHT, WIDTH),
                height=HEIGHT,
                width=WIDTH,
                file_name=f"{i}.jpg",
                image_id=100 + i,
                objects=found,
            )
            for i in range(count)
        ],
    )


def brute_force(polygon, box, *, offset, window, size, flip):
    """Each cell by itself: where is its middle in the original, and is that pixel the object's?"""
    mask = filled(polygon)
    cells = np.zeros((SIDE, SIDE), np.uint8)
    for i, j in itertools.product(range(SIDE), range(SIDE)):
        y = box[0] + (i + 0.5) / SIDE * (box[2] - box[0])
        x = box[1] + (j + 0.5) / SIDE * (box[3] - box[1])
        x = size[1] - x if flip else x
        row, column = int(offset[0] + y * window[0] / size[0]), int(offset[1] + x * window[1] / size[1])
        cells[i, j] = mask[min(row, HEIGHT - 1), min(column, WIDTH - 1)]
    return cells


@pytest.mark.parametrize(
    "augmentation",
    [ScaleJitterCrop((64, 64), 0.3, 3.0), ResizeAndFlip(fit_within(40, 64, 64)), OverlapCrop((64, 64), tries=5)],
)
def test_masks_of_crops_equal_brute_force(tmp_path, augmentation):
    index = records_of(tmp_path, objects(), count=3)
    inputs = InputConfig(
        resize=letterbox((64, 64)),
        augmentation=augmentation,
        batch_size=1,
        category_ids=NAMES.category_ids,
        max_instances_per_image=4,
        mask_size=SIDE,
        seed=3,
    )
    seen, flips = 0, []
    corners = np.float32([(y, x, y + h, x + w) for x, y, w, h in (found.box_xywh for found in objects())])
    fractions = corners / np.float32([HEIGHT, WIDTH] * 2)
    for position, batch in enumerate(batches(training_dataset(index, inputs), 25)):
        assert batch.objects.masks.shape == (1, 4, SIDE, SIDE)
        assert batch.objects.masks.dtype == np.uint8
        drawn = augmentation.draw(tf.constant([HEIGHT, WIDTH]), tf.constant([3, position], tf.int64), boxes=fractions)
        plan = {name: value.numpy() for name, value in drawn._asdict().items()}
        flips.append(bool(plan["flip"]))
        for slot in np.flatnonzero(batch.objects.valid[0]):
            polygon = POLYGONS[batch.objects.classes[0, slot]]
            wanted = brute_force(polygon, batch.objects.boxes[0, slot].astype(np.float64), **plan)
            np.testing.assert_array_equal(batch.objects.masks[0, slot], wanted)
            seen += 0.05 < wanted.mean() < 0.95
        assert not batch.objects.masks[0][~batch.objects.valid[0]].any()
    assert seen > 20
    assert 5 < sum(flips) < 20


class FixedCrop(Augmentation):
    """The same window of every image, at its own size."""

    def __init__(self, *, offset, window, flip):
        self.size, self._crop = window, (offset, window, window, flip)

    def draw(self, source_size, seed, boxes=None):
        return Crop(*map(tf.constant, self._crop))


@pytest.mark.parametrize("flip", [False, True])
def test_of_what_a_crop_shows_no_pixel_is_no_object(tmp_path, flip):
    """Of four objects whose boxes are the image: around the crop, a pixel in its corner, pixels beside it, all."""
    crop = FixedCrop(offset=(20, 30), window=(16, 24), flip=flip)
    masks = np.zeros((4, HEIGHT, WIDTH), bool)
    masks[0] = True
    masks[0, 20:36, 30:54] = False
    masks[1, 20, 53] = masks[2, 36, 30] = masks[2, 35, 29] = True
    masks[3, 20:36, 30:54] = True
    found = [
        RecordObject(
            box_xywh=(0.0, 0.0, WIDTH, HEIGHT),
            category_id=NAMES.category_ids[number % 3],
            category_name="?",
            area=1.0,
            is_crowd=number == 2,
            mask_png=png(mask),
        )
        for number, mask in enumerate(masks)
    ]
    index = records_of(tmp_path, found)
    for side, kept in ((0, [0, 1, 2, 3]), (5, [1, 3]), (24, [1, 3])):
        inputs = InputConfig(
            resize=letterbox(crop.size),
            augmentation=crop,
            batch_size=1,
            mask_size=side,
            category_ids=NAMES.category_ids,
            max_instances_per_image=4,
        )
        (batch,) = batches(training_dataset(index, inputs), 1)
        assert batch.objects.valid[0].tolist() == [True] * len(kept) + [False] * (4 - len(kept))
        assert batch.objects.classes[0, : len(kept)].tolist() == [number % 3 for number in kept]
        assert (
            batch.objects.masks[0].sum(axis=(1, 2)).tolist() == {0: [0] * 4, 5: [0, 25, 0, 0], 24: [1, 576, 0, 0]}[side]
        )
        assert not batch.objects.boxes[0, len(kept) :].any()


def test_masks_of_evaluation_are_those_of_the_whole_image(tmp_path):
    inputs = config(image_size=(64, 64), mask_size=SIDE, batch_size=1)
    for batch, _ in evaluation_dataset(records_of(tmp_path, objects()), inputs):
        for slot, polygon in enumerate(POLYGONS):
            wanted = brute_force(
                polygon,
                batch.objects.boxes[0, slot].numpy().astype(np.float64),
                offset=(0, 0),
                window=(HEIGHT, WIDTH),
                size=(48, 64),
                flip=False,
            )
            np.testing.assert_array_equal(batch.objects.masks[0, slot], wanted)


def test_without_masks_wanted_none_is_decoded(tmp_path):
    broken = objects()
    index = records_of(tmp_path, [RecordObject(**{**vars(entry), "mask_png": b"no PNG"}) for entry in broken])
    (batch,) = batches(training_dataset(index, config(batch_size=1)), 1)
    assert batch.objects.masks.shape == (1, 6, 0, 0)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (None, r"holds no PNG; .* convert again with --include_masks"),
        (b"no PNG", "holds no PNG; expected a mask of the image, 60 x 80"),
        (png(np.zeros((5, 7), bool)), "holds a PNG of 5 x 7 pixels"),
    ],
)
def test_what_is_no_mask_of_the_image_is_refused(tmp_path, mask, message):
    index = records_of(tmp_path, [RecordObject(**{**vars(entry), "mask_png": mask}) for entry in objects()])
    still = config(batch_size=1, mask_size=SIDE, jitter_min=1.0, jitter_max=1.0)
    for reader in (evaluation_dataset, training_dataset):
        with pytest.raises(InputError, match=rf"0\.jpg: image/object/mask {message}"):
            next(iter(reader(index, still)))


@pytest.mark.parametrize("difficult", [(), (1,), (0, 2)])
def test_difficult_objects_are_marked_and_learnt(tmp_path, difficult):
    index = records_of(tmp_path, objects(difficult=difficult))
    (batch,) = batches(training_dataset(index, config(batch_size=1, jitter_min=1.0, jitter_max=1.0)), 1)
    assert batch.objects.difficult[0].tolist() == [number in difficult for number in range(6)]
    assert batch.objects.valid[0].tolist() == [True] * 3 + [False] * 3
    assert not batch.objects.crowd.any()


def test_ground_truth_of_records_has_masks_and_the_mark_of_difficult_objects(tmp_path):
    index = records_of(tmp_path, objects(difficult=(1,)))
    plain = ground_truth_of_records(index, NAMES)["annotations"]
    assert [annotation.get("difficult") for annotation in plain] == [None, 1, None]
    assert not any("segmentation" in annotation for annotation in plain)
    with_masks = ground_truth_of_records(index, NAMES, with_masks=True)["annotations"]
    for annotation, polygon in zip(with_masks, POLYGONS, strict=True):
        np.testing.assert_array_equal(decoded(annotation["segmentation"]), filled(polygon))
    without = records_of(tmp_path, objects(masks=False))
    assert [a["segmentation"] for a in ground_truth_of_records(without, NAMES, with_masks=True)["annotations"]] == [
        None
    ] * 3


def test_perfect_masks_are_measured_as_such(tmp_path):
    """From records through the input, a detector that returns its input, and pasting, to the ground truth."""
    index = records_of(tmp_path, objects(difficult=(2,)), count=5)
    inputs = config(image_size=(96, 128), mask_size=56, batch_size=2)
    told = iter(evaluation_dataset(index, inputs))

    def predict(images, sizes, scales):
        found = tf.nest.map_structure(np.asarray, next(told)[0].objects)
        scores = np.where(found.valid, 0.9, 0.0).astype(np.float32)
        return Detections(
            found.boxes * np.tile(np.asarray(scales), 2)[:, None],
            scores,
            found.classes,
            found.valid,
            found.masks.astype(np.float32),
        )

    measures = read_evaluator(index, NAMES, json_file=None).evaluate(
        detect_all(predict, evaluation_dataset(index, inputs), class_names=NAMES)
    )
    assert measures.numbers["AP"] > 0.95
    assert measures.mask_numbers["AP"] > 0.95
    assert measures.mask_numbers["AP75"] == pytest.approx(1.0)
    assert measures.class_objects == {"cat": 5, "dog": 5, "elk": 0}
