"""Which anchors the proposals of a Mask R-CNN stand on, known without Keras."""

from collections.abc import Callable, Sequence
from functools import partial

from efficientdet.families.mask_rcnn.hyperparameters import MaskRcnnHyperparameters
from object_detection.geometry.anchor_conventions import centred_levels, proposal_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel


def anchor_levels(
    hparams: MaskRcnnHyperparameters
) -> Callable[[tuple[int, int], Sequence[tuple[int, int]]], Sequence[AnchorLevel]]:
    """The anchors of P2 to P6, from the image's size and the cells (rows, columns) of each."""
    if hparams.conventions == "dle":
        return partial(centred_levels, scale=hparams.anchor_scale)
    return partial(rounded_levels, sizes=proposal_sizes(hparams.anchor_scale))
