"""Weights of timm, torchvision, effdet and EfficientNet-Lite-PyTorch give the outputs that these programs compute."""

import json
from functools import cache

import keras
import numpy as np
import pytest
from oracles import TESTDATA, to_numpy
from pytorch_efficientnets import INPUT, drawn, lite_images, some_values
from safetensors.numpy import save_file
from torch_bytes import dictionary, integer, tensor, text, zipped

from dataset.class_names import COCO_2017
from efficientdet.checkpoints.restore import load_backbone, load_weights, read_source
from efficientdet.families.efficientdet.build import network_config
from efficientdet.families.efficientdet.family import FAMILY
from efficientdet.families.registry import hyperparameters_of
from efficientdet.plugins.torch_weights.efficientnets import hyperparameters_of_torch, scheme_of
from model.detection_model import named_variables, set_value
from model.efficientdet import build_backbone, build_efficientdet
from program_support.errors import InputError

PYTORCH = {"padding": "symmetric", "epsilon": 1e-5}


@cache
def stored():
    with np.load(TESTDATA / "pytorch_efficientnets.npz") as file:
        outputs = dict(file)
    return json.loads(outputs.pop("names").tobytes()), outputs


def load(network, shapes):
    arrays = {name: drawn(name, tuple(shape)) for name, shape in shapes.items()}
    variables = named_variables(network)
    named = FAMILY.named_arrays(arrays, variables, averaged=True)
    for name, variable in variables.items():
        set_value(variable, named[name])
    return [name for name in named if name not in variables]


def assert_near(actual, expected):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-4 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(
    ("model", "backbone", "options"),
    [
        ("tf_efficientnet_b0", "efficientnet-b0", {}),
        ("efficientnet_b0", "efficientnet-b0", PYTORCH),
        ("tf_efficientnet_lite0", "efficientnet-lite0", {}),
        ("efficientnet_lite0", "efficientnet-lite0", PYTORCH),
        ("torchvision_b0", "efficientnet-b0", PYTORCH),
    ],
)
def test_features_equal_pytorch(model, backbone, options):
    names, outputs = stored()
    with keras.StatelessScope():  # draws no values that `set_value` replaces, which takes half of the time
        network = build_backbone(backbone, (64, 64), **options)
        unused = load(network, names[model])
    assert unused
    assert all(name.startswith(("conv_head", "bn2", "classifier", "features.8")) for name in unused)
    for number, features in enumerate(network(INPUT)[2:]):
        assert_near(to_numpy(features), outputs[f"{model}/{number}"])


@pytest.mark.parametrize(
    ("model", "preset", "hparams"),
    [
        ("tf_efficientdet_d0", "efficientdet-d0", {}),
        ("efficientdet_d0", "efficientdet-d0", {"conv_padding": "symmetric", "batch_norm_epsilon": 1e-5}),
        (
            "efficientdet_q0",
            "efficientdet-d0",
            {"conv_padding": "symmetric", "batch_norm_epsilon": 1e-5, "fpn_name": "qufpn"},
        ),
        ("tf_efficientdet_lite0", "efficientdet-lite0", {}),
    ],
)
def test_detectors_equal_effdet(model, preset, hparams):
    names, outputs = stored()
    config = network_config(hyperparameters_of(preset, {"image_size": 64, **hparams}), num_classes=90)
    with keras.StatelessScope():
        network = build_efficientdet(config)
        assert not load(network, names[model])
    for role, rows in zip(("class", "box"), network(INPUT), strict=True):
        assert_near(to_numpy(rows)[0, ::7], outputs[f"{model}/{role}"])


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("tf_efficientnet_b0", "blocks.6.0.conv.weight"),
        ("tf_efficientnet_b0", "blocks.2.0.conv_dw.1.weight"),
        ("tf_efficientdet_d0", "backbone.blocks.0.0.conv_exp.weight"),
    ],
)
def test_refuses_layers_of_other_networks(model, layer):
    """Of MobileNet-v3, MixNet and EfficientNet-EdgeTPU, whose other layers have the names of EfficientNet's."""
    names, _ = stored()
    with pytest.raises(InputError, match=rf"^has {layer}, a layer of another network than EfficientNet"):
        hyperparameters_of_torch([*names[model], layer], scheme=scheme_of(names[model]), stated="mine.pth")


def test_refuses_another_size_of_the_backbone():
    names, _ = stored()
    arrays = {name: drawn(name, (1,)) for name in names["tf_efficientnet_b0"]}
    with pytest.raises(InputError, match=r"^has an EfficientNet of 16 blocks; expected 23$"):
        FAMILY.named_arrays(arrays, ["efficientnet-b1/blocks_22/conv2d/kernel"], averaged=True)


