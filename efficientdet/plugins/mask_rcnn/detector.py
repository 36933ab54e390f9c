"""Two-stage detectors: region proposals, then classification, box regression and masks."""

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Annotated, Any, NamedTuple

import keras
from keras import ops

from efficientdet.plugins.mask_rcnn.network import MASK_SIDE, MaskRcnn
from efficientdet.plugins.mask_rcnn.region_layers import nms, regions_to_compute
from efficientdet.plugins.mask_rcnn.regions import REGION_BOX_CODER, ProposalConfig, region_proposals
from efficientdet.plugins.mask_rcnn.sampled_regions import (
    BETA,
    assign_regions,
    mask_loss_sum,
    mask_targets,
    proposal_loss_sums,
    region_loss_sums,
    sample_masks,
    sample_regions,
)
from model.detection_model import DECAYED_WEIGHTS, DetectionModel, WeightDecay
from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV, normalized
from model.folding import folded, has_frozen_norms
from object_detection.assignment.anchor_assignment import IouAssigner, assign_anchors
from object_detection.gather import entries
from object_detection.structures import Detections, Objects, Targets, Tensor
from program_support.checked_fields import checked_part, one_of

_REGION_SEED = 0x5EED  # separates the random numbers of regions from those of anchors


@checked_part
class TwoStageConfig:
    """Losses and sampling of the two stages; the defaults are torchvision's.

    Attributes:
        anchors_per_image, regions_per_image: numbers sampled for the losses.
        positive_anchors, positive_regions: largest fraction of positive samples.
        proposals: in training; the network contains the settings for detection.
        region_iou: IoU from which a proposal is positive; the others are background.
        *_beta: of the smooth L1 losses.
        decays: see `LossConfig`.
    """

    image_size: tuple[int, int]
    proposals: ProposalConfig = field(default_factory=lambda: ProposalConfig(candidates_per_level=2000, kept=2000))
    anchor_match: IouAssigner = field(
        default_factory=lambda: IouAssigner(positive_iou=0.7, negative_iou=0.3, claim="ties")
    )
    anchors_per_image: int = 256
    positive_anchors: float = 0.5
    regions_per_image: int = 512
    positive_regions: float = 0.25
    region_iou: float = 0.5
    anchor_beta: float = BETA
    region_beta: float = BETA
    weight_decay: float = 1e-4
    decays: Annotated[str, one_of(*DECAYED_WEIGHTS)] = "all"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    stddev: tuple[float, float, float] = IMAGENET_STDDEV

    @property
    def masks_per_image(self) -> int:
        """Number of regions with masks per image: the positive regions, which come first."""
        return int(self.regions_per_image * self.positive_regions)


class FirstStage(NamedTuple):
    """Training outputs, from which targets and losses are computed."""

    levels: tuple[Tensor, ...]  # P2 .. P5, [B, h, w, C]
    logits: Tensor  # [B, A]
    deltas: Tensor  # [B, A, 4]
    sizes: Tensor  # [B, 2], the valid area of the input


class TwoStageTargets(NamedTuple):
    """Targets of anchors, and of regions sampled from the proposals and the objects, positive ones first."""

    anchors: Targets
    positive: Tensor  # [B, A] bool, sampled anchors with an object
    negative: Tensor  # [B, A] bool, sampled anchors without an object
    regions: Tensor  # [B, R, 4]
    valid: Tensor  # [B, R] bool
    classes: Tensor  # [B, R] int32, 0: background
    deltas: Tensor  # [B, R, 4]; 0 for the background
    masks: Tensor  # [B, Q, S, S] float32, for the first Q regions: fraction of a cell that is object


