"""One-stage detectors: a network with outputs at every anchor, its losses and its post-processing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from model import tensorflow_cpu
from model.detection_model import DECAYED_WEIGHTS, DetectionModel, Postprocessing, WeightDecay
from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV, normalized
from model.folding import folded, has_frozen_norms
from object_detection.assignment.anchor_assignment import Assigner, IouAssigner, classes_in_crowds
from object_detection.geometry.anchor_grid import AnchorConfig, AnchorLevel, anchor_grid, grid_of_levels
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import IOU_KINDS
from object_detection.losses import (
    focal_loss_of_classes,
    hardest,
    huber_loss,
    iou_loss,
    iou_scores,
    l1_loss,
    quality_focal_loss,
    smooth_l1_loss,
    softmax_cross_entropy,
)
from object_detection.onnx_nodes import Graph, Output
from object_detection.structures import Detections, Objects, PartialTargets, ScoredTargets, Targets, Tensor
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs
from program_support.checked_fields import Positive, checked_part, one_of
from program_support.errors import InputError
from program_support.plugins import load_plugin


class DensePostprocessing(Postprocessing):
    """Post-processing of class logits [B, A, K] and box deltas [B, A, 4] at A anchors."""

    detects_on_host = True

    def __init__(
        self,
        config: SuppressionConfig,
        anchors: np.ndarray,
        level_sizes: Sequence[int],
        *,
        num_logits: int,
        image_size: tuple[int, int],
    ):
        """Create post-processing for K = num_logits logits per anchor, including the background."""
        self._config, self._anchors, self._level_sizes, self._num_logits = config, anchors, level_sizes, num_logits
        self._image_size = image_size

    def detections(self, outputs: tuple[Tensor, Tensor], sizes: Tensor) -> Detections[Tensor]:
        """Return detections by the backend, see `DetectionModel.detections`."""
        return detections_from_outputs(
            *outputs,
            ops.convert_to_tensor(self._anchors),
            config=self._config,
            level_sizes=self._level_sizes,
            clip_to=sizes,
            within=sizes,
        )

    def host_outputs(self, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return class logits [B, A, K], box deltas [B, A, 4] and the highest logit of each anchor [B, A]."""
        return *outputs, ops.max(outputs[0], axis=-1)

    def detections_on_host(self, outputs: Sequence[np.ndarray], size: np.ndarray) -> Detections[np.ndarray]:
        """Return one image's detections by NumPy, see `Postprocessing.detections_on_host`.

        outputs: class logits, box deltas [A, 4] and the highest logit of each anchor.
        """
        return detections_on_host(
            self._network_outputs(outputs),
            self._anchors,
            config=self._config,
            level_sizes=self._level_sizes,
            clip_to=size,
            within=size,
        )

    def onnx_detections(self, graph: Graph, tensors: Sequence[str], sizes: str) -> dict[str, Output]:
        """Add post-processing to an ONNX graph, see `Postprocessing.onnx_detections`."""
        logits, deltas = tensors
        boxes, scores, classes = load_plugin("efficientdet.onnx", "suppression")(
            graph,
            logits,
            deltas,
            sizes,
            anchors=self._anchors,
            classes=self._num_logits,
            config=self._config,
            level_sizes=self._level_sizes,
        )
        slots = self._config.max_detections
        return {
            "boxes": Output(boxes, "float32", (slots, 4)),
            "scores": Output(scores, "float32", (slots,)),
            "classes": Output(classes, "int32", (slots,)),
        }

    def onnx_outputs(self, graph: Graph, tensors: Sequence[str]) -> dict[str, Output]:
        """Return the outputs that `detections_on_host` uses.

        A file for ONNX Runtime keeps the logits of a cell's anchors in one row, the same values in the same order,
        because a Reshape at the end would copy them.
        """
        (logits, deltas), anchors = tensors, len(self._anchors)
        best = graph.add("ReduceMax", [logits, np.array([2])], name="best_logits", keepdims=0)
        shape = (anchors, self._num_logits)
        if graph.for_onnxruntime and logits in graph.cells:
            logits, channels = graph.cells[logits]
            shape = (anchors * self._num_logits // channels, channels)
        return {
            "class_logits": Output(logits, "float32", shape),
            "box_deltas": Output(deltas, "float32", (anchors, 4)),
            "best_logits": Output(best, "float32", (anchors,)),
        }

    def litert_operator(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Return anchors and attributes of `TFLite_Detection_PostProcess`, see `Postprocessing.litert_operator`."""
        config, coder = self._config, self._config.box_coder
        if not isinstance(coder, FasterRcnnBoxCoder):
            raise InputError(
                "TFLite_Detection_PostProcess cannot decode the boxes of this detector; use --formats=litert-int8"
            )
        size = np.array(self._image_size)
        low, high = self._anchors[:, :2] / size, self._anchors[:, 2:] / size
        anchors = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
        scales = dict(zip(("y_scale", "x_scale", "h_scale", "w_scale"), map(float, coder.weights), strict=True))
        return anchors, {
            "max_detections": config.max_detections,
            "max_classes_per_detection": 1,
            "detections_per_class": config.max_detections,
            # Class-agnostic: suppression per class loses a class with two threads (tensorflow/tensorflow#56058)
            "use_regular_nms": False,
            "nms_score_threshold": float(config.score_threshold),
            "nms_iou_threshold": 1.0 if config.method == "none" else float(config.iou_threshold),
            "num_classes": self._num_logits - (config.scores == "softmax"),  # the background's score is the first
            **scales,
        }

    def probabilities(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return the probabilities of the logits, [B, A, K], including the background's."""
        logits = outputs[0]
        return ops.sigmoid(logits) if self._config.scores == "sigmoid" else ops.softmax(logits, axis=-1)

    def _network_outputs(self, outputs: Sequence[np.ndarray]) -> NetworkOutputs:
        logits, deltas, best_logits = outputs
        return NetworkOutputs(logits.reshape(len(best_logits), -1), deltas, best_logits)


def _focal(logits: Tensor, targets: Targets | ScoredTargets, losses: "LossConfig") -> Tensor:
    """Return the focal loss of each anchor, [B, A]."""
    classes = ops.where(targets.positive, targets.classes, -1)
    focal = focal_loss_of_classes(
        logits, classes, alpha=losses.alpha, gamma=losses.gamma, label_smoothing=losses.label_smoothing
    )
    return ops.sum(focal, axis=-1)  # sum over K first: one parallel pass


def _background_first(logits: Tensor, targets: Targets | ScoredTargets, losses: "LossConfig") -> Tensor:
    """Return the cross entropy of each anchor, [B, A]; class 0 of the softmax is the background."""
    return softmax_cross_entropy(logits, ops.where(targets.positive, targets.classes + 1, 0))


# logits [B, A, K] -> [B, A], including ignored anchors
ClassLoss = Callable[[Tensor, Targets | ScoredTargets, "LossConfig"], Tensor]
CLASS_LOSSES: dict[str, ClassLoss] = {"focal": _focal, "softmax cross entropy": _background_first}
QUALITY_FOCAL = "quality focal"  # its target is a score
BOX_LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {  # (errors, LossConfig.delta) -> loss of each entry
    "huber": lambda errors, delta: huber_loss(errors, delta=delta),
    "smooth l1": lambda errors, delta: smooth_l1_loss(errors, beta=delta),
    "l1": lambda errors, delta: l1_loss(errors),
}
POSITIVES_OF_EACH_IMAGE = "positives of each image"
NORMALIZERS = ("positives of the batch", POSITIVES_OF_EACH_IMAGE)


@checked_part
class LossConfig:
    """Kinds and weights of the losses; the defaults are EfficientDet's (Tan et al. 2020, section 5.1).

    Attributes:
        class_loss: "focal", with one sigmoid per class, alpha, gamma and label_smoothing; or "softmax cross entropy",
            whose first logit is the background's, the class of anchors without an object; or "quality focal", with one
            sigmoid per class whose target at a positive anchor is the IoU of its predicted box with its object, or the
            score of the assignment.
        box_loss: "huber", "smooth l1" (Huber loss divided by delta, which is its beta) or "l1", which does not use
            delta; or 1 - IoU: "iou", "giou", "diou" or "ciou".
        iou_loss_type: kind of an IoU loss beside box_loss.
        normalizer: "positives of the batch" divides the sum over a batch by its positives + 1, and losses of box
            coordinates by four times that; if the assignment scores positives and the class loss uses the scores,
            their sum takes the place of the number of positives;
            "positives of each image" divides each image's sums by its own positives (at least 1) and averages over
            images, as torchvision's detectors do.
        decays: weights that weight_decay applies to: "kernels" of convolutions, or "all", including batch norm and
            biases.
        hard_negative_ratio: number of negative anchors with the largest class loss to use per positive anchor of an
            image (SSD, Liu et al. 2016, section 2.2: 3); None: all negatives.
    """

    class_loss: Annotated[str, one_of(*CLASS_LOSSES, QUALITY_FOCAL)] = "focal"
    alpha: float = 0.25
    gamma: float = 1.5
    label_smoothing: float = 0.0
    class_loss_weight: float = 1.0
    box_loss: Annotated[str, one_of(*BOX_LOSSES, *IOU_KINDS)] = "huber"
    delta: float = 0.1
    box_loss_weight: float = 50.0
    iou_loss_type: Annotated[str, one_of(*IOU_KINDS)] | None = None
    iou_loss_weight: float = 1.0
    normalizer: Annotated[str, one_of(*NORMALIZERS)] = "positives of the batch"
    hard_negative_ratio: Positive | None = None
    weight_decay: float = 4e-5
    decays: Annotated[str, one_of(*DECAYED_WEIGHTS)] = "kernels"


DenseTargets = Targets | ScoredTargets | PartialTargets
_CERTAIN_NEGATIVE = -1e4  # class logit


@dataclass(frozen=True, kw_only=True)
class DenseDetectorConfig:
    """Losses and post-processing of a network's outputs.

    Attributes:
        anchors: EfficientDet's rule, or levels of any shapes (see `grid_of_levels`), in the order of the network's
            outputs.
        suppression: post-processing; its `box_coder` also encodes the targets.
        mean, stddev: of red, green and blue, as fractions of 255.
        normalizations: how often they are applied; 2 for NVIDIA's checkpoints, 1 for all others.
        ignore_in_crowds: an anchor with its center in a crowd is no negative of the crowd's class, unless an object is
            assigned to it; for class losses with one sigmoid per class.
        first_head_layer: name of the first layer of a head that all levels of the pyramid share; None: there is none.
    """

    image_size: tuple[int, int]
    anchors: AnchorConfig | Sequence[AnchorLevel]
    assigner: Assigner = field(default_factory=IouAssigner)
    losses: LossConfig = field(default_factory=LossConfig)
    suppression: SuppressionConfig = field(default_factory=SuppressionConfig)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    stddev: tuple[float, float, float] = IMAGENET_STDDEV
    normalizations: int = 1
    ignore_in_crowds: bool = False
    first_head_layer: str | None = None


class DenseDetector(DetectionModel[tuple[Tensor, Tensor], DenseTargets]):
    """Detector with network outputs [B, A, K] and [B, A, 4] at its A anchors."""

    output_names = ("class_logits", "box_deltas")

    def __init__(self, network: keras.Model, config: DenseDetectorConfig):
        """Create a detector.

        Raises:
            ValueError: the numbers of anchors of network and configuration differ.
        """
        self.network = network
        self.config = config
        self.image_size = config.image_size
        self.learns_from_outputs = config.assigner.reads_outputs
        self.first_head_layer = config.first_head_layer
        if isinstance(config.anchors, AnchorConfig):
            self._grid = anchor_grid(config.anchors, config.image_size)
        else:
            self._grid = grid_of_levels(config.anchors)
        self.anchors, self.level_sizes = self._grid.boxes, self._grid.level_sizes
        if network.output_shape[1][1] != len(self.anchors):
            raise ValueError(
                f"the network has outputs for {network.output_shape[1][1]} anchors, the grid has {len(self.anchors)}"
            )
        self.postprocessing: DensePostprocessing = DensePostprocessing(
            config.suppression,
            self.anchors,
            self.level_sizes,
            num_logits=network.output_shape[0][-1],
            image_size=self.image_size,
        )
        self._inference, self._training = folded(network), folded(network, training=True)
        self._loss_sums = tensorflow_cpu.in_one_pass(self._compute_loss_sums)
        self._normalize = tensorflow_cpu.in_one_pass(self.normalize)
        self._weight_decay = WeightDecay(network, coefficient=config.losses.weight_decay, decays=config.losses.decays)

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return class logits [B, A, K] and box deltas [B, A, 4], float32 for any precision.

        In training the logits keep the precision of the network: the losses convert them as they read them, so that
        an accelerator never writes them, the largest arrays of a step, in float32.
        """
        if training:
            normalized = self.normalize(images, sizes)
            run = self._training if has_frozen_norms(self.network) else partial(self.network, training=True)
            class_logits, box_deltas = run(normalized)
            return class_logits, ops.cast(box_deltas, "float32")
        normalize = self.normalize if None in images.shape else self._normalize  # XLA needs a known B
        class_logits, box_deltas = self._inference(normalize(images, sizes))
        return ops.cast(class_logits, "float32"), ops.cast(box_deltas, "float32")

    def normalize(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Return float32 images from uint8 [B, H, W, 3], normalized by mean and stddev, 0 outside `sizes` [B, 2]."""
        values = normalized(images, sizes, mean=self.config.mean, stddev=self.config.stddev)
        for _ in range(self.config.normalizations - 1):
            # over the padding too, as in NVIDIA's network
            values = (values - np.array(self.config.mean, np.float32)) / np.array(self.config.stddev, np.float32)
        return values

    def targets(
        self, objects: Objects[Tensor], outputs: tuple[Tensor, Tensor] | None = None, seeds: Tensor | None = None
    ) -> DenseTargets:
        """Return each anchor's class and box deltas, as assigned; nothing is sampled."""
        if outputs is not None:
            outputs = ops.stop_gradient(outputs[0]), ops.stop_gradient(outputs[1])
        targets = self.config.assigner.assign(
            objects, self._grid, box_coder=self.config.suppression.box_coder, outputs=outputs
        )
        if not self.config.ignore_in_crowds:
            return targets
        count = self.network.output_shape[0][-1]
        in_crowds = classes_in_crowds(objects, ops.convert_to_tensor(self.anchors), num_classes=count)
        # An anchor of a labeled object is no object of the other classes: without this, an old class and a new one that
        # look alike are never told apart.
        return PartialTargets(targets, ops.logical_and(in_crowds, ops.logical_not(targets.positive)[..., None]))

    @property
    def _normalizes_per_image(self) -> bool:
        return self.config.losses.normalizer == POSITIVES_OF_EACH_IMAGE

    def counts(self, targets: DenseTargets) -> dict[str, Tensor]:
        """Return the number of positive anchors of the batch, and what else the normalizers need."""
        if isinstance(targets, PartialTargets):
            targets = targets.assigned
        counts = {"positives": ops.sum(ops.cast(targets.positive, "float32"))}
        if self._normalizes_per_image:
            counts["images"] = ops.cast(ops.shape(targets.positive)[0], "float32")
        elif (scores := self._assigned_scores(targets)) is not None:
            counts["target_scores"] = ops.sum(scores)
        return counts

    def normalizers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of positives + 1 (so that none is 0), times 4 for coordinates; or the number of images.

        The sum of the target scores replaces the number of positives if the class loss uses scores of the assignment.
        """
        if self._normalizes_per_image:
            return dict.fromkeys(("cls_loss", "box_loss", "box_iou_loss"), counts["images"])
        normalizer = counts["target_scores" if "target_scores" in counts else "positives"] + 1.0
        coordinates = 4.0 if self.config.losses.box_loss in BOX_LOSSES else 1.0
        return {"cls_loss": normalizer, "box_loss": coordinates * normalizer, "box_iou_loss": 4.0 * normalizer}

    def loss_sums(self, outputs: tuple[Tensor, Tensor], targets: DenseTargets) -> dict[str, Tensor]:
        """Return `cls_loss`, `box_loss` and, if configured, `box_iou_loss`."""
        class_logits, box_deltas = outputs
        if isinstance(targets, PartialTargets):  # loss and gradient of a negative are 0 at this logit
            class_logits = ops.where(targets.unlabeled, _CERTAIN_NEGATIVE, class_logits)
            targets = targets.assigned
        return self._loss_sums(class_logits, box_deltas, targets)

    def regularization(self) -> dict[str, Tensor]:
        """Return weight_decay times half the squared norm of the trainable weights, see `LossConfig.decays`."""
        return self._weight_decay.losses()

    def detections(self, outputs: tuple[Tensor, Tensor], sizes: Tensor) -> Detections[Tensor]:
        """Return detections in pixels of the network input, clipped to the image if `SuppressionConfig.clip`."""
        return self.postprocessing.detections(outputs, sizes)

    def _assigned_scores(self, targets: Targets | ScoredTargets) -> Tensor | None:
        """Return the scores of the assignment, [B, A], if the class loss uses scores and the assigner provides them."""
        uses_scores = self.config.losses.class_loss == QUALITY_FOCAL
        return targets.scores if uses_scores and isinstance(targets, ScoredTargets) else None

    def _compute_loss_sums(
        self, class_logits: Tensor, box_deltas: Tensor, targets: Targets | ScoredTargets
    ) -> dict[str, Tensor]:
        losses, scores = self.config.losses, self._assigned_scores(targets)
        weights = ops.cast(targets.positive, "float32") if scores is None else scores
        boxes = box_deltas, targets, ops.convert_to_tensor(self.anchors), self.config.suppression.box_coder
        if losses.class_loss == QUALITY_FOCAL:
            classes = ops.where(targets.positive, targets.classes, -1)
            scores = iou_scores(*boxes) if scores is None else scores
            class_losses = ops.sum(quality_focal_loss(class_logits, classes, scores), axis=-1)
        else:
            class_losses = CLASS_LOSSES[losses.class_loss](class_logits, targets, losses)
        if losses.box_loss in BOX_LOSSES:
            errors = BOX_LOSSES[losses.box_loss](box_deltas - targets.box_deltas, losses.delta)
            box_losses = errors * weights[..., None]
        else:
            box_losses = iou_loss(*boxes, kind=losses.box_loss) * weights
        sums = {
            "cls_loss": losses.class_loss_weight
            * self._sum(class_losses * self._counted(class_losses, targets), weights),
            "box_loss": losses.box_loss_weight * self._sum(box_losses, weights),
        }
        if losses.iou_loss_type:
            iou_losses = iou_loss(*boxes, kind=losses.iou_loss_type) * weights
            sums["box_iou_loss"] = losses.iou_loss_weight * self._sum(iou_losses, weights)
        return sums

    def _counted(self, class_losses: Tensor, targets: Targets | ScoredTargets) -> Tensor:
        """Return the weight of each anchor's class loss, [B, A] float32."""
        counted, ratio = ops.cast(ops.logical_not(targets.ignored), "float32"), self.config.losses.hard_negative_ratio
        if ratio is None:
            return counted
        positive = ops.cast(targets.positive, "float32")
        # Positives rank last, with loss 0, as in SSD's reference: with too few negatives some of them count twice.
        ranked = ops.stop_gradient(class_losses) * counted * (1.0 - positive)
        return counted * (positive + hardest(ranked, ops.floor(ratio * ops.sum(positive, axis=1))))

    def _sum(self, losses: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of [B, A] or [B, A, 4]; divided per image by the weights of its positives if so normalized."""
        if not self._normalizes_per_image:
            return ops.sum(losses)
        of_images = ops.sum(losses, axis=tuple(range(1, len(losses.shape))))
        return ops.sum(of_images / ops.maximum(ops.sum(weights, axis=1), 1.0))
