"""The seam between a detector family and the program that trains, evaluates and exports it."""

from typing import Any, Protocol

import keras
from keras import ops

from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import Batch, Detections, Objects, Tensor

Outputs = Any  # tensors, or any nest of them, whose first axis is the image; float32
Targets = Any  # as well


class Detector(Protocol):
    """What every family offers. Implementations are traceable: no Python branch on values.

    A loss is a sum over the images of a batch, divided by a normaliser that is made of counts. Sums and counts are of the
    batch at hand; whoever trains adds counts up over ranks and parts before they become normalisers, so that several
    processes divide by the same numbers as one with all images.
    """

    network: keras.Model
    image_size: tuple[int, int]  # H, W of the network input
    learns_from_outputs: bool  # whether targets depend on outputs: if not, counts are known before the forward pass

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> Outputs:
        """Of images [B, H, W, 3] uint8, of which `sizes` [B, 2] int32 (height, width) are image and the rest is padding."""

    def targets(self, objects: Objects, outputs: Outputs | None = None, seeds: Tensor | None = None) -> Targets:
        """What is to be learnt, without gradient. Outputs where the family learns from them; seeds [B, 2] int32 for what is
        drawn at random, (seed of the training, position of the image in it)."""

    def counts(self, targets: Targets) -> dict[str, Tensor]:
        """Scalars, float32, by name; `positives` is what the guards and the log look at."""

    def loss_sums(self, outputs: Outputs, targets: Targets) -> dict[str, Tensor]:
        """Weighted losses by name, scalars float32, not divided by their normalisers. What an image is divided by on its own,
        such as its positives, no other rank has part in: that is done here, and the images are what is counted."""

    def normalisers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """What each of the sums is divided by."""

    def regularisation(self) -> dict[str, Tensor]:
        """Losses of the weights by name, independent of the batch."""

    def detections(self, outputs: Outputs, sizes: Tensor) -> Detections:
        """In pixels of the network input, not clipped."""


def outputs_to_learn_from(detector: Detector, images: Tensor, sizes: Tensor, *, training: bool) -> Outputs:
    """What `targets` and `loss_sums` read: `outputs`, unless a detector finds objects in another way than it learns and has a
    method of this name."""
    return getattr(detector, "outputs_to_learn_from", detector.outputs)(images, sizes, training=training)


def trained_network(detector: Detector) -> keras.Model:
    """What a training step runs an image through: `network`, unless a detector has a method of this name that makes another."""
    make = getattr(detector, "trained_network", None)
    return make() if make else detector.network


def losses(detector: Detector, outputs: Outputs, targets: Targets, counts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The detection losses by name, each divided by its normaliser; their sum, with the regularisation, is minimised."""
    sums, normalisers = detector.loss_sums(outputs, targets), detector.normalisers(counts)
    return {name: value / normalisers[name] for name, value in sums.items()}


def losses_of_batch(detector: Detector, batch: Batch, *, training: bool = True) -> dict[str, Tensor]:
    """All losses of one batch by name, as one process takes them."""
    outputs = outputs_to_learn_from(detector, batch.images, batch.sizes, training=training)
    targets = detector.targets(batch.objects, outputs if detector.learns_from_outputs else None)
    return {**losses(detector, outputs, targets, detector.counts(targets)), **detector.regularisation()}


def detections_in_original(detector: Detector, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
    """In pixels of the original images, clipped to them. images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as of a
    `Batch`."""
    found = detector.detections(detector.outputs(images, sizes), sizes)
    boxes = clip_boxes(found.boxes, sizes)
    return found._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])


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
