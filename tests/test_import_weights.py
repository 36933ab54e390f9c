import itertools
import json
import re
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from miniature import MINIATURE_BACKBONE, miniature_detector
from oracles import TESTDATA, to_numpy
from standins import install

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints import restore as weights
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.restore import Source, read_source, restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.families.efficientdet.family import FAMILY, from_nvidia
from model.bifpn import NearestResize
from model.detection_model import named_variables
from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV
from model.weight_arrays import check_against, is_object_based, model_arrays
from program_support.errors import InputError

SEVEN = ClassNames(tuple(range(1, 8)), tuple("abcdefg"))
THREE = ClassNames((1, 2, 3), ("one", "two", "three"))
FOUR = ClassNames((1, 2, 3, 4), ("one", "two", "three", "four"))

load_weights, load_matching_weights, load_backbone = (
    partial(load, family=FAMILY)
    for load in (weights.load_weights, weights.load_matching_weights, weights.load_backbone)
)


def shapes_of(file: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a published checkpoint in the order of their names."""
    return {name: tuple(shape) for name, shape in json.loads((TESTDATA / file).read_text()).items()}


def arrays_like(network, *, num_classes=None, seed=0) -> dict[str, np.ndarray]:
    """Random arrays for every weight of the network, or with another number of class rows."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, variable in named_variables(network).items():
        shape = list(variable.shape)
        if num_classes and re.fullmatch("class_net/class-predict/(pointwise_kernel|bias)", name):
            shape[-1] = 9 * num_classes
        arrays[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return arrays


def values_of(network) -> dict[str, np.ndarray]:
    return {name: to_numpy(variable.value) for name, variable in named_variables(network).items()}


def assert_holds(network, arrays):
    values = values_of(network)
    assert values.keys() == arrays.keys()
    for name, value in values.items():
        np.testing.assert_array_equal(value, arrays[name], err_msg=name)


@pytest.fixture
def network():
    return miniature_detector(num_classes=3).network


# Names


def test_averages_stand_for_the_raw_values_and_the_optimizer_is_no_model():
    arrays = {
        "a/kernel": 1,
        "a/kernel/ExponentialMovingAverage": 2,
        "a/kernel/Momentum": 3,
        "global_step": 4,
        "b/bias": 5,
        "save_counter": 6,
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE": 7,
        "optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE": 8,
        "a/.OPTIMIZER_SLOT/optimizer/average": 9,
    }
    assert model_arrays(arrays) == {"a/kernel": 2, "b/bias": 5}
    assert model_arrays(arrays, averaged=False) == {"a/kernel": 1, "b/bias": 5}
    assert model_arrays({"a/kernel/ExponentialMovingAverage": 2}) == {"a/kernel": 2}
    assert model_arrays({}) == {}


def test_what_does_not_fit_is_named():
    arrays = {"a": np.zeros(3), "b": np.zeros((2, 2)), "x": np.zeros(1)}
    check_against(arrays, {"a": (3,), "b": (2, 2), "x": (1,)}, source="file")
    with pytest.raises(
        InputError, match=r"^file: c is missing; x is unexpected; b has shape \(2, 2\), expected \(2,\)$"
    ):
        check_against(arrays, {"a": (3,), "b": (2,), "c": (1,)}, source="file")
    with pytest.raises(InputError, match=r"^file: n0 is missing.*n4 is missing; and 5 more$"):
        check_against({}, {f"n{i}": () for i in range(10)}, source="file")
    with pytest.raises(InputError, match=r"^file: a has 2 NaN or infinite values, expected none$"):
        check_against({"a": np.array([0, np.nan, np.inf])}, {"a": (3,)}, source="file")


def test_nvidias_numbers_become_our_names_one_to_one():
    """By shape: each of NVIDIA's tensors gets a name whose published tensor has the same shape; none is left over."""
    published, numbered = shapes_of("automl_d0_tensors.json"), shapes_of("nvidia_d0_tensors.json")
    published = {name: shape for name, shape in published.items() if name != "global_step" and "Momentum" not in name}
    arrays = {name: np.zeros(shape, np.int8) for name, shape in numbered.items()}
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    slots = {
        f"{name.removesuffix(value)}/.OPTIMIZER_SLOT/optimizer/average{value}": array for name, array in arrays.items()
    }
    others = {
        "_CHECKPOINTABLE_OBJECT_GRAPH": b"",
        "save_counter/.ATTRIBUTES/VARIABLE_VALUE": 1,
        "optimizer/awg_optimizer/momentum/.ATTRIBUTES/VARIABLE_VALUE": 0.9,
    }
    translated = from_nvidia({**arrays, **slots, **others}, in_layer_order(published))
    assert {name: array.shape for name, array in translated.items()} == published
    assert is_object_based({**arrays, **others})
    assert not is_object_based(published)


def test_nvidias_saved_model_is_the_backbone_of_its_detector():
    """The network for classification: the same layers by number, at the root of the object graph."""
    published = shapes_of("automl_d0_tensors.json")
    names = in_layer_order(name for name in published if name.startswith("efficientnet-b0/") and "Momentum" not in name)
    detector = {name: object() for name in shapes_of("nvidia_d0_tensors.json") if name.startswith("backbone/")}
    classifier = {name.removeprefix("backbone/"): array for name, array in detector.items()}
    head = {"layer_with_weights-200/kernel/.ATTRIBUTES/VARIABLE_VALUE": None}
    found = from_nvidia({**classifier, **head, "_CHECKPOINTABLE_OBJECT_GRAPH": b""}, names)
    assert found.pop("backbone/layer_with_weights-200/kernel") is None  # a classifier's head, which no detector has
    assert found == from_nvidia(detector, names)
    assert len(found) == 304


def in_layer_order(names):
    """Names as the network has them: blocks by number, and in a block expansion, depthwise, squeeze and projection."""
    roles = [
        "conv2d/",
        "tpu_batch_normalization/",
        "depthwise_conv2d/",
        "tpu_batch_normalization_1/",
        "se/conv2d/",
        "se/conv2d_1/",
        "conv2d_1/",
        "tpu_batch_normalization_2/",
    ]
    first = [
        "depthwise_conv2d/",
        "tpu_batch_normalization/",
        "se/conv2d/",
        "se/conv2d_1/",
        "conv2d/",
        "tpu_batch_normalization_1/",
    ]

    def place(name):
        match = re.match(r"efficientnet-b0/(?:blocks_(\d+)|stem)/(.*)", name)
        if not match:
            return (99, 0)
        order = first if match[1] == "0" else roles
        return (-1 if match[1] is None else int(match[1]), [match[2].startswith(role) for role in order].index(True))

    return sorted(names, key=place)


# Whole checkpoints, on a miniature


@pytest.mark.parametrize("averaged", [True, False])
def test_a_checkpoint_of_the_same_classes_is_loaded_whole(network, tmp_path, averaged):
    right, wrong = arrays_like(network), arrays_like(network, seed=1)
    first, second = (right, wrong) if averaged else (wrong, right)
    prefix = str(tmp_path / "ckpt")
    write_arrays(
        prefix,
        {
            **second,
            "global_step": np.int64(7),
            **{f"{name}/Momentum": array for name, array in wrong.items()},
            **{f"{name}/ExponentialMovingAverage": array for name, array in first.items()},
        },
        Description(model_name="miniature", hparams={}, categories=THREE.to_categories(), weights="raw and averaged"),
    )
    load_weights(network, read_source(prefix), class_names=THREE, averaged=averaged)
    assert_holds(network, right)


@pytest.mark.parametrize("load", [load_weights, load_matching_weights])
def test_a_tensor_that_does_not_fit_is_an_error_and_changes_nothing(network, load):
    arrays, before = arrays_like(network), values_of(network)
    arrays["box_net/box-0/bias"] = np.zeros(25)
    with pytest.raises(InputError, match=r"^some/ckpt: .*box-0/bias has shape \(25,\), expected \(24,\)"):
        load(network, Source("some/ckpt", arrays, None), class_names=THREE)
    assert_holds(network, before)


@pytest.mark.parametrize("rows", [90, 91])
def test_published_class_rows_are_read_by_category_id(rows):
    network = miniature_detector(num_classes=80).network
    arrays = arrays_like(network, num_classes=rows)
    by_class = np.tile(np.arange(rows, dtype=np.float32), (24, 9, 1))  # the value is the row; anchor-major
    arrays["class_net/class-predict/pointwise_kernel"] = by_class.reshape(1, 1, 24, 9 * rows)
    arrays["class_net/class-predict/bias"] = by_class[0].reshape(-1)
    load_weights(network, Source("coco", arrays, None), class_names=COCO_2017)
    values = values_of(network)
    wanted = np.tile(np.float32(COCO_2017.category_ids) - 1, (9, 1))
    assert wanted[0, [0, 25, 79]].tolist() == [0, 27, 89]  # person, umbrella (28), toothbrush (90)
    np.testing.assert_array_equal(values["class_net/class-predict/bias"].reshape(9, 80), wanted)
    kernel = values["class_net/class-predict/pointwise_kernel"].reshape(24, 9, 80)
    np.testing.assert_array_equal(kernel, np.broadcast_to(wanted, (24, 9, 80)))
    np.testing.assert_array_equal(values["box_net/box-predict/bias"], arrays["box_net/box-predict/bias"])


def test_90_rows_are_not_cut_down_to_classes_that_are_not_cocos():
    network = miniature_detector(num_classes=80).network
    others = ClassNames(tuple(range(1, 81)), tuple(f"kind {i}" for i in range(80)))
    source = Source("coco", arrays_like(network, num_classes=90), None)
    with pytest.raises(InputError, match="coco: its classes differ from the requested ones"):
        load_weights(network, source, class_names=others)
    assert "starts from scratch" in load_matching_weights(network, source, class_names=others)[1]


def description_of(class_names):
    return Description(model_name="efficientdet-d0", hparams={}, categories=class_names.to_categories(), weights="raw")


@pytest.mark.parametrize("described", [True, False])
def test_a_head_of_other_classes_starts_anew_and_says_so(network, described):
    arrays = arrays_like(network, num_classes=5)
    others = ClassNames.numbered(["red", "green", "blue", "gray", "pink"])
    source = Source("some/ckpt", arrays, description_of(others) if described else None)
    before = values_of(network)
    with pytest.raises(InputError, match="its classes differ from the requested ones"):
        load_weights(network, source, class_names=THREE)
    lines = load_matching_weights(network, source, class_names=THREE)
    kept = {name for name in before if name.startswith("class_net/class-predict/")}
    assert_holds(network, {name: before[name] if name in kept else arrays[name] for name in before})
    assert lines[0] == f"{len(before) - 3} weights from some/ckpt"
    assert lines[1].startswith("class_net/class-predict starts from scratch: the checkpoint ")
    assert ("has 5 classes (red, green, blue, gray, pink), the data 3 (one, two, three)" in lines[1]) == described


@pytest.mark.parametrize(
    ("theirs", "aliases", "rows"),
    [
        (["four", " Two", "zero"], (), [None, 1, None]),
        (["four", "TWO", "one", "zero"], ["four:three"], [2, 1, 0]),
        (["a:b"], ["a:b:Three"], [None, None, 0]),
    ],
)
def test_rows_of_classes_with_the_same_name_are_kept(network, theirs, aliases, rows):
    """All anchors of a class are; the other classes have their initial values, all other weights the checkpoint's."""
    arrays, before = arrays_like(network, num_classes=len(theirs)), values_of(network)
    random = np.random.default_rng(1)
    arrays = {name: random.normal(size=array.shape).astype(np.float32) for name, array in arrays.items()}
    source = Source("some/ckpt", arrays, description_of(ClassNames.numbered(theirs)))
    lines = load_matching_weights(network, source, class_names=THREE, aliases=aliases)
    kept = [name for name, row in zip(THREE.names, rows, strict=True) if row is not None]
    assert lines[1].startswith(f"class predictor: kept {len(kept)} of 3 class rows ({', '.join(kept)})")
    after = values_of(network)
    for name, values in after.items():
        if name in ("class_net/class-predict/bias", "class_net/class-predict/pointwise_kernel"):
            for anchor, (place, row) in itertools.product(range(9), enumerate(rows)):
                source_of_row = before[name][..., 3 * anchor + place]
                if row is not None:
                    source_of_row = arrays[name][..., len(theirs) * anchor + row]
                np.testing.assert_array_equal(values[..., 3 * anchor + place], source_of_row)
        else:
            np.testing.assert_array_equal(values, arrays[name])


@pytest.mark.parametrize("alias", ["five:three", "four:five", "four", "four=three"])
def test_an_alias_of_no_class_is_an_error(network, alias):
    source = Source("some/ckpt", arrays_like(network, num_classes=4), description_of(FOUR))
    with pytest.raises(InputError, match=rf"--class_aliases={alias}: expected NAME:NAME, .* a class of some/ckpt"):
        load_matching_weights(network, source, class_names=THREE, aliases=[alias])


def test_the_backbone_alone(network):
    arrays, before = arrays_like(network, num_classes=50), values_of(network)
    lines = load_backbone(network, Source("some/ckpt", arrays, None))
    assert lines == ["20 backbone weights from some/ckpt"]
    assert_holds(
        network, {name: arrays[name] if name.startswith(MINIATURE_BACKBONE) else before[name] for name in before}
    )
    del arrays[f"{MINIATURE_BACKBONE}/blocks_0/conv2d/kernel"]
    with pytest.raises(InputError, match="blocks_0/conv2d/kernel is missing"):
        load_backbone(network, Source("some/ckpt", arrays, None))


@pytest.mark.parametrize("file", ["torch_zip.pth", "torch_pickles.pth", "torch_tar.pth", "torch.safetensors"])
def test_files_of_torch_are_sources(file):
    source = read_source(str(TESTDATA / file))
    assert (source.prefix, source.description, source.class_names) == (str(TESTDATA / file), None, None)
    assert source.arrays["conv1.weight"].shape == (4, 3, 3, 2)
    assert source.conventions(FAMILY) == {"conv_padding": "same", "batch_norm_epsilon": 1e-3}


def test_a_file_of_torch_with_nothing_of_this_network_is_told_in_one_line(network):
    source = read_source(str(TESTDATA / "torch_training.pth"))
    message = (
        r"torch_training.pth: has the arrays conv.weight, conv.bias, .*, none of which is a weight of this network of "
        r"the family efficientdet; expected .*"
    )
    for load in (
        partial(load_weights, class_names=THREE),
        partial(load_matching_weights, class_names=THREE),
        load_backbone,
    ):
        with pytest.raises(InputError, match=message) as caught:
            load(network, source)
        assert "\n" not in str(caught.value)


def test_a_file_of_torch_is_told_by_its_content(tmp_path):
    named_otherwise = tmp_path / "weights.bin"
    named_otherwise.write_bytes((TESTDATA / "torch_pickles.pth").read_bytes())
    assert "conv1.weight" in read_source(str(named_otherwise)).arrays
    for name, content in (("empty.pth", b""), ("a.pt", b"hello"), ("b.safetensors", b"hello, world")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: (begins with|is cut short|is truncated|has a header)"):
            read_source(str(tmp_path / name))
    (tmp_path / "other.bin").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"other.bin: is neither a checkpoint nor a file of weights of PyTorch"):
        read_source(str(tmp_path / "other.bin"))


def test_a_reader_of_an_installed_package(tmp_path, monkeypatch):
    install(tmp_path, "efficientdet.weight_readers", ["numpy = numpy_files"])
    (tmp_path / "numpy_files.py").write_text(
        "import numpy\n\nSUFFIXES = ('.npy',)\nrecognizes = lambda head: head.startswith(b'\\x93NUMPY')\n"
        "read = lambda path: {'kernel': numpy.load(path)}\n"
    )
    np.save(tmp_path / "drawn.npy", np.arange(3))
    with pytest.raises(InputError, match=r"drawn.npy: is neither a checkpoint nor a file of weights"):
        read_source(f"{tmp_path}/drawn.npy")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_source(f"{tmp_path}/drawn.npy").arrays["kernel"].tolist() == [0, 1, 2]


# The published networks


def restored(folder, **options):
    return restore_detector(
        ModelConfig(
            ckpt_path=str(folder),
            model_name="efficientdet-d0",
            model_name_given=True,
            overrides={"image_size": 256},
            class_names=SEVEN,
            **options,
        )
    )


@pytest.fixture(scope="module")
def automl(golden_folder):
    return restored(golden_folder / "efficientdet-d0-7cls")


@pytest.fixture(scope="module")
def nvidia(golden_folder):
    return restored(golden_folder / "nvidia-efficientdet-d0-7cls")


def assert_outputs(outputs, golden):
    np.testing.assert_allclose(outputs[0], golden["class_logits"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(outputs[1], golden["box_outputs"], atol=1e-4, rtol=0)


def test_automls_network(automl, golden_folder):
    golden = np.load(golden_folder / "forward_efficientdet-d0.npz")
    assert_outputs(automl.detector.network(golden["network_input"], training=False), golden)
    assert (automl.hparams.normalizations, automl.hparams.fusion_relu) == (1, True)
    assert not automl.hparams.half_pixel_upsampling
    assert automl.class_names == SEVEN
    assert automl.description.weights == "averaged"


def test_the_raw_values_of_that_checkpoint_are_another_network(automl, golden_folder):
    source = read_source(str(golden_folder / "efficientdet-d0-7cls"))
    averages = {name: to_numpy(variable.value) for name, variable in named_variables(automl.detector.network).items()}
    try:
        load_weights(automl.detector.network, source, class_names=SEVEN, averaged=False)
        for value in values_of(automl.detector.network).values():
            np.testing.assert_array_equal(value, np.full_like(value, 0.123))
    finally:
        for name, variable in named_variables(automl.detector.network).items():
            variable.assign(averages[name])


def test_nvidias_network_from_pixels_normalized_twice(nvidia, golden_folder):
    golden = np.load(golden_folder / "nvidia_forward_efficientdet-d0.npz")
    once_more = (golden["network_input"] - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STDDEV)
    assert_outputs(nvidia.detector.network(once_more, training=False), golden)


def test_nvidias_conventions_come_with_its_checkpoint(nvidia):
    assert (nvidia.hparams.normalizations, nvidia.hparams.fusion_relu) == (2, False)
    assert nvidia.hparams.half_pixel_upsampling
    assert nvidia.hparams.aspect_ratios == ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))
    assert nvidia.detector.config.normalizations == 2
    np.testing.assert_allclose(nvidia.detector.anchors[1], (-7.2, -18.4, 15.2, 26.4), rtol=1e-6)
    fusion = [layer for layer in nvidia.detector.network.layers if hasattr(layer, "fusion_relu")]
    assert len(fusion) == 24
    assert not any(layer.fusion_relu for layer in fusion)


@pytest.mark.parametrize(
    ("folder", "tensorflows"),
    [
        ("nvidia-efficientdet-d0-7cls", lambda features, size: tf.image.resize(features, size, method="nearest")),
        ("efficientdet-d0-7cls", lambda features, size: tf.raw_ops.ResizeNearestNeighbor(images=features, size=size)),
    ],
)
def test_at_a_size_with_odd_levels_each_upsamples_as_its_origin_does(golden_folder, monkeypatch, folder, tensorflows):
    """320 pixels: 40, 20, 10, 5 and 3 cells. TensorFlow's functions in place of our layer, with the same weights."""
    found = restore_detector(
        ModelConfig(
            ckpt_path=str(golden_folder / folder),
            model_name="efficientdet-d0",
            model_name_given=True,
            overrides={"image_size": 320},
            class_names=SEVEN,
        )
    )
    network = found.detector.network
    pixels = np.random.default_rng(0).normal(size=(1, 320, 320, 3)).astype(np.float32)
    ours = network(pixels, training=False)
    monkeypatch.setattr(NearestResize, "call", lambda layer, features: tensorflows(features, layer.size))
    for output, wanted in zip(ours, network(pixels, training=False), strict=True):
        np.testing.assert_allclose(output, wanted, atol=1e-5, rtol=0)
        assert np.abs(wanted).max() > 0.5
