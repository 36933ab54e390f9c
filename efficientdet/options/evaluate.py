"""Options of an evaluation: the flags of eval.py and the arguments of `efficientdet.evaluate`."""

from typing import Annotated

from efficientdet.options.model import EvaluatedData, EvaluatedRecords, MachineOptions, RuntimeOptions, WeightsOptions
from program_support.checked_fields import Count, CountOrZero, Help, checked


@checked
class EvaluateOptions(EvaluatedData, WeightsOptions, MachineOptions, RuntimeOptions):
    """All options of an evaluation."""

    ckpt_path: Annotated[
        str | None,
        Help(
            "Checkpoint to evaluate: a prefix or a folder, written by this project, google/automl or NVIDIA; or a file "
            "of export.py (.onnx, .xml or .tflite) or a SavedModel."
        ),
    ] = None
    results: Annotated[
        str | None,
        Help(
            "JSON file with detections of any program in COCO's results format, evaluated instead of a checkpoint. "
            "Images are found by image_id or file name."
        ),
    ] = None
    batch_size: Annotated[Count, Help("Batch size per process, or per device under KERAS_BACKEND=jax.")] = 8
    eval_samples: EvaluatedRecords = 0
    enable_map_parallelization: Annotated[bool, Help("Read and decode images in parallel.")] = True
    bootstrap: Annotated[
        CountOrZero | None,
        Help(
            "Number of bootstrap resamples of the images, from which the 95 % intervals are computed; 0: no intervals. "
            "Default: 1000, or 0 where they would take more than about 10 seconds."
        ),
    ] = None
    testdev_dir: Annotated[str | None, Help("Output folder for the detections as a COCO test-dev submission.")] = None
    output_json: Annotated[str | None, Help("Output file for the COCO measures as JSON.")] = None
    report: Annotated[
        str | None,
        Help(
            "Output folder for report.html and report.json: precision-recall curves, confusion matrix, types of errors "
            "and the worst images."
        ),
    ] = None
    suspects: Annotated[
        str | None,
        Help(
            "Output folder for suspects.html: labels that are probably wrong, and proposed.json to correct them in. "
            "Evaluate on images that the model was not trained on."
        ),
    ] = None
    store_thresholds: Annotated[
        bool,
        Help(
            "Store the score threshold with the best F1 of each class in the checkpoint, for infer.py, serve.py and "
            "export.py. Evaluations by train.py always do so."
        ),
    ] = False
    calibrate_scores: Annotated[
        bool,
        Help(
            "Also find a map of the scores of each class to the probability that a detection is correct, kept where it "
            "is better on held-out images; stored by --store_thresholds. Evaluate on images that "
            "the model was not trained on."
        ),
    ] = False


@checked
class CompareOptions(EvaluatedData):
    """All options of a comparison."""

    models: Annotated[
        tuple[str, ...],
        Help(
            "Detectors to compare, two or more; also words without a flag. Each is a checkpoint (prefix or folder), a "
            "file of export.py, a SavedModel or a .json file with detections in COCO's results format. The first is "
            "the one that the others are compared with.",
            repeats=True,
        ),
    ] = ()
    output_dir: Annotated[str | None, Help("Output folder for compare.html and compare.json.")] = None
    common_classes: Annotated[
        bool,
        Help(
            "Compare on the classes that the data and all detectors have, such as before and after a class was added. "
            "Default: detectors with other classes than the data's are refused."
        ),
    ] = False
    eval_samples: EvaluatedRecords = 0
    bootstrap: Annotated[Count, Help("Number of bootstrap resamples of the images for the 95 % intervals.")] = 1000
