"""Rectangles and labeling configuration of Label Studio's tasks: https://labelstud.io/guide/export."""

import math
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

FROM_NAME, TO_NAME = "label", "image"  # names in the labeling configuration that is written here


def rectangle_region(
    box: Sequence[float],
    label: str,
    *,
    identifier: str,
    size: tuple[int, int],
    from_name: str = FROM_NAME,
    to_name: str = TO_NAME,
) -> dict[str, Any]:
    """Return a region of an annotation or a prediction, whose box is in percent of the image's sides.

    Args:
        box: x, y, width and height in pixels.
        label: name of the class in the labeling configuration.
        identifier: id of the region in its task.
        size: width and height of the image.
        from_name: name of the configuration's `<RectangleLabels>`.
        to_name: name of its `<Image>`.
    """
    percent = [round(float(100 * value / side), 4) for value, side in zip(box, size * 2, strict=True)]
    return {
        "id": identifier,
        "type": "rectanglelabels",
        "from_name": from_name,
        "to_name": to_name,
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": 0,
        "value": {
            **dict(zip(("x", "y", "width", "height"), percent, strict=True)),
            "rotation": 0,
            "rectanglelabels": [label],
        },
    }


def prediction(regions: Sequence[dict[str, Any]], scores: Sequence[float], *, model_version: str) -> dict[str, Any]:
    """Return a task's prediction of regions with these scores; its own score is their mean."""
    scored = [{**region, "score": score} for region, score in zip(regions, scores, strict=True)]
    mean = math.fsum(scores) / len(scores) if scores else 0.0
    return {"model_version": model_version, "score": mean, "result": scored}


def task_data(file_name: str) -> dict[str, str]:
    """Return the data of a task whose image is in a local storage of Label Studio, by its name below the root."""
    return {TO_NAME: f"/data/local-files/?d={quote(os.fsencode(file_name))}"}


def labeling_configuration(names: Sequence[str]) -> str:
    """Return the labeling configuration of a project with rectangles of these classes."""
    from xml.sax.saxutils import quoteattr  # with urllib.request, 20 ms

    labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in names)
    return (
        f'<View>\n  <Image name="{TO_NAME}" value="${TO_NAME}"/>\n'
        f'  <RectangleLabels name="{FROM_NAME}" toName="{TO_NAME}">\n{labels}  </RectangleLabels>\n</View>\n'
    )