def test_refuses_a_backbone_in_place_of_a_detector(tmp_path):
    layers = [keras.layers.Conv2D(2, 1, name=name) for name in ("efficientnet-b0.stem.conv2d", "box_net.box-0")]
    network = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    save_file({"efficientnet-b0/stem/conv2d/kernel": np.zeros((1, 1, 3, 2), np.float32)}, tmp_path / "b0.safetensors")
    source = read_source(str(tmp_path / "b0.safetensors"))
    with pytest.raises(InputError, match=r"b0.safetensors: has a backbone without a detector; expected .*--backbone_"):
        load_weights(network, source, family=FAMILY, class_names=COCO_2017)


def test_refuses_the_pyramid_that_resamples_bilinearly():
    names = ("backbone.blocks.0.0.conv_dw.weight", "fpn.cell.0.fnode.20.after_combine.conv.conv_pw.weight")
    arrays = {name: np.zeros((88, 88, 1, 1), np.float32) for name in names}
    with pytest.raises(
        InputError, match=r"efficientdet_q1, whose pyramid resamples bilinearly: this is not supported$"
    ):
        FAMILY.named_arrays(arrays, ["fpn_cells/cell_0/fnode0/WSM"], averaged=True)
    FAMILY.named_arrays(arrays, ["efficientnet-b1/stem/conv2d/kernel"], averaged=True)


@pytest.mark.parametrize(
    ("model", "stated", "padding", "epsilon", "mean"),
    [
        ("tf_efficientnet_b0", "tf_efficientnet_b0_ns-c0e6a31c.pth", "same", 1e-3, 123.675),
        ("tf_efficientnet_b0", "hub/models--timm--tf_efficientnet_b0.ap_in1k/model.safetensors", "same", 1e-3, 127.5),
        ("tf_efficientnet_b0", "efficientnet_b0_new/tf_efficientnet_b0_best_ap.pth", "same", 1e-3, 123.675),
        ("tf_efficientnet_b0", "tf_efficientnet_b0.ap_in1k/efficientnet_b0.pth", "symmetric", 1e-5, 123.675),
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0", "same", 1e-3, 127.5),
        ("efficientnet_b0", "efficientnet_b0_ra-3dd342df.pth", "symmetric", 1e-5, 123.675),
        ("efficientnet_b0", "efficientnet_b0.ra4_e3600_r224_in1k", "symmetric", 1e-5, 127.5),
        ("efficientnet_lite0", "efficientnet_lite0_ra-37913777.pth", "symmetric", 1e-5, 123.675),
        ("torchvision_b0", "mine.pth", "symmetric", 1e-5, 123.675),
        ("tf_efficientdet_d0", "mine.pth", "same", 1e-3, 123.675),
        ("tf_efficientdet_d0", "tf_efficientdet_d0_ap-d0cdbd0a.pth", "same", 1e-3, 127.5),
        ("tf_efficientdet_d0", "best_ap.pth", "same", 1e-3, 123.675),
        ("tf_efficientdet_d0", "runs/tf_efficientdet_d5/fold0.pth", "same", 1e-3, 123.675),
        ("efficientdet_d0", "mine.pth", "symmetric", 1e-5, 123.675),
        ("efficientdet_q0", "mine.pth", "symmetric", 1e-5, 123.675),
        ("tf_efficientdet_lite0", "mine.pth", "same", 1e-3, 127.5),
    ],
)
def test_hyperparameters_of_each_program(model, stated, padding, epsilon, mean):
    """Defaults of timm 1.0.31 (`pretrained_cfg`), effdet 0.4.1 (`model_config.py`) and torchvision 0.29."""
    names, _ = stored()
    values = hyperparameters_of_torch(names[model], scheme=scheme_of(names[model]), stated=stated)
    assert (values["conv_padding"], values["batch_norm_epsilon"]) == (padding, epsilon)
    assert values["mean_rgb"][0] == pytest.approx(mean)
    assert values.get("fpn_name", "bifpn") == ("qufpn" if model == "efficientdet_q0" else "bifpn")


def test_refuses_another_padding_than_that_of_the_name():
    names = stored()[0]["efficientnet_lite0"]
    for name, own, other in (("tf_efficientnet_lite0", "same", "symmetric"), ("efficientnet_b0", "symmetric", "same")):
        values = hyperparameters_of_torch(names, scheme=scheme_of(names), stated=f"{name}.pth", padding=own)
        assert values["conv_padding"] == own
        with pytest.raises(InputError, match=rf"^is timm's {name}, with conv_padding={own}; .*conv_padding={other}: "):
            hyperparameters_of_torch(names, scheme=scheme_of(names), stated=f"{name}.pth", padding=other)
        values = hyperparameters_of_torch(names, scheme=scheme_of(names), stated=f"{name}/best.pth", padding=other)
        assert values["conv_padding"] == other


