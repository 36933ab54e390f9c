"""Compare detection in tiles with SAHI's, by the same network: AP, and milliseconds of an image in alternating turns.

`python sahi_tiles.py --model=MODEL --data=MONTAGES`, after `pip install --no-deps sahi shapely pybboxes`. MODEL was
trained on tiles; SAHI cuts the same ones, and merges by NMS, as it chooses for low scores, or by its GREEDYNMM.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import efficientdet
from dataset.files.image_files import read_image
from object_detection.coco.results import boxes_xywh

LEAST_SCORE = 0.001


def network_of(detector):
    """Return the network of a detector, as SAHI calls it."""
    from sahi.models.base import DetectionModel
    from sahi.prediction import ObjectPrediction

    class Network(DetectionModel):
        def set_model(self, model, **_) -> None:
            self.model = model
            self.category_mapping = {str(number): name for number, name in enumerate(model.class_names.names)}

        def set_device(self, device=None) -> None:
            self.device = "cpu"

        def perform_inference(self, image: np.ndarray) -> None:
            self._original_predictions = self.model.detect.untiled([image])[0]

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list=None, full_shape_list=None
        ):
            rows = self._original_predictions
            numbers = np.searchsorted(self.model.class_names.category_ids, rows.category_ids)
            shift, shape = (
                values[0] if values and isinstance(values[0], list) else values
                for values in (shift_amount_list, full_shape_list)
            )
            self._object_prediction_list_per_image = [
                [
                    ObjectPrediction(
                        bbox=[left, top, right, bottom],
                        category_id=int(number),
                        category_name=self.category_mapping[str(number)],
                        score=float(score),
                        shift_amount=shift or [0, 0],
                        full_shape=shape,
                    )
                    for (top, left, bottom, right), number, score in zip(
                        rows.boxes.tolist(), numbers, rows.scores, strict=True
                    )
                    if score >= self.confidence_threshold
                ]
            ]

    return Network(model=detector, confidence_threshold=LEAST_SCORE)


def by_sahi(network, image: np.ndarray, detector, *, greedy_nmm: bool) -> list[dict]:
    """Return results without image ids."""
    from sahi.predict import get_sliced_prediction

    height, width = detector.tiling.size
    found = get_sliced_prediction(
        image,
        network,
        slice_height=height,
        slice_width=width,
        overlap_height_ratio=detector.tiling.overlap,
        overlap_width_ratio=detector.tiling.overlap,
        perform_standard_pred=detector.tiling.whole,
        force_postprocess_type=greedy_nmm,
        verbose=0,
    )
    ids = detector.class_names.category_ids
    return [
        {"category_id": ids[one.category.id], "bbox": list(one.bbox.to_xywh()), "score": float(one.score.value)}
        for one in found.object_prediction_list
    ]


def by_us(detector, image: np.ndarray) -> list[dict]:
    """Return results without image ids."""
    [rows] = detector.detect([image])
    columns = rows.category_ids.tolist(), boxes_xywh(rows.boxes).tolist(), rows.scores.tolist()
    return [{"category_id": one, "bbox": box, "score": score} for one, box, score in zip(*columns, strict=True)]


def main() -> None:
    """Print AP, AP50 and milliseconds of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    arguments = parser.parse_args()
    annotations = Path(arguments.data, f"annotations/instances_{arguments.split}.json")
    images = json.loads(annotations.read_text(encoding="utf-8"))["images"]
    detector = efficientdet.load_detector(arguments.model)
    ways = {"ours": lambda image: by_us(detector, image)}
    if detector.tiling is not None:  # a model of complete images has no tiles to compare
        network = network_of(detector)
        ways["SAHI, NMS"] = lambda image: by_sahi(network, image, detector, greedy_nmm=False)
        ways["SAHI, GREEDYNMM"] = lambda image: by_sahi(network, image, detector, greedy_nmm=True)
    results: dict[str, list[dict]] = {name: [] for name in ways}
    took: dict[str, list[float]] = {name: [] for name in ways}
    detector.detect([np.zeros((64, 64, 3), np.uint8)])  # compiled before it is timed
    for image in images:
        pixels = read_image(str(Path(arguments.data, "images", image["file_name"])))
        for name, detect in ways.items():
            start = time.perf_counter()
            found = detect(pixels)
            took[name].append(1000 * (time.perf_counter() - start))
            results[name] += [{"image_id": image["id"], **one} for one in found]
    truth = COCO(str(annotations))
    for name in ways:
        evaluation = COCOeval(truth, truth.loadRes(results[name]), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        ap, ap50, milliseconds = *evaluation.stats[:2], statistics.median(took[name])
        print(f"{name}: AP {ap:.3f} AP50 {ap50:.3f}, {milliseconds:.0f} ms")


if __name__ == "__main__":
    main()
