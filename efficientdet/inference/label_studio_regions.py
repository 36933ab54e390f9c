"""Rectangles of Label Studio's tasks: https://labelstud.io/guide/export."""

from collections.abc import Sequence
from typing import Any


def rectangle_region(
    sides: Sequence[float], label: str, *, identifier: str, size: tuple[int, int], from_name: str, to_name: str
) -> dict[str, Any]:
    """Return a region of an annotation or a prediction.

    Args:
        sides: x, y, width and height in percent of the width and height of the image.
        label: name of the class in the labeling configuration.
        identifier: id of the region in its task.
        size: width and height of the image.
        from_name: name of the configuration's `<RectangleLabels>`.
        to_name: name of its `<Image>`.
    """
    return {
        "id": identifier,
        "type": "rectanglelabels",
        "from_name": from_name,
        "to_name": to_name,
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": 0,
        "value": {
            **dict(zip(("x", "y", "width", "height"), sides, strict=True)),
            "rotation": 0,
            "rectanglelabels": [label],
        },
    }
