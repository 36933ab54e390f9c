import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from letterboxed_inputs import letterboxed
from PIL import Image

from dataset.class_names import ClassNames
from dataset.input.pipeline import evaluation_dataset, training_dataset
from dataset.input.resize import letterbox, stretch
from dataset.records.record_index import index_records
from dataset.records.schema import Record, RecordObject, encode_record
from efficientdet.plugins.ssd.overlap_crop import OverlapCrop
from efficientdet.run_log.journal import Stopwatch
from program_support.errors import InputError

NAMES = ClassNames((2, 5, 9), ("cat", "dog", "elk"))
COUNT = 13


def config(**changes):
    defaults = {
        "image_size": (32, 32),
        "batch_size": 4,
        "category_ids": NAMES.category_ids,
        "max_instances_per_image": 6,
        "seed": 3,
    }
    return letterboxed(**{**defaults, **changes})


def image_of(number, height=24, width=30):
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(file, "jpeg")
    return file.getvalue()


def box(x, y, w, h, category_id=5, *, crowd=False, area=None):
    return RecordObject(
        box_xywh=(x, y, w, h),
        category_id=category_id,
        category_name="?",
        area=w * h if area is None else area,
        is_crowd=crowd,
    )


def record(number, objects, *, height=24, width=30):
    return Record(
        encoded=image_of(number, height, width),
        height=height,
        width=width,
        file_name=f"{number}.jpg",
        image_id=100 + number,
        objects=objects,
    )


def written(folder, records, *, shards=1):
    paths = [str(folder / f"part-{i:05d}-of-{shards:05d}.tfrecord") for i in range(shards)]
    for i, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for entry in records[i::shards]:
                writer.write(encode_record(entry))
    return index_records(paths)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """13 images in 3 shards; image i has i mod 4 boxes."""
    records = [record(i, [box(2 + j, 3 + j, 8, 10, NAMES.category_ids[j]) for j in range(i % 4)]) for i in range(COUNT)]
    return written(tmp_path_factory.mktemp("records"), records, shards=3)


def batches(dataset, count):
    return [tf.nest.map_structure(lambda t: t.numpy(), batch) for batch in itertools.islice(dataset, count)]


def assert_same(one, other):
    for left, right in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        np.testing.assert_array_equal(left, right)


# --- training


def test_batches_have_the_agreed_shapes(index):
    spec = training_dataset(index, config()).element_spec
    assert spec.images == tf.TensorSpec([4, 32, 32, 3], tf.uint8)
    assert spec.sizes == tf.TensorSpec([4, 2], tf.int32)
    assert spec.image_ids == tf.TensorSpec([4], tf.int64)
    assert spec.scales == tf.TensorSpec([4, 2], tf.float32)
    assert spec.objects.boxes == tf.TensorSpec([4, 6, 4], tf.float32)
    assert spec.objects.classes == tf.TensorSpec([4, 6], tf.int32)
    assert spec.objects.valid == spec.objects.crowd == tf.TensorSpec([4, 6], tf.bool)


def test_the_order_is_the_published_function(index):
    """Worked out apart: shard by shard, position p is image p mod n of the permutation of epoch p div n."""
    stored = [100 + i for shard in range(3) for i in range(shard, COUNT, 3)]
    expected = [
        stored[i]
        for epoch in range(2)
        for i in np.random.Generator(np.random.Philox(key=[3, epoch])).permutation(COUNT)
    ]
    ids = np.concatenate([b.image_ids for b in batches(training_dataset(index, config()), 6)])
    assert ids.tolist() == expected[:24]


def test_bits_do_not_depend_on_threads(index):
    assert_same(
        batches(training_dataset(index, config(num_threads=1)), 8),
        batches(training_dataset(index, config(num_threads=4)), 8),
    )


@pytest.mark.parametrize("step", [7, 1000])
def test_a_run_continues_at_any_step(index, step):
    if step < 10:
        whole = batches(training_dataset(index, config()), step + 3)
    else:
        whole = batches(training_dataset(index, config(), first_position=(step - 1) * config().batch_size), 4)
    assert_same(whole[-3:], batches(training_dataset(index, config(), first_position=step * config().batch_size), 3))


def test_two_ranks_see_what_one_of_twice_the_batch_sees(index):
    one = batches(training_dataset(index, config(batch_size=6), first_position=6), 5)
    half = config(batch_size=3)
    ranks = [batches(training_dataset(index, half, first_position=6, rank=rank, world_size=2), 5) for rank in (0, 1)]
    for whole, left, right in zip(one, *ranks, strict=True):
        assert_same(whole, tf.nest.map_structure(lambda a, b: np.concatenate([a, b]), left, right))


