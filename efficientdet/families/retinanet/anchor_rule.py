"""Which anchors a RetinaNet stands on, known without Keras."""

from collections.abc import Sequence

from efficientdet.families.retinanet.hyperparameters import RetinaNetHyperparameters
from object_detection.geometry.anchor_conventions import retinanet_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel


def anchor_levels(
    hparams: RetinaNetHyperparameters, image_size: tuple[int, int], cells: Sequence[tuple[int, int]]
) -> list[AnchorLevel]:
    """The anchors of P3 to P7 of an image of this size, from the cells (rows, columns) of each."""
    return rounded_levels(image_size, cells, sizes=retinanet_sizes(hparams.anchor_scale),
                          height_to_width=[1 / ratio for ratio in hparams.aspect_ratios])
