"""Download the images of Open Images that have a box of the selected classes; a step of dataset/get_open_images.sh.

    python dataset/download_open_images.py --object_annotations_file=open_images/validation-annotations-bbox.csv \
        --class_descriptions_file=open_images/class-descriptions-boxable.csv --classes=Apple,Banana --max_images=1000 \
        --split=validation --image_dir=open_images/validation --image_ids_file=open_images/validation.images.txt
"""

import sys
from pathlib import Path
from typing import Annotated

if __name__ == "__main__" and not __package__:  # run by path: sys.path[0] is dataset/, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from absl import flags

from dataset.conversion.formats.open_images.open_images_download import SITE, download_images
from dataset.conversion.formats.open_images.open_images_flags import define_choice_flags, read_choice
from program_support import command_line
from program_support.atomic_files import unfinished_folder, write_text
from program_support.checked_fields import Count, Share, between
from program_support.command_line import define_flag
from program_support.errors import InputError


def define_flags() -> None:
    """Define the flags of this script."""
    define_choice_flags()
    flags.DEFINE_enum(
        "split", None, ["train", "validation", "test"], "Split of the images in the CSV file.", required=True
    )
    flags.DEFINE_string("image_dir", "", "Output folder for the images.")
    flags.DEFINE_string("image_ids_file", "", "Output text file for the ids of the images, one per line.")
    define_flag(
        "max_images", Count | None, None, "Maximum number of images, in the order of their (random) ids. Default: all."
    )
    define_flag("connections", Annotated[int, between(1, 1024)], 32, "Number of parallel downloads.")
    flags.DEFINE_string("site", SITE, "Base URL of the images (train/ID.jpg and so on).")
    define_flag("max_bad_fraction", Share, 0.01, "Maximum fraction of the images that the server may lack.")


def main() -> None:
    """Download the images that the flags select."""
    values = flags.FLAGS
    if not values.image_dir:
        raise InputError("give --image_dir")
    folder = Path(values.image_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder / "index") as index_folder:
            images = read_choice(index_folder).images[: values.max_images]
            if values.image_ids_file:
                write_text(
                    values.image_ids_file, "".join(f"{image.file_name.removesuffix('.jpg')}\n" for image in images)
                )
            missing = download_images(
                (image.file_name for image in images),
                folder,
                total=len(images),
                connections=values.connections,
                site=f"{values.site.rstrip('/')}/{values.split}",
                max_bad_fraction=values.max_bad_fraction,
            )
        listed = folder.with_name(f"{folder.name}.missing.txt")
        write_text(listed, "".join(f"{name}\n" for name in missing))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}; run this again to resume") from error
    print(
        f"images   {len(images) - len(missing)} in {folder}"
        + (f"; the server lacks {len(missing)}, listed in {listed}" if missing else "")
    )


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
