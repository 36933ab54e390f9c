"""One-stage detectors: a network that speaks at every anchor, its losses and its reading."""

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
from object_detection.structures import Batch, Detections, Objects, Targets, Tensor
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

    def __init__(self, network: keras.Model, config: DenseDetectorConfig):
        """Raises ValueError where network and anchors disagree in number."""
        self.network = network
        self.config = config
        self._grid = anchor_grid(config.anchors, config.image_size)
        self.anchors = self._grid.boxes
        if network.output_shape[1][1] != len(self.anchors):
            raise ValueError(f"the network speaks at {network.output_shape[1][1]} anchors, the grid has {len(self.anchors)}")
        self._inference = folded(network)
        self._detection_losses, self._normalise = self.detection_losses, self.normalise
        if tensorflow_cpu.applies():
            self._detection_losses = tensorflow_cpu.in_one_pass(self.detection_losses)
            self._normalise = tensorflow_cpu.in_one_pass(self.normalise)
        self._decayed = [variable for name, variable in named_variables(network).items() if name.endswith("kernel")]

    def assign(self, objects: Objects) -> Targets:
        """Each anchor's class and box offsets."""
        return assign_anchors(objects, self._grid)

    def count_positives(self, targets: Targets) -> Tensor:
        """How many anchors of the batch have an object."""
        return ops.sum(ops.cast(targets.positive, "float32"))

    def loss_terms(
        self, batch: Batch, targets: Targets, normalizer: Tensor, *, training: bool = True
    ) -> dict[str, Tensor]:
        """`cls_loss`, `box_loss`, `box_iou_loss` if configured, and `reg_l2_loss`; `normalizer` is positives + 1."""
        class_logits, box_deltas = self.outputs(batch.images, batch.sizes, training=training)
        return {
            **self._detection_losses(class_logits, box_deltas, targets, normalizer),
            "reg_l2_loss": self._weight_decay(),
        }

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

    def detection_losses(
        self, class_logits: Tensor, box_deltas: Tensor, targets: Targets, normalizer: Tensor
    ) -> dict[str, Tensor]:
        """The losses of given outputs, without weight decay."""
        losses = self.config.losses
        learnt = ops.where(targets.positive, targets.classes, -1)[..., None]
        wanted = learnt == ops.arange(class_logits.shape[-1], dtype="int32")  # [B, A, K]
        counted = ops.cast(ops.logical_not(targets.ignored), "float32")
        focal = focal_loss(class_logits, wanted, alpha=losses.alpha, gamma=losses.gamma,
                           label_smoothing=losses.label_smoothing)
        positive = ops.cast(targets.positive, "float32")
        huber = huber_loss(box_deltas - targets.box_deltas, delta=losses.delta) * positive[..., None]
        terms = {
            "cls_loss": ops.sum(ops.sum(focal, axis=-1) * counted) / normalizer,  # first over K: one pass of many threads
            "box_loss": losses.box_loss_weight * ops.sum(huber) / (4.0 * normalizer),
        }
        if losses.iou_loss_type:
            terms["box_iou_loss"] = losses.iou_loss_weight * self._iou_loss(box_deltas, targets) / (4.0 * normalizer)
        return terms

    def _iou_loss(self, box_deltas: Tensor, targets: Targets) -> Tensor:
        """Sum over positive anchors of 1 - IoU of the decoded boxes."""
        anchors = ops.convert_to_tensor(self.anchors)
        # Elsewhere both are the anchor itself, so that no infinite box can turn the gradient of a masked term into NaN.
        predicted = decode_boxes(ops.where(targets.positive[..., None], box_deltas, 0.0), anchors)
        overlap = generalised_iou(predicted, decode_boxes(targets.box_deltas, anchors), kind=self.config.losses.iou_loss_type)
        return ops.sum(ops.where(targets.positive, 1.0 - overlap, 0.0))

    def _weight_decay(self) -> Tensor:
        """weight_decay times half the squared norm of all trainable kernels; none of batch norm, bias, fusion."""
        squares = [ops.sum(ops.square(ops.cast(kernel, "float32"))) for kernel in self._decayed if kernel.trainable]
        return 0.5 * self.config.losses.weight_decay * sum(squares, ops.convert_to_tensor(0.0))

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """Detections in pixels of the network input, not clipped."""
        class_logits, box_deltas = self.outputs(images, sizes)
        return detections_from_outputs(class_logits, box_deltas, ops.convert_to_tensor(self.anchors),
                                       config=self.config.suppression)