@pytest.mark.parametrize("model", ["tf_efficientnet_lite0", "efficientnet_lite0"])
def test_refuses_timms_names_without_the_architecture(model):
    names, _ = stored()
    with pytest.raises(InputError, match=r"^has the names of timm.*--hparams=conv_padding=same"):
        hyperparameters_of_torch(names[model], scheme=scheme_of(names[model]), stated="runs/best.pth")


def test_refuses_detectors_that_mix_the_paddings():
    """effdet 0.4.1, `model_config.py`: `efficientdet_d4`, `d5` and `lite0` leave the pyramid's `pad_type` at `same`."""
    names = stored()[0]["tf_efficientdet_d0"]
    scheme = scheme_of(names)
    with pytest.raises(InputError, match=r"^may be effdet's efficientdet_d5.*conv_padding=same$"):
        hyperparameters_of_torch(names, scheme=scheme, stated="efficientdet_d5.pth")
    values = hyperparameters_of_torch(names, scheme=scheme, stated="efficientdet_d5.pth", padding="same")
    assert values["conv_padding"] == "same"
    lite = {name for name in stored()[0]["efficientdet_d0"] if ".se." not in name}
    with pytest.raises(InputError, match=r"^is effdet's efficientdet_lite0: its backbone pads as PyTorch"):
        hyperparameters_of_torch(lite, scheme=scheme, stated="mine.pth")


@pytest.mark.parametrize(("number", "side"), [(0, 224), (1, 240), (2, 260)])
def test_packaged_imagenet_weights_equal_pytorch(number, side, monkeypatch, tmp_path):
    """The real weights, found in the installed package: no cache, no server."""
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS_URL", "http://127.0.0.1:9")
    source = read_source(f"efficientnet-lite{number}")
    with keras.StatelessScope():
        backbone = build_backbone(f"efficientnet-lite{number}", (side, side))
        [line] = load_backbone(backbone, source, family=FAMILY)
    assert line.endswith(f"backbone weights from {source.prefix}")
    for level, features in enumerate(backbone(lite_images(number, side))):
        assert_near(some_values(to_numpy(features), level), stored()[1][f"lite{number}/{level}"])
    assert source.conventions(FAMILY)["mean_rgb"] == (127.0,) * 3


def test_the_architecture_is_in_a_checkpoint_of_timms_training(tmp_path):
    """timm 1.0.31, `CheckpointSaver`: `arch` beside `state_dict`. It precedes the folder's name."""
    names, _ = stored()
    weights = dictionary(**dict.fromkeys(names["efficientnet_lite0"], tensor()))
    file = tmp_path / "tf_efficientnet_lite0" / "model_best.pth.tar"
    file.parent.mkdir()
    for arch, padding in ((text("efficientnet_lite0"), "symmetric"), (text(""), "same"), (integer(7), "same")):
        file.write_bytes(zipped(dictionary(epoch=integer(3), arch=arch, state_dict=weights)))
        assert read_source(str(file)).conventions(FAMILY)["conv_padding"] == padding


def test_the_architecture_is_in_the_files_name_or_beside_it_or_stated(tmp_path):
    names, _ = stored()
    arrays = {name: drawn(name, tuple(shape)) for name, shape in names["efficientnet_lite0"].items()}
    for folder, file in (("a", "efficientnet_lite0_ra-37913777"), ("b", "model"), ("c", "best"), ("d", "best")):
        (tmp_path / folder).mkdir()
        save_file(arrays, tmp_path / folder / f"{file}.safetensors")
    config = {"architecture": "efficientnet_lite0", "pretrained_cfg": {"tag": "ap_in1k"}}
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    assert read_source(str(tmp_path / "b" / "model.safetensors")).conventions(FAMILY)["mean_rgb"] == (127.5,) * 3
    (tmp_path / "b" / "config.json").write_text('{"architecture": "efficientnet_lite0", "pretrained_cfg": 1}')
    given = {"c": {"conv_padding": "symmetric"}, "d": {"conv_padding": "same"}}
    paddings = {
        file.parent.name: read_source(str(file)).conventions(FAMILY, given.get(file.parent.name, {}))["conv_padding"]
        for file in tmp_path.rglob("*.safetensors")
    }
    assert paddings == {"a": "symmetric", "b": "symmetric", "c": "symmetric", "d": "same"}
    with pytest.raises(InputError, match=rf"^{tmp_path}/c/best.safetensors: has the names of timm"):
        read_source(str(tmp_path / "c" / "best.safetensors")).conventions(FAMILY)
