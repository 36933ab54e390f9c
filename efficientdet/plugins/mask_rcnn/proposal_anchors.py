"""Anchors of region proposals as levels for `grid_of_levels`."""

from collections.abc import Sequence

from object_detection.geometry.anchor_grid import AnchorConfig, AnchorLevel, level_of_cells

NVIDIA_ASPECT_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))  # width and height of the anchors of NVIDIA's Mask R-CNN


def proposal_sizes(anchor_scale: float = 8.0) -> tuple[tuple[float, ...], ...]:
    """Return the sides in pixels of the square anchors of Mask R-CNN's P2 to P6, `anchor_scale` cells each."""
    return tuple((2**level * anchor_scale,) for level in range(2, 7))


PROPOSAL_SIZES = proposal_sizes()


def centered_levels(
    image_size: tuple[int, int], feature_sizes: Sequence[tuple[int, int]], *, scale: float = 8.0
) -> list[AnchorLevel]:
    """Return the anchors of proposals of NVIDIA's TensorFlow 2 Mask R-CNN (mrcnn_tf2/model/anchors.py).

    The rule is EfficientDet's, with one scale and different aspect ratios: 279,279 anchors at 832 x 1344 on levels 2 to
    6.
    """
    config = AnchorConfig(num_scales=1, aspect_ratios=NVIDIA_ASPECT_RATIOS, anchor_scale=scale)
    return [level_of_cells(config, image_size, counts) for counts in feature_sizes]
