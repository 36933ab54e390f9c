"""Pictures that were labelled as EXIF turns them, while boxes are of the stored pixels."""

import warnings
from pathlib import Path

from PIL import Image

from dataset.files.bounded_files import open_regular_file
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, exif_orientation


def labelled_as_turned(path: Path, annotated_size: tuple[int, int]) -> str | None:
    """What is wrong with a picture whose size in the annotations, (height, width), is that of the turned picture; else None.

    It is not mended, for sizes tell of quarter turns alone: of the same tool's pictures those turned by half would stay wrong.
    """
    try:
        with warnings.catch_warnings(), open_regular_file(path) as file, Image.open(file, formats=FORMATS) as image:
            warnings.simplefilter("ignore")  # about metadata
            width, height = image.size
            orientation = exif_orientation(image)
    except DECODING_ERRORS:
        return None
    if orientation < 5 or annotated_size != (width, height):
        return None
    return (f"labelled as turned by its EXIF orientation {orientation}: the annotations say {annotated_size[1]}x"
            f"{annotated_size[0]}, {width}x{height} pixels are stored, and boxes are of the stored pixels; store the pictures "
            "upright (mogrify -auto-orient), those turned by half too, which no size betrays, and convert again")
