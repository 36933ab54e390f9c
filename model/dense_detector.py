"""One-stage detectors: a network with outputs at every anchor, its losses and its reading."""

from dataclasses import dataclass, field

import keras
import numpy as np
from keras import ops

from model import tensorflow_cpu
from model.detector import named_variables
from model.efficientnet import IMAGENET_MEAN, IMAGENET_STDDEV
from model.folding import folded
from object_detection.anchor_grid import AnchorConfig, anchor_grid
from object_detection.assignment import assign_anchors
from object_detection.box_coding import decode_boxes
from object_detection.box_geometry import IOU_KINDS, generalised_iou
from object_detection.errors import InputError
from object_detection.losses import focal_loss, huber_loss
from object_detection.structures import Detections, Objects, Targets, Tensor
from object_detection.suppression import SuppressionConfig, detections_from_outputs


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights and shapes of the losses (Tan et al. 2020, section 5.1)."""

    alpha: float = 0.25
    gamma: float = 1.5
    label_smoothing: float = 0.0
    delta: float = 0.1
    box_loss_weight: float = 50.0
    iou_loss_type: str | None = None
    iou_loss_weight: float = 1.0
    weight_decay: float = 4e-5

    def __post_init__(self):
        if self.iou_loss_type is not None and self.iou_loss_type not in IOU_KINDS:
            raise InputError(f"iou_loss_type {self.iou_loss_type!r}; wanted one of {', '.join(IOU_KINDS)}")


@dataclass(frozen=True, kw_only=True)
class DenseDetectorConfig:
    """How a network's outputs are trained and read.

    normalisations: how often the ImageNet mean and deviation are applied; 2 for NVIDIA's checkpoints, 1 for all others.
    """

    image_size: tuple[int, int]
    anchors: AnchorConfig
    losses: LossConfig = field(default_factory=LossConfig)
    suppression: SuppressionConfig = field(default_factory=SuppressionConfig)
    normalisations: int = 1


class DenseDetector:
    """A `Detector` made of a network with outputs [B, A, K] and [B, A, 4] and the anchors they stand at."""

    learns_from_outputs = False

    def __init__(self, network: keras.Model, config: DenseDetectorConfig):
        """Raises ValueError where network and anchors disagree in number."""
        self.network = network
        self.config = config
        self.image_size = config.image_size
        self._grid = anchor_grid(config.anchors, config.image_size)
        self.anchors = self._grid.boxes
        if network.output_shape[1][1] != len(self.anchors):
            raise ValueError(f"the network has outputs for {network.output_shape[1][1]} anchors, the grid has "
                             f"{len(self.anchors)}")
        self._inference = folded(network)
        self._loss_sums, self._normalise = self._sums_of_losses, self.normalise
        if tensorflow_cpu.applies():
            self._loss_sums = tensorflow_cpu.in_one_pass(self._sums_of_losses)
            self._normalise = tensorflow_cpu.in_one_pass(self.normalise)
        self._decayed = [variable for name, variable in named_variables(network).items() if name.endswith("kernel")]

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Class logits [B, A, K] and box deltas [B, A, 4], float32 whatever the precision."""
        if training:
            class_logits, box_deltas = self.network(self.normalise(images, sizes), training=True)
        else:
            normalise = self.normalise if None in images.shape else self._normalise  # XLA wants to know B
            class_logits, box_deltas = self._inference(normalise(images, sizes))
        return ops.cast(class_logits, "float32"), ops.cast(box_deltas, "float32")

    def normalise(self, images: Tensor, sizes: Tensor) -> Tensor:
        """uint8 [B, H, W, 3] -> float32, ImageNet mean and deviation removed, then 0 outside `sizes` [B, 2]."""
        mean, stddev = np.float32(IMAGENET_MEAN), np.float32(IMAGENET_STDDEV)
        normalised = (ops.cast(images, "float32") / 255.0 - mean) / stddev
        rows = ops.arange(images.shape[1])[None, :, None] < ops.cast(sizes[:, 0], "int32")[:, None, None]
        columns = ops.arange(images.shape[2])[None, None, :] < ops.cast(sizes[:, 1], "int32")[:, None, None]
        normalised = ops.where(ops.logical_and(rows, columns)[..., None], normalised, 0.0)
        for _ in range(self.config.normalisations - 1):
            normalised = (normalised - mean) / stddev  # over the padding too, as its network does it
        return normalised

    def targets(self, objects: Objects, outputs=None, seeds=None) -> Targets:
        """Each anchor's class and box offsets; neither outputs nor chance play a part."""
        return assign_anchors(objects, self._grid)

    def counts(self, targets: Targets) -> dict[str, Tensor]:
        """How many anchors of the batch have an object."""
        return {"positives": ops.sum(ops.cast(targets.positive, "float32"))}

    def normalisers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Positives and one more, so that a batch without any divides by something; four offsets make a box."""
        normaliser = counts["positives"] + 1.0
        return {"cls_loss": normaliser, "box_loss": 4.0 * normaliser, "box_iou_loss": 4.0 * normaliser}

    def loss_sums(self, outputs: tuple[Tensor, Tensor], targets: Targets) -> dict[str, Tensor]:
        """`cls_loss`, `box_loss` and, if configured, `box_iou_loss`."""
        return self._loss_sums(*outputs, targets)

    def regularisation(self) -> dict[str, Tensor]:
        """weight_decay times half the squared norm of all trainable kernels; none of batch norm, bias, fusion."""
        squares = [ops.sum(ops.square(ops.cast(kernel, "float32"))) for kernel in self._decayed if kernel.trainable]
        return {"reg_l2_loss": 0.5 * self.config.losses.weight_decay * sum(squares, ops.convert_to_tensor(0.0))}

    def detections(self, outputs: tuple[Tensor, Tensor], sizes: Tensor) -> Detections:
        """In pixels of the network input, not clipped."""
        return detections_from_outputs(*outputs, ops.convert_to_tensor(self.anchors), config=self.config.suppression)

    def _sums_of_losses(self, class_logits: Tensor, box_deltas: Tensor, targets: Targets) -> dict[str, Tensor]:
        losses = self.config.losses
        learnt = ops.where(targets.positive, targets.classes, -1)[..., None]
        wanted = learnt == ops.arange(class_logits.shape[-1], dtype="int32")  # [B, A, K]
        counted = ops.cast(ops.logical_not(targets.ignored), "float32")
        focal = focal_loss(class_logits, wanted, alpha=losses.alpha, gamma=losses.gamma,
                           label_smoothing=losses.label_smoothing)
        positive = ops.cast(targets.positive, "float32")
        huber = huber_loss(box_deltas - targets.box_deltas, delta=losses.delta) * positive[..., None]
        sums = {
            "cls_loss": ops.sum(ops.sum(focal, axis=-1) * counted),  # first over K: one pass of many threads
            "box_loss": losses.box_loss_weight * ops.sum(huber),
        }
        if losses.iou_loss_type:
            sums["box_iou_loss"] = losses.iou_loss_weight * self._iou_loss(box_deltas, targets)
        return sums

    def _iou_loss(self, box_deltas: Tensor, targets: Targets) -> Tensor:
        """Sum over positive anchors of 1 - IoU of the decoded boxes."""
        anchors = ops.convert_to_tensor(self.anchors)
        # Elsewhere both are the anchor itself, so that no infinite box can turn the gradient of a masked term into NaN.
        predicted = decode_boxes(ops.where(targets.positive[..., None], box_deltas, 0.0), anchors)
        overlap = generalised_iou(predicted, decode_boxes(targets.box_deltas, anchors), kind=self.config.losses.iou_loss_type)
        return ops.sum(ops.where(targets.positive, 1.0 - overlap, 0.0))
