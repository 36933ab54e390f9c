"""Options of the choice of images to label next: the flags of next_images.py."""

from typing import Annotated

from program_support.checked_fields import Count, Help, checked


@checked
class NextImagesOptions:
    """All options of the choice of images to label next."""

    model: Annotated[
        str | None, Help("Detector: an output folder of quickstart.py, or a checkpoint (prefix or folder).")
    ] = None
    images: Annotated[
        tuple[str, ...],
        Help(
            "Unlabeled images: an image, a folder or a glob pattern. Labeled ones among them are left out.",
            repeats=True,
        ),
    ] = ()
    count: Annotated[Count, Help("Number of images to choose.")] = 50
    labeled: Annotated[
        str | None,
        Help(
            "Glob pattern of the TFRecords of the labeled images, from which the chosen ones shall differ. Default: "
            "those of the output folder of quickstart.py."
        ),
    ] = None
    output_dir: Annotated[
        str, Help("Output folder for copies of the images, proposals of boxes and a page that says why.")
    ] = "next_images"
    format: Annotated[tuple[str, ...], Help("Formats of the proposals, comma-separated: ")] = (
        "label_studio",
        "coco",
        "yolo",
    )
