import keras
import numpy as np
import pytest
from miniature import miniature_detector
from text_tables import rows

from dataset.class_names import ClassNames
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training.batch_norm_calibration import Calibration, calibration_batch, calibration_size
from model.batch_norm import BatchNormalization
from model.detection_model import SEED_STATE, named_variables
from object_detection.structures import Batch


def batch_of(seed, count=4):
    detector_size = (64, 64)
    random = np.random.default_rng(seed)
    images = random.integers(0, 60 * (seed + 1), (count, *detector_size, 3)).astype(np.uint8)
    sizes = np.tile(np.int32(detector_size), (count, 1))
    images, sizes = map(keras.ops.convert_to_tensor, (images, sizes))
    return Batch(images=images, sizes=sizes, objects=None, image_ids=None, positions=None, scales=None)


def norms(detector):
    return [layer for layer in detector.network.layers if isinstance(layer, BatchNormalization)]


def test_the_first_layer_has_the_statistics_of_all_images():
    detector = miniature_detector()
    batches = [batch_of(0), batch_of(1), batch_of(2)]
    first = norms(detector)[0]
    before = keras.Model(detector.network.input, first.input)
    seen = np.concatenate([np.asarray(before(detector.normalize(batch.images, batch.sizes))) for batch in batches])
    assert seen.mean(axis=(1, 2, 3)).std() > 0.01  # batches differ
    momentum = first.momentum
    Calibration(detector, use_xla=False)(batches)
    np.testing.assert_allclose(first.moving_mean, seen.mean(axis=(0, 1, 2)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first.moving_variance, seen.var(axis=(0, 1, 2)), rtol=1e-4, atol=1e-5)
    assert first.momentum == momentum > 0.5


def test_again_with_other_weights_and_frozen_layers_keep_theirs():
    detector = miniature_detector()
    frozen, *others = norms(detector)
    frozen.trainable = False
    kept = np.asarray(frozen.moving_variance).copy()
    calibration = Calibration(detector, use_xla=False)
    calibration([batch_of(1)])
    np.testing.assert_array_equal(frozen.moving_variance, kept)
    variances = [np.asarray(layer.moving_variance).copy() for layer in others]
    for weight in detector.network.trainable_variables:
        weight.assign(weight * 2.0)
    calibration([batch_of(1)])
    for layer, variance in zip(others, variances, strict=True):
        assert (np.asarray(layer.moving_variance) > 1.5 * variance).any(), layer.name


def test_random_layers_go_on_as_if_nothing_had_been():
    image = keras.Input((64, 64, 3))
    norm = BatchNormalization(name="norm")
    detector = miniature_detector()
    detector.network = keras.Model(image, [keras.layers.Dropout(0.5)(norm(image))] * 2)
    [seed] = [variable for variable in detector.network.variables if variable.name == SEED_STATE]
    states = [np.asarray(seed.value).copy()]
    detector.network(keras.ops.ones((1, 64, 64, 3)), training=True)
    states.append(np.asarray(seed.value).copy())
    Calibration(detector, use_xla=False)([batch_of(1)])
    assert (states[0] != states[1]).any()
    np.testing.assert_array_equal(seed.value, states[1])
    assert (np.asarray(norm.moving_mean) != 0).all()
    assert not any(name.endswith(SEED_STATE) for name in named_variables(detector.network))


@pytest.mark.parametrize(
    ("size", "images", "training_batch", "wanted"),
    rows(r"""
(128, 128) | 512 | 8 | 64
(128, 128) | 16 | 8 | 16
(512, 512) | 512 | 4 | 32
(512, 512) | 512 | 1 | 16
(128, 128) | 512 | 1 | 64
(1024, 1024) | 512 | 4 | 16
(1024, 1024) | 512 | 1 | 8
(4096, 8192) | 512 | 1 | 1
"""),
)
def test_large_images_and_those_of_small_batches_come_fewer_at_a_time(size, images, training_batch, wanted):
    assert calibration_batch(size, images, training_batch=training_batch) == wanted


@pytest.mark.parametrize(
    ("given", "records", "planned", "seen", "expected"),
    [
        (None, 900, 8000, 8000, (512, 64)),
        (None, 900, 8000, 300, (300, 64)),
        (None, 900, 8000, 8, (64, 64)),  # the batch of later calibrations, compiled once
        (None, 900, 8, 8, (8, 8)),  # two steps: nothing else was seen
        (None, 900, 4, 4, (0, 4)),
        (None, 20, 8000, 8000, (20, 20)),
        (512, 900, 8, 8, (512, 64)),
        (0, 900, 8000, 8000, (0, 1)),
    ],
)
def test_no_more_images_than_the_training_has_seen(given, records, planned, seen, expected):
    config = TrainingConfig(
        hparams=hyperparameters_of("efficientdet-d0", {"image_size": 128}),
        records=("unused",),
        val_records=(),
        val_json_file=None,
        class_names=ClassNames((1,), ("a",)),
        model_dir="unused",
        batch_size=4,
        calibration_images=given,
    )
    assert calibration_size(config, sharing_statistics=1, available=min(records, planned), seen=seen) == expected
