"""L2 regularization of a network's weights."""

import keras
from keras import ops

from model.detection_model import named_variables
from object_detection.structures import Tensor

DECAYED_WEIGHTS = ("kernels", "all")


def decaying_weights(network: keras.Model, decays: str) -> list[bool]:
    """Return whether weight decay applies to each trainable weight of a network; see `WeightDecay`."""
    names = {id(variable): name for name, variable in named_variables(network).items()}
    return [_decays(names[id(variable)], decays) for variable in network.trainable_variables]


def _decays(name: str, decays: str) -> bool:
    return decays == "all" or name.endswith("kernel")


class WeightDecay:
    """Weight decay: `coefficient` times half the squared norm of a network's kernels, or of all weights (`decays`)."""

    def __init__(self, network: keras.Model, *, coefficient: float, decays: str):
        self._coefficient = coefficient
        self._weights = [variable for name, variable in named_variables(network).items() if _decays(name, decays)]

    def losses(self) -> dict[str, Tensor]:
        """Return `reg_l2_loss` of the weights that are trainable at this moment."""
        squares = [ops.sum(ops.square(ops.cast(weight, "float32"))) for weight in self._weights if weight.trainable]
        return {"reg_l2_loss": 0.5 * self._coefficient * sum(squares, ops.convert_to_tensor(0.0))}
