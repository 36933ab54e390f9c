"""Interface of label assignment in one-stage detectors, and anchors that are negatives of some classes only."""

from keras import ops

from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.geometry.box_coding import BoxCoder
from object_detection.structures import Objects, ScoredTargets, Targets, Tensor


class Assigner:
    """Base class of label assignment: which anchors are trained on which object."""

    reads_outputs = False  # True: `assign` gets the network's outputs, and counts are known only after the forward pass

    def assign(
        self,
        objects: Objects[Tensor],
        grid: AnchorGrid,
        *,
        box_coder: BoxCoder,
        outputs: tuple[Tensor, Tensor] | None = None,
    ) -> Targets | ScoredTargets:
        """Return the target of every anchor.

        Args:
            objects: boxes [B, M, 4] in pixels of the anchors. Crowds and padding (`valid` False) are not assigned.
            grid: the A anchors.
            box_coder: encodes boxes as offsets from anchors.
            outputs: class logits [B, A, K] and box deltas [B, A, 4] if `reads_outputs`; no gradient flows through them.

        Returns:
            Targets with [B, A] entries; with scores if a loss shall weight the positives.
        """
        raise NotImplementedError


def classes_in_crowds(objects: Objects[Tensor], anchors: Tensor, *, num_classes: int) -> Tensor:
    """Return whether the center of each anchor [A, 4] is in a crowd of each class, [B, A, K] bool.

    A crowd is a region whose objects of a class are not labeled one by one; one of the size of the image says that none
    of them is labeled.
    """
    is_crowd = ops.cast(ops.logical_and(objects.valid, objects.crowd), "float32")
    centers, boxes = (anchors[:, :2] + anchors[:, 2:]) / 2.0, objects.boxes[:, :, None]
    inside = ops.logical_and(centers >= boxes[..., :2], centers < boxes[..., 2:])  # [B, M, A, 2]
    classes = ops.one_hot(objects.classes, num_classes, dtype="float32") * is_crowd[..., None]  # [B, M, K]
    return ops.einsum("bma,bmk->bak", ops.cast(ops.all(inside, axis=-1), "float32"), classes) > 0.0