def test_augmentation_changes_from_epoch_to_epoch(index):
    single = config(batch_size=1)
    by_image = {}
    for batch in batches(training_dataset(index, single), 3 * COUNT):
        by_image.setdefault(int(batch.image_ids[0]), []).append(batch.images.tobytes())
    assert all(len(set(views)) == 3 for views in by_image.values())


def test_without_augmentation_the_whole_image_is_seen(index):
    still = config(jitter_min=1.0, jitter_max=1.0, flip_probability=0.0)
    for batch in batches(training_dataset(index, still), 4):
        np.testing.assert_array_equal(batch.sizes, [[25, 32]] * 4)  # 24 x 30 times 32/30
        np.testing.assert_allclose(batch.scales, [[24 / 25, 30 / 32]] * 4, rtol=1e-6)
        for i, image_id in enumerate(batch.image_ids):
            count = (image_id - 100) % 4
            assert batch.objects.valid[i].tolist() == [True] * count + [False] * (6 - count)
            assert batch.objects.classes[i].tolist() == [*range(count)] + [0] * (6 - count)
            expected = [
                [(3 + j) * 25 / 24, (2 + j) * 32 / 30, (13 + j) * 25 / 24, (10 + j) * 32 / 30] for j in range(count)
            ]
            np.testing.assert_allclose(
                batch.objects.boxes[i, :count].reshape(-1, 4), np.reshape(expected, [-1, 4]), rtol=1e-5
            )
            assert (batch.objects.boxes[i, count:] == 0).all()
            whole = tf.image.resize(tf.io.decode_jpeg(image_of(image_id - 100)), (25, 32)).numpy()
            assert np.abs(batch.images[i, :25] - whole).max() < 0.9  # OpenCV interpolates in integers
            assert (batch.images[i, 25:] == 0).all()


def test_more_boxes_than_slots_keep_the_largest_in_order(tmp_path):
    sides = [5, 12, 3, 9, 4, 8, 7]
    many = written(tmp_path, [record(0, [box(1, 1, side, side) for side in sides])])
    still = config(jitter_min=1.0, jitter_max=1.0, flip_probability=0.0, batch_size=1, max_instances_per_image=4)
    objects = batches(training_dataset(many, still), 1)[0].objects
    assert objects.valid.all()
    widths = (objects.boxes[0, :, 3] - objects.boxes[0, :, 1]) * 30 / 32
    np.testing.assert_allclose(widths, [12, 9, 8, 7], rtol=1e-5)


def test_crowds_are_marked(tmp_path):
    crowds = written(tmp_path, [record(0, [box(1, 1, 8, 8), box(2, 2, 20, 20, 9, crowd=True)])])
    still = config(jitter_min=1.0, jitter_max=1.0, batch_size=1)
    objects = batches(training_dataset(crowds, still), 1)[0].objects
    assert objects.crowd[0].tolist() == [False, True, False, False, False, False]
    assert objects.valid[0].tolist() == [True, True, False, False, False, False]
    assert objects.classes[0, :2].tolist() == [1, 2]
    # RetinaNet's and SSD's references train on crowds; an evaluation still knows them
    still = replace(still, train_on_crowds=True)
    assert not batches(training_dataset(crowds, still), 1)[0].objects.crowd.any()
    [(seen, _)] = batches(evaluation_dataset(crowds, still), 1)
    assert seen.objects.crowd[0].tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize("train_on_crowds", [False, True])
def test_crops_of_ssd_look_at_what_is_learnt(tmp_path, train_on_crowds):
    """Every crop shows an object to learn; colors change with the position, and the same again from any start."""
    crowds = written(tmp_path, [record(0, [box(1, 1, 8, 8), box(20, 14, 9, 9, 9, crowd=True)], height=24, width=30)])
    ssd = replace(
        config(),
        resize=stretch((32, 32), antialias=True),
        augmentation=OverlapCrop((32, 32)),
        train_on_crowds=train_on_crowds,
    )
    stages = Stopwatch()
    first, second = batches(training_dataset(crowds, ssd, measuring=stages.measuring), 2)
    assert stages.total("reading") > 0
    learnt = first.objects.valid & ~first.objects.crowd
    assert learnt.any(axis=1).all()
    later = batches(training_dataset(crowds, ssd, first_position=4), 1)[0]
    for name in ("images", "positions", "sizes", "scales"):
        np.testing.assert_array_equal(getattr(later, name), getattr(second, name))
    plain = replace(ssd, augmentation=OverlapCrop((32, 32), color_jitter=None))
    assert (batches(training_dataset(crowds, plain), 1)[0].images != first.images).any(axis=(1, 2, 3)).all()


