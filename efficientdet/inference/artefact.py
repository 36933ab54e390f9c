"""Detection by an exported file alone: neither TensorFlow nor Keras is imported."""

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.export.artefact_metadata import read_artefact
from efficientdet.inference.exported_network import ExportedNetwork, copied
from efficientdet.inference.image_rows import Detect, rows_of_image


def artefact_detection(path: str, *, runtime: str = "onnxruntime") -> tuple[Detect, ClassNames]:
    """What an ONNX file of export.py finds, and its classes. Raises InputError for another file."""
    model, metadata = read_artefact(path)
    names, resize = metadata.class_names, metadata.resize
    category_ids = np.asarray(names.category_ids, np.int64)
    network = ExportedNetwork(model, runtime=runtime)

    def detect(images):
        boxed, sizes, scales = map(np.stack, zip(*map(resize, images), strict=True))
        found = network(boxed, sizes, copied)
        return [_rows(outputs, image, scale) for outputs, image, scale in zip(found, images, scales, strict=True)]

    def _rows(outputs, image, scale):
        boxes, scores, classes, *masks = (values[outputs[1] > 0] for values in outputs)
        return rows_of_image(boxes * np.tile(scale, 2), scores, category_ids[classes], image=image,
                             masks=masks[0] if masks else None,
                             masks_in_whole_pixels=metadata.description.hparams.get("masks_in_whole_pixels", False))

    return detect, names
