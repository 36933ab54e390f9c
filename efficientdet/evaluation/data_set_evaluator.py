"""The evaluator of a data set, whose ground truth is in its records or in a COCO JSON file."""

from dataset.class_names import ClassNames
from dataset.conversion.segmentation import UnusableSegmentation, validated_run_lengths
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import RecordIndex
from efficientdet.evaluation.data_ids import with_category_ids, with_record_ids
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import GroundTruth, ground_truth_from_dataset, read_ground_truth
from object_detection.coco.run_length_masks import RunLengths
from program_support.errors import InputError


def read_evaluator(index: RecordIndex | None, class_names: ClassNames, *, json_file: str | None) -> CocoEvaluator:
    """Return an evaluator for the ground truth of a COCO JSON file or, without one, of the records.

    The records may be left out if there is a file.

    Raises:
        InputError: the categories of the file are not the detector's classes.
    """
    if json_file is not None:
        truth = with_category_ids(read_ground_truth(json_file), class_names)
        truth = truth if index is None else with_record_ids(truth, index)
        return CocoEvaluator(truth, segmentations=lambda: _proved_segmentations(truth))
    assert index is not None  # there are records or a file
    truth = ground_truth_from_dataset(ground_truth_of_records(index, class_names), source="the records")

    def segmentations() -> list:
        annotations = ground_truth_of_records(index, class_names, with_masks=True)["annotations"]
        return [annotation["segmentation"] for annotation in annotations]

    return CocoEvaluator(truth, segmentations=segmentations)


def _proved_segmentations(truth: GroundTruth) -> list[RunLengths | None]:
    """Return the run lengths of each annotation; None without a mask or size.

    Raises:
        InputError: for an invalid mask.
    """
    checked = []
    for annotation in truth.annotations:
        segmentation, size = annotation.get("segmentation"), truth.image_sizes.get(annotation["image_id"])
        try:
            checked.append(validated_run_lengths(segmentation, size) if segmentation and size else None)
        except UnusableSegmentation as error:
            raise InputError(
                f"{truth.source}: annotations[{annotation['id'] - 1}] of image {annotation['image_id']} has {error}"
            ) from error
    return checked