class TwoStageDetector(DetectionModel[Any, TwoStageTargets]):  # other outputs in training
    """Detector with the networks of `build_mask_rcnn`."""

    learns_from_outputs = True
    output_names = ("boxes", "scores", "classes", "masks")
    litert_obstacle = "LiteRT has no operation for RoIAlign, which a two-stage network needs"

    def __init__(self, networks: MaskRcnn, config: TwoStageConfig):
        self.network, self.first_stage, self.heads, self._grid = networks
        self.config = config
        self.image_size = config.image_size
        self.anchors, self.level_sizes = self._grid.boxes, self._grid.level_sizes
        self._inference, self._evaluated = folded(self.network), folded(self.first_stage)
        self._training = folded(self.first_stage, training=True)
        self._weight_decay = WeightDecay(self.network, coefficient=config.weight_decay, decays=config.decays)

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> tuple[Tensor, ...] | FirstStage:
        """Return boxes [B, D, 4], scores [B, D], classes [B, D] and masks [B, D, S, S]; in training a `FirstStage`."""
        if training:
            return self.training_outputs(images, sizes, training=True)
        return tuple(self._inference([self.normalize(images, sizes), sizes]))

    def training_outputs(self, images: Tensor, sizes: Tensor, *, training: bool) -> FirstStage:
        """Return the first stage's outputs; the heads run in `loss_sums`, on the regions that `targets` samples."""
        run = self._evaluated
        if training:
            run = self._training if has_frozen_norms(self.first_stage) else partial(self.first_stage, training=True)
        *levels, logits, deltas = run(self.normalize(images, sizes))
        return FirstStage(tuple(levels), ops.cast(logits, "float32"), ops.cast(deltas, "float32"), sizes)

    def trained_network(self) -> keras.Model:
        """Return the first stage and the heads, for the number of regions that are sampled per image."""
        images, regions = keras.Input((*self.image_size, 3)), keras.Input((self.config.regions_per_image, 4))
        *levels, logits, deltas = self.first_stage(images)
        with_masks = regions[:, : self.config.masks_per_image]
        return keras.Model(
            [images, regions],
            [
                logits,
                deltas,
                *self.heads.classes_and_deltas(levels, regions),
                self.heads.masks(levels, with_masks, with_masks[..., 0]),
            ],
        )

    def normalize(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Return float32 images from uint8 [B, H, W, 3], normalized by mean and stddev, 0 outside `sizes` [B, 2]."""
        return normalized(images, sizes, mean=self.config.mean, stddev=self.config.stddev)

    def targets(
        self, objects: Objects[Tensor], outputs: FirstStage | None = None, seeds: Tensor | None = None
    ) -> TwoStageTargets:
        """Return the targets of anchors and of proposals from `outputs`, sampled with `seeds` [B, 2]."""
        assert outputs is not None
        assert seeds is not None
        config = self.config
        anchors = assign_anchors(objects, self._grid, rule=config.anchor_match)
        sampled = sample_masks(
            anchors.positive,
            ops.logical_not(ops.logical_or(anchors.positive, anchors.ignored)),
            seeds,
            count=config.anchors_per_image,
            positive_share=config.positive_anchors,
        )
        proposed, _, valid = region_proposals(
            outputs.logits,
            outputs.deltas,
            ops.convert_to_tensor(self.anchors),
            self.level_sizes,
            outputs.sizes,
            config.proposals,
            nms=nms(),
        )
        assignable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
        boxes = ops.concatenate([proposed, objects.boxes], axis=1)
        matched, positive, negative = assign_regions(
            boxes,
            ops.concatenate([valid, assignable], axis=1),
            objects,
            positive_iou=config.region_iou,
        )
        numbers, positive, valid = sample_regions(
            positive,
            negative,
            seeds + _REGION_SEED,
            count=config.regions_per_image,
            positive_share=config.positive_regions,
        )
        regions, matched = entries(boxes, numbers), entries(matched, numbers)
        masks = config.masks_per_image
        return TwoStageTargets(
            anchors=anchors,
            positive=sampled[0],
            negative=sampled[1],
            regions=regions,
            valid=valid,
            classes=ops.where(positive, entries(objects.classes, matched) + 1, 0),
            deltas=ops.where(
                positive[..., None], REGION_BOX_CODER.encode(entries(objects.boxes, matched), regions), 0.0
            ),
            masks=mask_targets(
                objects.masks,
                objects.boxes,
                regions[:, :masks],
                matched[:, :masks],
                outputs.sizes,
                size=MASK_SIDE,
            ),
        )

    def counts(self, targets: TwoStageTargets) -> dict[str, Tensor]:
        """Return the number of positive anchors, and the numbers that normalize the losses."""
        counted = {
            "positives": targets.anchors.positive,
            "anchors": ops.logical_or(targets.positive, targets.negative),
            "regions": targets.valid,
            "masks": self._has_mask(targets),
        }
        return {name: ops.sum(ops.cast(values, "float32")) for name, values in counted.items()}

    def loss_sums(self, outputs: FirstStage, targets: TwoStageTargets) -> dict[str, Tensor]:
        """Return `objectness_loss`, `anchor_box_loss`, and of the second stage `cls_loss`, `box_loss`, `mask_loss`."""
        objectness, anchor_box = proposal_loss_sums(
            outputs.logits,
            outputs.deltas,
            targets.anchors.box_deltas,
            targets.positive,
            targets.negative,
            beta=self.config.anchor_beta,
        )
        logits, deltas = self.heads.classes_and_deltas(outputs.levels, targets.regions)
        count = logits.shape[-1]
        classes, box = region_loss_sums(
            ops.reshape(logits, (-1, targets.regions.shape[1], count)),
            ops.reshape(deltas, (-1, targets.regions.shape[1], count, 4)),
            targets.classes,
            targets.deltas,
            targets.valid,
            beta=self.config.region_beta,
        )
        return {
            "objectness_loss": objectness,
            "anchor_box_loss": anchor_box,
            "cls_loss": classes,
            "box_loss": box,
            "mask_loss": self._mask_loss(outputs.levels, targets),
        }

    def normalizers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the divisor of each loss: a number of samples, of boxes too, although only positive ones have one."""
        least = {name: ops.maximum(count, 1.0) for name, count in counts.items()}
        return {
            "objectness_loss": least["anchors"],
            "anchor_box_loss": least["anchors"],
            "cls_loss": least["regions"],
            "box_loss": least["regions"],
            "mask_loss": least["masks"],
        }

    def regularization(self) -> dict[str, Tensor]:
        """Return weight_decay times half the squared norm of all trainable kernels, or weights."""
        return self._weight_decay.losses()

    def detections(self, outputs: tuple[Tensor, ...], sizes: Tensor) -> Detections[Tensor]:
        """Return detections in pixels of the network input, clipped to the image, from the network's outputs."""
        boxes, scores, classes, masks = outputs
        return Detections(boxes, scores, ops.cast(classes, "int32"), scores > 0.0, masks)

    def _has_mask(self, targets: TwoStageTargets) -> Tensor:
        """Return which of the first Q regions are positive, [B, Q] bool."""
        return targets.classes[:, : self.config.masks_per_image] > 0

    def _mask_loss(self, levels: Sequence[Tensor], targets: TwoStageTargets) -> Tensor:
        """Return the sum over positive regions of their mean binary cross entropy."""
        has_mask = self._has_mask(targets)
        count, rows = has_mask.shape[1], regions_to_compute(has_mask)
        logits = self.heads.masks(levels, targets.regions[:, :count], ops.cast(has_mask, "float32"))
        classes = ops.take(ops.reshape(targets.classes[:, :count], (-1,)), rows, axis=0)
        target_masks = ops.take(ops.reshape(targets.masks, (-1, *targets.masks.shape[2:])), rows, axis=0)
        return mask_loss_sum(logits, classes, target_masks, classes > 0)
