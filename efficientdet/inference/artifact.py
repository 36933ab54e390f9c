"""Detection by an exported file alone: neither TensorFlow nor Keras is imported."""

from collections.abc import Sequence

import numpy as np

from efficientdet.artifacts.artifact_files import kind_of, read_artefact
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.inference_runtimes import require_package
from efficientdet.inference.exported_network import ExportedNetwork, copied
from efficientdet.inference.image_rows import OpenedModel, rows_of_image
from program_support.errors import InputError


def artefact_runtime(path: str, runtime: str, *, asked_by: str) -> str:
    """What runs a file of export.py: the chosen runtime where that can, its own where "keras" was left as it was.

    Raises InputError where the file is none, the runtime cannot run it, or is not installed.
    """
    if (kind := kind_of(path)) is None:
        raise InputError(f"{asked_by}: {path} is no file of export.py that detects by itself")
    runtime = kind.runtimes[0] if runtime == "keras" else runtime
    if runtime not in kind.runtimes:
        raise InputError(f"{asked_by}: {path} is of {kind.name}; {runtime} does not run that, {kind.runtimes[0]} does")
    require_package(runtime, asked_by=asked_by)
    return runtime


def artefact_detection(path: str, *, runtime: str) -> OpenedModel:
    """What a file of export.py finds, run by what `artefact_runtime` says. Raises InputError for another file."""
    model, metadata = read_artefact(path)
    names, resize = metadata.class_names, metadata.resize
    category_ids = np.asarray(names.category_ids, np.int64)
    network = ExportedNetwork(model, runtime=runtime, path=path)

    def detect(images):
        boxed, sizes, scales = map(np.stack, zip(*map(resize, images), strict=True))
        found = network(boxed, sizes, copied)
        return [_rows(outputs, image, scale) for outputs, image, scale in zip(found, images, scales, strict=True)]

    def _rows(outputs, image, scale):
        _check(outputs, len(names), path=path)
        boxes, scores, classes, *masks = (values[outputs[1] > 0] for values in outputs)
        return rows_of_image(boxes * np.tile(scale, 2), scores, category_ids[classes], image=image,
                             masks=masks[0] if masks else None,
                             masks_in_whole_pixels=metadata.description.hparams.get("masks_in_whole_pixels", False))

    return OpenedModel(detect, names, ScoreThresholds.stored_in(metadata.description))


def _check(outputs: Sequence[np.ndarray], class_count: int, *, path: str) -> None:
    """Raises InputError for outputs of one image that are not those of a file that detects."""
    shapes = [values.shape for values in outputs]
    if len(shapes) < 3 or shapes[:3] != [(*shapes[1][:1], 4), shapes[1][:1], shapes[1][:1]]:
        raise InputError(f"{path}: puts out {', '.join(map(str, map(list, shapes)))} for an image; wanted boxes [D, 4], scores "
                         "[D] and classes [D]")
    classes = outputs[2][outputs[1] > 0]
    if classes.size and not 0 <= classes.min() <= classes.max() < class_count:
        raise InputError(f"{path}: finds classes {classes.min()} to {classes.max()}; it names {class_count}, counted from 0")
