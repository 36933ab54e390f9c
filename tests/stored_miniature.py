"""A miniature's checkpoint and images of several sizes, for whatever runs stored detectors."""

from pathlib import Path

import numpy as np
from drawn_records import draw_records
from miniature import miniature_detector
from PIL import Image

from efficientdet.checkpoints.checkpoint import Description, write_arrays
from model.detection_model import named_variables


def store_miniature(folder: Path) -> list[Path]:
    """Write the checkpoint `folder`/ckpt, of the classes of the drawn data; three images, the last of another size."""
    drawn = draw_records(folder / "drawn", images={"val": 3}, side=80)
    arrays = {
        name: np.asarray(variable)
        for name, variable in named_variables(miniature_detector(len(drawn.class_names)).network).items()
    }
    write_arrays(
        str(folder / "ckpt"),
        arrays,
        Description(
            model_name="efficientdet-d0",
            hparams={"image_size": 64},
            categories=drawn.class_names.to_categories(),
            weights="raw",
        ),
    )
    images = sorted((drawn.folder / "val").glob("*.jpg"))
    with Image.open(images[2]) as image:
        image.resize((120, 50)).save(images[2])
    return images
