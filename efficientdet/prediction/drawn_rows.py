"""Drawing of result rows into images and frames."""

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import upright_boxes, upright_image
from efficientdet.reports.drawing import draw_detections
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import DecodedMasks


def drawn_rows(
    pixels: np.ndarray,
    rows: DetectionRows,
    names: ClassNames,
    *,
    orientation: int = 1,
    shorter_side: int | None = None,
) -> np.ndarray:
    """Return stored pixels [h, w, 3] uint8 rotated by their EXIF orientation, with all rows and upright labels.

    rows: in pixels of the stored image. shorter_side: see `draw_detections`.
    """
    return draw_detections(
        upright_image(pixels, orientation),
        upright_boxes(rows.boxes, orientation, size=pixels.shape[:2]),
        classes=np.searchsorted(names.category_ids, rows.category_ids),
        names=names.names,
        scores=rows.scores,
        track_ids=rows.track_ids,
        shorter_side=shorter_side,
        masks=None
        if rows.masks is None
        else DecodedMasks(rows.masks.tolist(), lambda mask: upright_image(mask, orientation)),
    )
