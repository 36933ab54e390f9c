"""The family of docs/tutorials/new_family.md: a transformer with nested layers and a matching on the host."""

import sys

import keras
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from standins import page_families

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.optimization.build_step import build_train_step
from efficientdet.optimization.optimizer import build_optimizer
from model.detection_model import named_variables
from object_detection.structures import Batch, Objects
from program_support.errors import InputError


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    _, code = page_families()
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "set_matching_family.py").write_text(code)
    sys.path.insert(0, str(folder))
    import set_matching_family

    return set_matching_family


def batch_of(number, *, size=4):
    random = np.random.default_rng(number)
    corners = random.uniform(0, 30, (size, 5, 2)).astype(np.float32)
    return Batch(
        images=random.integers(0, 256, (size, 64, 64, 3), dtype=np.uint8),
        sizes=np.full((size, 2), 64, np.int32),
        objects=Objects.of_boxes(
            boxes=np.concatenate([corners, corners + random.uniform(8, 34, (size, 5, 2))], axis=-1).astype(np.float32),
            classes=random.integers(0, 3, (size, 5)).astype(np.int32),
            valid=np.arange(5) < np.arange(size)[:, None] + 1,
            crowd=np.zeros((size, 5), bool),
        ),
        image_ids=np.arange(size),
        positions=np.arange(size),
        scales=np.ones((size, 2), np.float32),
    )


def trained(family, *, compiled, parts, steps=3):
    keras.utils.set_random_seed(0)
    hparams = Hyperparameters(model_name="set-matching", **family.FAMILY.presets["set-matching"])
    detector = family.FAMILY.build(hparams, num_classes=3)
    optimizer = build_optimizer(hparams, precision="float32")
    step = build_train_step(detector, optimizer, None, compiled=compiled, accumulate_steps=parts)
    losses = [float(step(batch_of(number), 0.001)["loss"]) for number in range(steps)]
    return losses, {
        name: np.asarray(variable.value).copy() for name, variable in named_variables(detector.network).items()
    }


def test_a_host_matching_trains_compiled_and_in_parts_as_it_does_plainly(family):
    losses, weights = trained(family, compiled=False, parts=1)
    assert losses[0] > 0
    others, changed = trained(family, compiled=True, parts=2)
    np.testing.assert_allclose(others, losses, rtol=1e-4)
    for name, value in weights.items():
        np.testing.assert_allclose(changed[name], value, atol=1e-4, err_msg=name)


def test_each_object_gets_the_query_of_the_cheapest_matching(family):
    costs = np.random.default_rng(0).normal(size=(2, 16, 3)).astype(np.float32)
    queries = family.match(costs, np.array([[True, True, True], [True, False, True]]))
    assert queries[0].tolist() == linear_sum_assignment(costs[0].T)[1].tolist()
    assert queries[1, 1] == -1
    assert queries[1, [0, 2]].tolist() == linear_sum_assignment(costs[1][:, [0, 2]].T)[1].tolist()


def test_weights_below_a_layer_have_names_of_their_own(family):
    _, weights = trained(family, compiled=False, parts=1, steps=0)
    attention = {name for name in weights if name.startswith("attention/")}
    assert attention == {
        f"attention/{role}/{kind}"
        for role in ("query", "key", "value", "attention_output")
        for kind in ("kernel", "bias")
    }
    boxes = {name for name in weights if name.startswith("head/boxes/")}
    assert boxes == {f"head/boxes/{layer}/{kind}" for layer in ("hidden", "predict") for kind in ("kernel", "bias")}
    assert len(weights) == 8 + 4 + 8 + 2 + 2 + 4


def test_two_weights_of_one_name_are_refused():
    image = keras.Input((4,))
    layers = [keras.layers.Dense(2, name=name)(image) for name in ("a.b", "other")]
    network = keras.Model(image, layers)
    network.layers[2].name = "a/b"
    with pytest.raises(InputError, match="two weights of the name a/b/kernel"):
        named_variables(network)
