"""Ground truth for evaluation from records."""

from typing import Any

import numpy as np
import tensorflow as tf

from dataset.class_names import ClassNames
from dataset.input.crop import decoded_mask
from dataset.input.record_batches import RecordBatches, Rows, read_records, without_autograph
from dataset.records.record_index import RecordIndex, RecordReader
from dataset.records.schema import image_size, parse_record
from object_detection.coco.run_length_masks import RunLengths, run_lengths
from object_detection.structures import Tensor
from program_support.errors import InputError
from program_support.processor import available_cores


def ground_truth_of_records(index: RecordIndex, class_names: ClassNames, *, with_masks: bool = False) -> dict:
    """Return the contents of records as COCO's dictionary (images, annotations, categories), boxes in original pixels.

    Difficult objects have `difficult` 1. `with_masks` adds the run lengths of each mask as `segmentation`, None if the
    record has none. JPEGs are not decoded, masks only if requested.

    Raises:
        InputError: for an id that two images share and for an unknown category id.
    """
    reader, known = RecordReader(index), set(class_names.category_ids)

    @without_autograph
    def annotations_of(serialized: Tensor, _: Tensor) -> dict[str, Tensor]:
        record = parse_record(serialized, with_masks=with_masks)
        return {"size": image_size(record.pop("encoded")), **record}

    records = read_records(reader, np.arange(len(index))).map(annotations_of, num_parallel_calls=available_cores())
    files: dict[int, str] = {}
    images: list[dict] = []
    annotations: list[dict] = []
    for tensors in RecordBatches(
        records.prefetch(tf.data.AUTOTUNE),
        reader,
        rows_of=lambda number: Rows(np.array([number]), np.array([number])),
        example=annotations_of,
    ):
        record = {name: values.numpy() for name, values in tensors.items()}
        image = _image_entry(record)
        if image["id"] in files:
            raise InputError(f"{image['file_name']}: image id {image['id']} is also that of {files[image['id']]}")
        files[image["id"]] = image["file_name"]
        unknown = sorted(set(record["category_ids"].tolist()) - known)
        if unknown:
            raise InputError(
                f"{image['file_name']}: image {image['id']} has category ids {unknown}; "
                f"the categories are {sorted(known)}"
            )
        images.append(image)
        annotations += _annotation_entries(record, image, first_id=len(annotations) + 1)
    return {"images": images, "annotations": annotations, "categories": class_names.to_categories()}


def _image_entry(record: dict[str, Any]) -> dict:
    height, width = record["size"].tolist()
    file_name = record["file_name"].decode("utf-8", "replace")
    return {"id": int(record["image_id"]), "file_name": file_name, "height": height, "width": width}


def _annotation_entries(record: dict[str, Any], image: dict, *, first_id: int) -> list[dict]:
    sides = np.array([image["height"], image["width"]] * 2, np.float64)
    boxes = record["boxes"].astype(np.float64) * sides  # [N, 4] yxyx pixels
    areas = record["areas"] if len(record["areas"]) == len(boxes) else np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    return [
        {
            "id": first_id + i,
            "image_id": image["id"],
            "category_id": int(record["category_ids"][i]),
            "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
            "area": float(areas[i]),
            "iscrowd": int(record["crowd"][i]),
            **({"difficult": 1} if record["difficult"][i] else {}),
            **({"segmentation": _segmentation(record, i)} if "masks" in record else {}),
        }
        for i, (y_min, x_min, y_max, x_max) in enumerate(boxes.tolist())
    ]


def _segmentation(record: dict[str, Any], number: int) -> RunLengths | None:
    """Return the mask of an object; None if the record has none."""
    masks = record["masks"]
    if len(masks) != len(record["boxes"]) or not masks[number]:
        return None
    return run_lengths(decoded_mask(masks[number], record["size"], record["file_name"]) != 0)
