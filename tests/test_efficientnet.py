import shutil
import warnings

import h5py
import keras
import numpy as np
import pytest
from oracles import to_numpy
from unfilled import unfilled_weights

from efficientdet.checkpoints.restore import load_backbone, read_source
from efficientdet.families.efficientdet.family import FAMILY
from efficientdet.families.registry import hyperparameters_of
from model.detection_model import named_variables
from model.efficientdet import build_backbone
from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV
from program_support.errors import InputError

CHANNELS = {  # of levels 1 to 5, and the number of blocks; test_efficientdet.py counts the weights of all backbones
    0: ((16, 24, 40, 112, 320), 16),
    3: ((24, 32, 48, 136, 384), 26),
}


def unfilled(*arguments, **options):
    """A backbone whose weights exist by name and shape only: drawing B7's takes most of the time."""
    with unfilled_weights():
        return build_backbone(*arguments, **options)


@pytest.mark.parametrize("number", CHANNELS)
def test_features_of_every_backbone(number):
    channels, blocks = CHANNELS[number]
    backbone = unfilled(f"efficientnet-b{number}", (192, 128))
    assert [output.shape for output in backbone.outputs] == [
        (None, 192 >> level, 128 >> level, filters) for level, filters in enumerate(channels, start=1)
    ]
    names = {name.split("/")[1] for name in named_variables(backbone)}
    assert names == {"stem"} | {f"blocks_{block}" for block in range(blocks)}


def test_stochastic_depth_grows_linearly_from_the_first_block():
    backbone = unfilled("efficientnet-b0", (64, 64), survival_prob=0.8)
    rates = {layer.name: layer.rate for layer in backbone.layers if isinstance(layer, keras.layers.Dropout)}
    assert len(rates) == 9  # blocks that have something to skip
    for name, place in {"block2b_drop": 2, "block4c_drop": 7, "block6d_drop": 14}.items():
        assert rates[name] == pytest.approx(0.2 * place / 16)


def test_a_lite_backbone_skips_blocks_with_the_same_shares():
    backbone = unfilled("efficientnet-lite0", (64, 64), survival_prob=0.8)
    rates = {layer.name: layer.rate for layer in backbone.layers if isinstance(layer, keras.layers.Dropout)}
    skipped = (2, 4, 6, 7, 9, 10, 12, 13, 14)  # the repeats of stages 2 to 6
    assert rates == pytest.approx({f"efficientnet-lite0.blocks_{place}.drop": 0.2 * place / 16 for place in skipped})


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A model of keras.applications with random weights, and its file, which stores the deviation for the variance."""
    path = str(tmp_path_factory.mktemp("weights") / "b0.weights.h5")
    keras.utils.set_random_seed(0)
    model = keras.applications.EfficientNetB0(include_top=False, weights=None, input_shape=(64, 64, 3))
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.8, 1.2, weight.shape) for weight in layer.get_weights()])
        if isinstance(layer, keras.layers.Normalization):
            layer.adapt_mean.assign(IMAGENET_MEAN)
            layer.adapt_variance.assign(IMAGENET_STDDEV)
            layer.finalize_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # keras.Variable.__array__ under NumPy 2
        model.save_weights(path)
    return model, path


def keras_2_file(model, path):
    """Write the layout of the published files: groups by layer, in the order of an attribute."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.name.encode() for layer in model.layers]
        for layer in model.layers:
            prefix = f"{layer.name}/{'depthwise_' if 'dwconv' in layer.name else ''}"
            group, names = file.create_group(layer.name), [f"{prefix}{weight.name}:0" for weight in layer.weights]
            group.attrs["weight_names"] = [name.encode() for name in names]
            for name, weight in zip(names, layer.weights, strict=True):
                group[name] = to_numpy(weight)
    return path


def with_weights(path):
    source = read_source(str(path))
    assert source.conventions(FAMILY).keys() == {"conv_padding", "batch_norm_epsilon", "mean_rgb", "stddev_rgb"}
    assert source.conventions(FAMILY)["mean_rgb"] == hyperparameters_of("efficientdet-d0", {}).mean_rgb
    with keras.StatelessScope():  # draws no values that the file's replace
        backbone = build_backbone("efficientnet-b0", (64, 64))
        load_backbone(backbone, source, family=FAMILY)
    return backbone


def published_features(model, images):
    """What keras.applications computes with its own files: one more division by the root of the deviation."""
    normalized = keras.Model(
        model.input, next(layer.output for layer in model.layers if isinstance(layer, keras.layers.Normalization))
    )(images)
    taps = ("block1a_project_bn", "block2b_add", "block3b_add", "block5c_add", "block7a_project_bn")
    rest = keras.Model(model.get_layer("stem_conv_pad").input, [model.get_layer(tap).output for tap in taps])
    return rest(normalized / np.sqrt(np.float32(IMAGENET_STDDEV)))


@pytest.mark.parametrize("layout", [2, 3])
def test_weights_from_a_file_see_the_inputs_they_were_trained_on(published, layout, tmp_path):
    model, path = published
    path = keras_2_file(model, tmp_path / "b0_notop.h5") if layout == 2 else path
    images = np.random.default_rng(1).integers(0, 256, (2, 64, 64, 3)).astype(np.float32)
    features = with_weights(path)((images / 255 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STDDEV))
    for ours, theirs in zip(features, published_features(model, images), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())
        assert np.std(theirs) > 0.01


@pytest.mark.parametrize(("mean", "variance"), [((0.5, 0.5, 0.5), IMAGENET_STDDEV), (IMAGENET_MEAN, (1.0, 1.0, 1.0))])
def test_weights_for_inputs_normalized_otherwise_are_refused(published, tmp_path, mean, variance):
    path = str(tmp_path / "b0.weights.h5")
    shutil.copyfile(published[1], path)
    with h5py.File(path, "r+") as file:
        for number, value in (("0", mean), ("1", variance)):
            assert file["layers/normalization/vars"][number].shape == (3,)
            file["layers/normalization/vars"][number][...] = value
    with pytest.raises(InputError, match=r"mean \[.*\] and variance \[.*\]; expected ImageNet's"):
        with_weights(path)


def test_arrays_without_content_are_not_allocated(tmp_path):
    """HDF5 stores nothing for the chunks of an array that were not written: 4 kB of file, 64 GiB of zeros."""
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("layers/conv2d/vars/0", shape=(2**20, 2**14), chunks=(1024, 1024), dtype="f4")
        file["layers/conv2d/vars/1"] = b"text"
    with pytest.raises(InputError, match=r"huge.h5: holds 687\d{8} bytes of arrays; the limit is 1073741824$"):
        read_source(str(tmp_path / "huge.h5"))
    with h5py.File(tmp_path / "huge.h5", "r+") as file:
        del file["layers/conv2d/vars/0"]
    with pytest.raises(InputError, match=r"huge.h5: holds no arrays$"):
        read_source(str(tmp_path / "huge.h5"))


def test_zero_input_stays_zero_to_the_stem():
    """Padding is zeroed after normalization, so no layer may normalize again."""
    backbone = build_backbone("efficientnet-b0", (32, 32))
    stem = keras.Model(backbone.input, backbone.get_layer("efficientnet-b0.stem.conv2d").output)
    np.testing.assert_array_equal(stem(np.zeros((1, 32, 32, 3), np.float32)), np.zeros((1, 16, 16, 32)))
