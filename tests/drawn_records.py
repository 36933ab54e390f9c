"""Drawn images as records, the way a user makes them: `dataset.synthetic`, then the converter."""

from pathlib import Path
from typing import NamedTuple

from dataset.class_names import ClassNames, read_class_names
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from dataset.synthetic import draw_data_set


class Drawn(NamedTuple):
    """Where everything lies."""

    folder: Path  # <split>/<image id>.jpg, annotations/instances_<split>.json, <split>-00000-of-00002.tfrecord
    class_names: ClassNames

    def records(self, split: str) -> tuple[str, ...]:
        """The shards of a split."""
        return tuple(sorted(map(str, self.folder.glob(f"{split}-*.tfrecord"))))

    def annotations(self, split: str) -> str:
        """The COCO json of a split."""
        return str(self.folder / "annotations" / f"instances_{split}.json")


def draw_records(folder: Path, *, images: dict[str, int], side: int = 64, with_masks: bool = False) -> Drawn:
    """Draw and convert `images[split]` images for each split, two shards each."""
    draw_data_set(folder, images=images, image_size=(side, side), seed=1)
    for split in images:
        convert(
            read_coco(
                object_annotations_file=str(folder / "annotations" / f"instances_{split}.json"),
                with_segmentation=with_masks,
            ),
            ConversionConfig(
                image_folder=str(folder / split),
                output_prefix=str(folder / split),
                num_shards=2,
                processes=1,
                max_bad_fraction=0.0,
                include_masks=with_masks,
            ),
            log=lambda line: None,
        )
    return Drawn(folder, read_class_names(folder / "annotations" / f"instances_{next(iter(images))}.json"))
