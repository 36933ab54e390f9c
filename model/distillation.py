"""Training of a one-stage detector whose pyramid also imitates the pyramid of a larger, frozen detector."""

from functools import partial, reduce
from operator import add
from typing import Any

import keras
from keras import ops

from model.detection_model import DetectionModel
from model.folding import folded, has_frozen_norms
from object_detection.feature_distillation import feature_loss
from object_detection.structures import Objects, ScoredTargets, Targets, Tensor
from program_support.errors import InputError


class DistilledDetector(DetectionModel[tuple[Tensor, Tensor, Tensor], Targets | ScoredTargets]):
    """The student as a training step sees it: its outputs, losses and weights, and the loss of its features.

    The student's network is unchanged. No weight is added, so checkpoints and exports are those of the student alone.
    """

    def __init__(self, student: DetectionModel[Any, Any], teacher: DetectionModel[Any, Any], *, weight: float):
        """Connect the detectors, which take the same images; freeze the teacher.

        Args:
            student: the detector to train.
            teacher: the detector to imitate; its heads are not used.
            weight: weight of the sum over the levels of `feature_loss`.

        Raises:
            InputError: a detector without pyramid, or pyramids with other levels.
        """
        ours, teacher_layers = pyramid(student, role="student"), pyramid(teacher, role="teacher")
        if (levels := _cells(ours)) != (others := _cells(teacher_layers)):
            raise InputError(f"the teacher's pyramid has {others} cells; expected the student's, {levels}")
        self.network, self.image_size = student.network, student.image_size
        self.learns_from_outputs, self.matches_on_host = student.learns_from_outputs, student.matches_on_host
        self._student, self._teacher, self._weight = student, teacher, weight
        self._network = keras.Model(student.network.inputs, [*student.network.outputs, *ours])
        teacher.network.trainable = False
        features = keras.Model(teacher.network.inputs, teacher_layers)
        self.constant_networks = (features,)
        self._features = folded(features)

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return the student's outputs, and the loss of its features: the mean over the images, summed over levels."""
        frozen = has_frozen_norms(self.network)
        run = folded(self._network, training=True) if frozen and training else partial(self._network, training=training)
        logits, deltas, *ours = run(self._student.normalize(images, sizes))
        teacher_features = self._features(self._teacher.normalize(images, sizes))
        loss = reduce(add, map(feature_loss, ours, teacher_features))
        return ops.cast(logits, "float32"), ops.cast(deltas, "float32"), loss

    def targets(
        self,
        objects: Objects[Tensor],
        outputs: tuple[Tensor, Tensor, Tensor] | None = None,
        seeds: Tensor | None = None,
    ) -> Targets | ScoredTargets:
        """Return the student's targets."""
        return self._student.targets(objects, outputs and outputs[:2], seeds)

    def counts(self, targets: Targets | ScoredTargets) -> dict[str, Tensor]:
        """Return the student's counts and the number of images."""
        return {**self._student.counts(targets), "images": _images_of(targets)}

    def loss_sums(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Targets | ScoredTargets) -> dict[str, Tensor]:
        """Return the student's sums and `distillation_loss`."""
        sums = self._student.loss_sums(outputs[:2], targets)
        return {**sums, "distillation_loss": self._weight * outputs[2] * _images_of(targets)}

    def normalizers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the student's divisors and the number of images."""
        return {**self._student.normalizers(counts), "distillation_loss": counts["images"]}

    def regularization(self) -> dict[str, Tensor]:
        """Return the student's regularization."""
        return self._student.regularization()


def pyramid(detector: DetectionModel[Any, Any], *, role: str) -> list[Tensor]:
    """Return the features that enter the heads, symbolic tensors [B, h, w, C] from the finest level on.

    Raises:
        InputError: the detector has no head that all levels share.
    """
    if detector.first_head_layer is None:
        raise InputError(
            f"the {role} ({detector.network.name}) has no pyramid with shared heads; expected EfficientDet or RetinaNet"
        )
    # Keras has no public way to list the inputs of a layer that is called several times.
    layer = detector.network.get_layer(detector.first_head_layer)
    return [node.input_tensors[0] for node in layer._inbound_nodes]


def _cells(levels: list[Tensor]) -> str:
    return ", ".join(f"{level.shape[1]} x {level.shape[2]}" for level in levels)


def _images_of(targets: Targets | ScoredTargets) -> Tensor:
    return ops.cast(ops.shape(targets.positive)[0], "float32")
