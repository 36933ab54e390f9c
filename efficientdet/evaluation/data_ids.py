"""The ids of records and detector in the ground truth of a COCO file: images by file name, classes by name."""

from dataclasses import replace

from dataset.class_names import ClassNames
from dataset.files.untrusted_values import shown
from dataset.records.foreign_records import image_names_of_text_ids
from dataset.records.record_index import RecordIndex
from dataset.records.schema import ids_of_texts
from object_detection.coco.ground_truth import GroundTruth
from program_support.errors import InputError


def with_record_ids(truth: GroundTruth, index: RecordIndex) -> GroundTruth:
    """Return the ground truth with the image ids of the records; images are matched by file name if ids are text.

    Raises:
        InputError: no file name matches.
    """
    names = image_names_of_text_ids(index)
    if not names:
        return truth
    id_of = dict(zip([name for name, _ in names], ids_of_texts([text for _, text in names]), strict=True))
    new_id = {
        image_id: id_of[name]
        for image_id, path in truth.file_names.items()
        if (name := path.replace("\\", "/").rpartition("/")[2]) in id_of
    }
    if not new_id:
        raise InputError(
            f"{truth.source}: has no image named {names[0][0]}; the image ids of the records are text, so "
            "images are matched by file name"
        )
    return replace(
        truth,
        image_sizes={new_id[image_id]: size for image_id, size in truth.image_sizes.items() if image_id in new_id},
        file_names={new_id[image_id]: truth.file_names[image_id] for image_id in new_id},
        annotations=tuple(
            {**annotation, "image_id": new_id[annotation["image_id"]]}
            for annotation in truth.annotations
            if annotation["image_id"] in new_id
        ),
    )


def with_category_ids(truth: GroundTruth, class_names: ClassNames) -> GroundTruth:
    """Return the ground truth with the detector's category ids; classes are matched by name.

    Raises:
        InputError: for a class that only one of the two has.
    """
    ours = dict(zip(class_names.names, class_names.category_ids, strict=True))
    names = [name.strip() for name in truth.categories.values()]
    if sorted(names) != sorted(ours):
        name = next(name for name in [*names, *ours] if names.count(name) != (name in ours))
        raise InputError(
            f"{truth.source}: has {names.count(name)} categories named {shown(name)}, the detector has "
            f"{int(name in ours)}; expected the same classes"
        )
    new_id = {category_id: ours[name] for category_id, name in zip(truth.categories, names, strict=True)}
    if all(category_id == same for category_id, same in new_id.items()):
        return truth
    return replace(
        truth,
        categories=dict(zip(class_names.category_ids, class_names.names, strict=True)),
        annotations=tuple(
            {**annotation, "category_id": new_id[annotation["category_id"]]} for annotation in truth.annotations
        ),
    )
