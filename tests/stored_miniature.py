"""A miniature's checkpoint and images of several sizes, for whatever runs stored detectors."""

from pathlib import Path

import numpy as np
from drawn_records import draw_records
from miniature import miniature_detector
from PIL import Image

from dataset.class_names import ClassNames
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from model.detection_model import named_variables


def store_weights(prefix: str, class_names: ClassNames) -> None:
    """Write a miniature's checkpoint of these classes."""
    network = miniature_detector(len(class_names)).network
    write_arrays(
        prefix,
        {name: np.asarray(variable) for name, variable in named_variables(network).items()},
        Description(
            model_name="efficientdet-d0",
            hparams={"image_size": 64},
            categories=class_names.to_categories(),
            weights="raw",
        ),
    )


def store_miniature(folder: Path) -> list[Path]:
    """Write the checkpoint `folder`/ckpt, of the classes of the drawn data; three images, the last of another size."""
    drawn = draw_records(folder / "drawn", images={"val": 3}, side=80)
    store_weights(str(folder / "ckpt"), drawn.class_names)
    images = sorted((drawn.folder / "val").glob("*.jpg"))
    with Image.open(images[2]) as image:
        image.resize((120, 50)).save(images[2])
    return images
