import keras
import numpy as np
import pytest

from efficientdet.optimization.packing import Packing


def test_comes_back_as_it_was():
    arrays = [np.float32([[1, 2], [3, 4]]), np.float32(5), np.float32([6, 7, 8])]
    packing = Packing([array.shape for array in arrays])
    packed = packing.pack(arrays)
    np.testing.assert_array_equal(np.asarray(packed), np.arange(1, 9))
    for array, again, copied in zip(arrays, packing.unpack(packed), packing.arrays(packed), strict=True):
        np.testing.assert_array_equal(np.asarray(again), array)
        np.testing.assert_array_equal(copied, array)
        assert copied.shape == array.shape
    assert packing.size == 8


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (0,)])
def test_one_tensor(shape):
    packing = Packing([shape])
    [again] = packing.unpack(packing.pack([np.ones(shape, np.float32)]))
    assert tuple(again.shape) == shape


def test_short_floats_become_the_type_asked_for():
    packing = Packing([(2,), (1,)])
    packed = packing.pack([np.float16([1.5, 2.5]), np.float32([3.0])])
    assert keras.backend.standardize_dtype(packed.dtype) == "float32"
    np.testing.assert_array_equal(np.asarray(packed), [1.5, 2.5, 3.0])