def test_slots_shrink_to_the_batch(tmp_path):
    few = written(tmp_path, [record(0, [box(1, 1, 8, 8)] * 3), record(1, []), record(2, [box(1, 1, 8, 8)] * 9)])
    still = {"jitter_min": 1.0, "jitter_max": 1.0, "batch_size": 1, "max_instances_per_image": 20}
    short = batches(training_dataset(few, config(**still, pad_to_batch_maximum=True)), 3)
    full = batches(training_dataset(few, config(**still)), 3)
    assert {int(b.image_ids[0]): b.objects.valid.shape[1] for b in short} == {100: 8, 101: 8, 102: 16}
    for cut, whole in zip(short, full, strict=True):
        slots = cut.objects.valid.shape[1]
        assert_same(cut.objects, tf.nest.map_structure(lambda v, slots=slots: v[:, :slots], whole.objects))
        assert not whole.objects.valid[:, slots:].any()


def test_images_of_any_shape_and_kind_pass(tmp_path):
    shapes = [(1, 1), (2000, 2), (2, 2000), (40, 50)]
    odd = written(tmp_path, [record(i, [], height=h, width=w) for i, (h, w) in enumerate(shapes)])
    for batch in batches(training_dataset(odd, config()), 6):
        assert (batch.sizes >= 1).all()
        assert not batch.objects.valid.any()
    batch, _ = next(iter(evaluation_dataset(odd, config())))
    assert batch.sizes.numpy().tolist() == [[32, 32], [32, 1], [1, 32], [25, 32]]


def test_an_unknown_category_stops_with_file_and_id(tmp_path):
    unknown = written(tmp_path, [record(7, [box(1, 1, 5, 5, 4)])])
    with pytest.raises(InputError, match=r"byte 0 \(7\.jpg, image 107\).*unknown category ids \[4\].*\[2, 5, 9\]$"):
        next(iter(training_dataset(unknown, config())))
    too_high = written(tmp_path, [record(8, [box(1, 1, 5, 5, 10)])])
    with pytest.raises(InputError, match=r"8\.jpg, image 108.*unknown category ids \[10\]"):
        next(iter(evaluation_dataset(too_high, config())))


def test_fake_data_is_one_batch_for_ever(index):
    fake = batches(training_dataset(index, config(use_fake_data=True)), 5)
    assert_same(fake, batches(training_dataset(index, config()), 1) * 5)


# --- evaluation


@pytest.mark.parametrize(("world_size", "samples"), [(1, 7), (3, 0), (2, 100)])
def test_each_image_is_evaluated_once(index, world_size, samples):
    seen = []
    for rank in range(world_size):
        for batch, row_valid in evaluation_dataset(index, config(), rank=rank, world_size=world_size, samples=samples):
            assert batch.images.shape == (4, 32, 32, 3)
            assert row_valid.shape == (4,)
            seen += batch.image_ids.numpy()[row_valid.numpy()].tolist()
    expected = [int(b.image_ids[0]) for b, _ in evaluation_dataset(index, config(batch_size=1))]
    assert len(set(seen)) == len(seen)
    assert sorted(seen) == sorted(expected[: samples or COUNT])


def test_a_rank_without_images_has_no_batch(index):
    assert list(evaluation_dataset(index, config(), rank=3, world_size=4, samples=2)) == []


def test_the_last_batch_is_filled_up_and_says_so(index):
    *_, (batch, row_valid) = evaluation_dataset(index, config())
    assert row_valid.numpy().tolist() == [True, False, False, False]
    for values in tf.nest.flatten(batch):
        assert not values.numpy()[1:].any()


def test_evaluation_is_the_letterbox(index):
    for batch, _ in evaluation_dataset(index, config(batch_size=1)):
        number = int(batch.image_ids[0]) - 100
        image, size, scale = letterbox((32, 32))(tf.io.decode_jpeg(image_of(number)))
        np.testing.assert_array_equal(batch.images[0], image)
        np.testing.assert_array_equal(batch.sizes[0], size)
        np.testing.assert_array_equal(batch.scales[0], scale)
        in_original = batch.objects.boxes[0][: number % 4] * np.tile(scale, 2)
        expected = [[3 + j, 2 + j, 13 + j, 10 + j] for j in range(number % 4)]
        np.testing.assert_allclose(np.reshape(in_original, [-1, 4]), np.reshape(expected, [-1, 4]), rtol=1e-5)
