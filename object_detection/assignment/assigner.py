"""Interface of label assignment in one-stage detectors."""

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
