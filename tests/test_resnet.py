"""ResNets against torchvision's, with weights by recipe."""

import keras
import numpy as np
import pytest
from torch_recipe import named_shapes, recipe_weights

from efficientdet.families.torch_family import from_torch, is_torch
from model.detection_model import named_variables, set_value
from model.resnet import RESNETS, build_resnet, is_in_first_stages


@pytest.mark.parametrize("name", RESNETS)
def test_stages_are_those_of_torchvision(name, golden_folder):
    golden = np.load(golden_folder / "families" / f"backbone_{name}.npz")
    theirs = recipe_weights(named_shapes(golden_folder, f"torchvision_{name}"), int(golden["seed"]))
    with keras.StatelessScope():  # draws no values that `set_value` replaces
        images = keras.Input((128, 160, 3))
        network = keras.Model(images, build_resnet(images, name))
        variables = named_variables(network)
        ours = from_torch(theirs, variables)
        for name_of, variable in variables.items():
            set_value(variable, ours[name_of])
    assert set(ours) - set(variables) == {"fc.weight", "fc.bias"}, "all but the classifier is asked for"
    c2, *deeper = (np.asarray(stage).transpose(0, 3, 1, 2) for stage in network(golden["input"].transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(c2.mean(axis=(2, 3)), golden["c2_mean"], atol=2e-4)
    np.testing.assert_allclose(c2.std(axis=(2, 3)), golden["c2_std"], atol=2e-4)
    for stage, wanted in zip(deeper, ("c3", "c4", "c5"), strict=True):
        np.testing.assert_allclose(stage, golden[wanted], atol=2e-4)


def test_recipe_gives_the_published_checksums(golden_folder):
    weights = recipe_weights(named_shapes(golden_folder, "torchvision_resnet50"), 103)
    np.testing.assert_allclose(
        weights["layer2.0.conv2.weight"].flat[:4], [-0.03963204, 0.00752521, -0.02863158, -0.0409696], rtol=1e-5
    )
    weights = recipe_weights(named_shapes(golden_folder, "mlcommons_ssd300_resnet34"), 120)
    np.testing.assert_allclose(
        weights["conf.0.weight"].flat[:4], [0.02306123, 0.01002837, 0.04525405, -0.00774771], rtol=1e-5
    )


def test_first_stages_by_name():
    images = keras.Input((64, 64, 3))
    network = keras.Model(images, build_resnet(images, "resnet18", prefix="body."))
    found = {
        stages: {
            layer.name.split(".")[1]
            for layer in network.layers
            if layer.weights and is_in_first_stages(layer, stages, prefix="body.")
        }
        for stages in (0, 1, 2, 3)
    }
    assert found == {
        0: set(),
        1: {"conv1", "bn1"},
        2: {"conv1", "bn1", "layer1"},
        3: {"conv1", "bn1", "layer1", "layer2"},
    }


def test_names_of_torch():
    names = ["a/b/kernel", "n/gamma", "n/moving_variance", "linear/kernel"]
    theirs = {
        "body.a.b.weight": np.arange(24.0).reshape(4, 3, 2, 1),
        "body.n.weight": np.ones(4),
        "body.n.running_var": np.ones(4),
        "body.n.num_batches_tracked": np.array(3),
        "other.weight": np.ones(2),
        "body.linear.weight": np.ones((2, 5)),
    }
    ours = from_torch(theirs, names, module=lambda name: name.removeprefix("body."))
    assert list(ours) == [*names, "other.weight"]
    assert ours["a/b/kernel"].shape == (2, 1, 3, 4)
    assert ours["a/b/kernel"][1, 0, 2, 3] == theirs["body.a.b.weight"][3, 2, 1, 0]
    assert ours["linear/kernel"].shape == (5, 2)
    assert is_torch(theirs)
    assert not is_torch(names)
