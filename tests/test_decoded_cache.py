"""Batches out of a cache of decoded images are those of images decoded whole, and an image is decoded once."""

import numpy as np
import pytest
import tensorflow as tf
from test_pipeline import COUNT, config, record, written

from dataset.files import image_decoding
from dataset.input import examples
from dataset.input.decoded_cache import DecodedCache, available_memory
from dataset.input.pipeline import training_dataset

PLENTY = (10**9, 10**9)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return written(tmp_path_factory.mktemp("records"), [record(i, [], height=70, width=90) for i in range(COUNT)])


def images(index, *, count, cache=None):
    batches = iter(training_dataset(index, config(), cache=cache))
    return np.concatenate([next(batches).images for _ in range(count)])


@pytest.fixture
def wanted(index, monkeypatch):
    """Without a cache. A window decoded alone may lack the color of a neighbor, so each image is decoded whole."""

    def window(encoded, crop):
        (top, left), (bottom, right) = tf.unstack(crop.offset), tf.unstack(crop.offset + crop.window)
        return tf.image.decode_jpeg(encoded, channels=3)[top:bottom, left:right]

    with monkeypatch.context() as patched:
        patched.setattr(examples, "decode_window", window)
        return images(index, count=10)


def test_the_batches_of_three_epochs_are_the_same(index, wanted):
    cache = DecodedCache(log=pytest.fail, memory=lambda: PLENTY)
    found = images(index, count=10, cache=cache)
    assert len(cache) == COUNT
    np.testing.assert_array_equal(found, wanted)


def test_an_image_is_decoded_once(index, monkeypatch):
    decoded = []
    decode = image_decoding.decode_image

    def counted(encoded):
        image = decode(encoded)
        with tf.control_dependencies([tf.py_function(lambda: decoded.append(1), [], [])]):
            return tf.identity(image)

    monkeypatch.setattr(image_decoding, "decode_image", counted)
    cache = DecodedCache(log=pytest.fail, memory=lambda: PLENTY)
    images(index, count=2, cache=cache)
    images(index, count=12, cache=cache)
    assert COUNT <= len(decoded) < 2 * COUNT  # two threads may meet an image at the same time


def test_what_does_not_fit_is_decoded_each_time(index, wanted):
    told = []
    image = 70 * 90 * 3
    cache = DecodedCache(log=told.append, memory=lambda: (200_000 + 5 * image - len(cache) * image, 1_000_000))
    found = images(index, count=10, cache=cache)
    # The fifth would leave a fifth of the memory, not more. Two threads may add an image each at the limit. They wait
    # for no lock, because its holder's garbage collector could destroy an iterator that waits for their calls.
    assert len(cache) in (4, 5)
    assert set(told) == {f"--cache=decoded: {len(cache)} images fill the memory; the others are decoded in every epoch"}
    np.testing.assert_array_equal(found, wanted)


def test_memory_is_that_of_the_machine_at_most():
    available, total = available_memory()
    assert 0 < available <= total < 2**50
