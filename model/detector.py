"""The seam between a detector family and the program that trains, evaluates and exports it."""

from typing import Protocol

import keras

from object_detection.structures import Batch, Detections, Objects, Tensor


class Detector(Protocol):
    """What every family offers. Implementations are traceable: no Python branch on values."""

    network: keras.Model

    def assign(self, objects: Objects):
        """Whatever `loss_terms` is to learn from, for a batch of ground truth; no gradient, no network."""

    def count_positives(self, targets) -> Tensor:
        """What the losses are divided by, scalar float32: known before the forward pass, so that ranks can sum it."""

    def loss_terms(self, batch: Batch, targets, normalizer: Tensor, *, training: bool = True) -> dict[str, Tensor]:
        """Weighted scalar losses; their sum is minimised."""

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """Detections in pixels of the network input; images [B, H, W, 3] uint8, sizes [B, 2]."""


SEED_STATE = "seed_generator_state"  # Keras's name; its type differs from backend to backend


def named_variables(network: keras.Model) -> dict[str, keras.Variable]:
    """Every weight of the network under the name it has in checkpoints, such as `class_net/class-0/pointwise_kernel`.

    The names are those of the published TensorFlow checkpoints; layers carry them with dots for slashes.
    """
    named = {}
    for layer in network.layers:
        for variable in layer.variables:
            if variable.name == SEED_STATE:
                continue  # the seed of a dropout layer is state of a run, not of a model
            role = variable.name
            if isinstance(layer, keras.layers.DepthwiseConv2D):
                role = {"kernel": "depthwise_kernel"}.get(role, role)
            named[f"{layer.name.replace('.', '/')}/{role}"] = variable
    return named
