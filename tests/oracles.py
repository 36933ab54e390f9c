"""Slow second implementations, in plain Python and float64, one box at a time; and where the oracle numbers lie."""

import itertools
import math
from pathlib import Path

import keras
import numpy as np
from keras import ops

from model.detection_model import losses
from object_detection.geometry.box_coding import PLAIN_BOX_CODER
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.structures import Targets

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"


def to_numpy(tensors):
    """Tensors or weights of any backend, alone or in tuples and dictionaries, as arrays."""
    return keras.tree.map_structure(np.asarray, tensors)


def area(box) -> float:
    """Area of one box."""
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def iou(one, other) -> float:
    """Intersection over union of two boxes."""
    one, other = np.float64(one), np.float64(other)
    intersection = area([max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])])
    return intersection / (area(one) + area(other) - intersection) if intersection > 0 else 0.0


def generalized_iou(one, other, kind: str) -> float:
    """IoU minus the penalty of GIoU, DIoU or CIoU, of two boxes that are not empty."""
    one, other = np.float64(one), np.float64(other)
    overlap = iou(one, other)
    hull = [min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])]
    if kind == "iou":
        return overlap
    if kind == "giou":
        union = (area(one) + area(other)) / (1 + overlap)  # since union + intersection = both areas
        return overlap - (area(hull) - union) / area(hull)
    centers = math.dist((one[:2] + one[2:]) / 2, (other[:2] + other[2:]) / 2)
    distance_iou = overlap - (centers / math.dist(hull[:2], hull[2:])) ** 2
    if kind == "diou":
        return distance_iou
    slants = [math.atan((box[3] - box[1]) / (box[2] - box[0])) for box in (one, other)]
    shape = 4 / math.pi**2 * (slants[0] - slants[1]) ** 2
    return distance_iou - (shape**2 / (1 - overlap + shape) if shape else 0.0)


def encode(box, anchor) -> list[float]:
    """(t_y, t_x, t_h, t_w) of one box."""
    box, anchor = np.float64(box), np.float64(anchor)
    shifts, scales = [], []
    for low, high in ((0, 2), (1, 3)):
        side = anchor[high] - anchor[low]
        shifts.append(((box[low] + box[high]) / 2 - (anchor[low] + anchor[high]) / 2) / side)
        scales.append(math.log(max(box[high] - box[low], 1e-8) / side))
    return shifts + scales


def decode(offsets, anchor) -> list[float]:
    """The box that has these offsets from an anchor."""
    offsets, anchor = np.float64(offsets), np.float64(anchor)
    low, high = [], []
    for axis in (0, 1):
        side = anchor[axis + 2] - anchor[axis]
        center = anchor[axis] + side / 2 + offsets[axis] * side
        low.append(center - side * math.exp(offsets[axis + 2]) / 2)
        high.append(center + side * math.exp(offsets[axis + 2]) / 2)
    return low + high


def anchors(image_size, *, levels, num_scales, aspect_ratios, anchor_scale) -> np.ndarray:
    """[A, 4]: every anchor by itself, in the order level, row, column, octave, aspect."""
    boxes = []
    for level in levels:
        rows, columns = (math.ceil(side / 2**level) for side in image_size)
        stride_y, stride_x = image_size[0] / rows, image_size[1] / columns
        for row in range(rows):
            for column in range(columns):
                for octave in range(num_scales):
                    for width, height in aspect_ratios:
                        size = anchor_scale * 2 ** (octave / num_scales)
                        y, x = (row + 0.5) * stride_y, (column + 0.5) * stride_x
                        half_height, half_width = size * stride_y * height / 2, size * stride_x * width / 2
                        boxes.append([y - half_height, x - half_width, y + half_height, x + half_width])
    return np.array(boxes)


def match(boxes, anchor_boxes, *, positive_iou, negative_iou=None, claim="best", strictly=False):
    """Of one image: for each anchor the number of its object (-1: none), and whether it is between, by every overlap in
    float32. The rules step by step as their papers and programs tell them."""
    pairs = np.float32(boxes).reshape(-1, 1, 4), np.float32(anchor_boxes)[None]
    sides = np.minimum(pairs[0][..., 2:], pairs[1][..., 2:]) - np.maximum(pairs[0][..., :2], pairs[1][..., :2])
    shared = np.maximum(sides, 0).prod(axis=-1)
    areas = [np.maximum(values[..., 2:] - values[..., :2], 0).prod(axis=-1) for values in pairs]
    overlap = np.where(shared > 0, shared / np.maximum(areas[0] + areas[1] - shared, np.float32(1e-30)), np.float32(0))
    matched, between = np.full(len(anchor_boxes), -1), np.zeros(len(anchor_boxes), bool)
    if not len(overlap):
        return matched, between
    own, best = overlap.argmax(axis=0), overlap.max(axis=0)
    reaching = best > np.float32(positive_iou) if strictly else best >= np.float32(positive_iou)
    matched[reaching] = own[reaching]
    if negative_iou is not None:
        between = ~reaching & (best >= np.float32(negative_iou))
    for place, number in _claims(overlap, own, claim):
        matched[place], between[place] = number, False
    return matched, between


def _claims(overlap, own, claim):
    """(anchor, object) of what is learned whatever the threshold; later ones overrule earlier ones."""
    touching = [number for number in range(len(overlap)) if overlap[number].max() > 0]
    if claim == "best":
        return [(overlap[number].argmax(), number) for number in reversed(touching)]
    if claim == "best, last":
        return [(overlap[number].argmax(), number) for number in touching]
    places = {place for number in touching for place in np.flatnonzero(overlap[number] == overlap[number].max())}
    return [(place, own[place]) for place in places]  # "ties"


def dense_assignment(objects, anchor_boxes, *, positive_iou=0.5):
    """Targets by every overlap of every object, [B, M, A] in memory, in float32 and step by step: to the last bit what
    `assign_anchors` has to find without."""
    anchor_boxes = ops.convert_to_tensor(anchor_boxes)
    learnable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
    overlap = ops.where(learnable[..., None], pairwise_iou(objects.boxes, anchor_boxes), -1.0)
    best_anchor = ops.where(ops.max(overlap, axis=2) > 0.0, ops.argmax(overlap, axis=2), -1)  # [B, M]
    forcing = ops.cast(best_anchor[..., None] == ops.arange(anchor_boxes.shape[0], dtype=best_anchor.dtype), "int8")
    forced = ops.any(forcing, axis=1)
    positive = ops.logical_or(ops.max(overlap, axis=1) >= positive_iou, forced)
    matched = ops.where(forced, ops.argmax(forcing, axis=1), ops.argmax(overlap, axis=1))
    box_deltas = PLAIN_BOX_CODER.encode(ops.take_along_axis(objects.boxes, matched[..., None], axis=1), anchor_boxes)
    classes = ops.take_along_axis(objects.classes, matched, axis=1)
    return Targets(
        ops.where(positive, classes, 0),
        ops.where(positive[..., None], box_deltas, 0.0),
        positive,
        ops.zeros_like(positive),
    )


def focal_loss(logit: float, target: int, *, alpha: float, gamma: float, label_smoothing: float = 0.0) -> float:
    """Focal loss of one logit of moderate size, from probabilities."""
    probability = 1 / (1 + math.exp(-logit))
    true, weight = (probability, alpha) if target else (1 - probability, 1 - alpha)
    smoothed = target * (1 - label_smoothing) + label_smoothing / 2
    cross_entropy = -smoothed * math.log(probability) - (1 - smoothed) * math.log(1 - probability)
    return weight * (1 - true) ** gamma * cross_entropy


def huber_loss(error: float, *, delta: float) -> float:
    """Huber loss of one error."""
    return error**2 / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)


def top_candidates(class_logits: np.ndarray, count: int):
    """[A, K] of one image -> scores, classes, anchors of the flattened top k, by a stable sort of everything."""
    flat = np.argsort(-class_logits.ravel(), kind="stable")[:count]
    num_classes = class_logits.shape[1]
    return 1 / (1 + np.exp(-np.float64(class_logits.ravel()[flat]))), flat % num_classes, flat // num_classes


def read_outputs(logits, deltas, anchor_boxes, *, config, level_sizes=None, clip_to=None, within=None):
    """Return (box, class, score) of each detection of one image, best first. Score by score, in float64.

    Candidates without an area in an image of size `within` (height, width) are left out.
    """
    entries = []  # (score, what it is counted with, class, anchor)
    levels = np.repeat(np.arange(len(level_sizes or [0])), level_sizes or [len(logits)])
    for anchor, row in enumerate(np.float64(logits)):
        if config.scores == "sigmoid":
            scores = dict(enumerate(1 / (1 + np.exp(-row))))
        else:
            powers = np.exp(row - row.max())
            scores = dict(enumerate((powers / powers.sum())[1:]))
        entries += [
            (score, kind if config.candidates_per_class else levels[anchor], kind, anchor)
            for kind, score in scores.items()
        ]
    entries.sort(key=lambda entry: -entry[0])
    most, counted, candidates = config.candidates_per_level or config.candidates_per_class, {}, []
    for entry in entries:
        counted[entry[1]] = counted.get(entry[1], 0) + 1
        if not most or counted[entry[1]] <= most:
            candidates.append(entry)
    candidates = candidates[: config.candidates]
    boxes = []
    for _, _, _, anchor in candidates:
        offsets = np.float64(deltas[anchor]) / config.box_coder.weights
        if config.box_coder.log_size_limit is not None:
            offsets[2:] = np.minimum(offsets[2:], config.box_coder.log_size_limit)
        box = decode(offsets, anchor_boxes[anchor])
        boxes.append(np.clip(box, 0, [*clip_to, *clip_to]) if clip_to is not None else box)
    if within is not None:
        kept = [area(np.clip(box, 0, [*within, *within])) > 0 for box in boxes]
        boxes, candidates = ([*itertools.compress(values, kept)] for values in (boxes, candidates))
    survivors = suppress(
        np.array(boxes), [entry[0] for entry in candidates], np.array([entry[2] for entry in candidates]), config=config
    )
    return [(boxes[number], candidates[number][2], score) for number, score in survivors]


def suppress(boxes, scores, classes, *, config):
    """Of one image: (box number, score) of what survives, best first. Per class where the configuration says so."""
    if config.method == "none":
        found = [(number, float(score)) for number, score in enumerate(scores) if score > config.score_threshold]
        return sorted(found, key=lambda entry: -entry[1])[: config.max_detections]
    groups = sorted(set(classes.tolist())) if config.per_class else [None]
    survivors = []
    for group in groups:
        members = [number for number in range(len(boxes)) if group is None or classes[number] == group]
        survivors += _suppress_group(boxes, scores, members, config)
    return sorted(survivors, key=lambda survivor: (-survivor[1], survivor[0]))[: config.max_detections]


def _suppress_group(boxes, scores, members, config):
    alive = {number: float(scores[number]) for number in members if scores[number] > config.score_threshold}
    chosen = []
    while alive and len(chosen) < config.max_detections:
        best = max(alive, key=lambda number: (alive[number], -number))
        chosen.append((best, alive.pop(best)))
        for number in list(alive):
            overlap = iou(boxes[best], boxes[number])
            if config.method == "gaussian":
                alive[number] *= math.exp(-(overlap**2) / config.sigma)
            elif overlap > config.iou_threshold:
                alive[number] = 0.0
            if alive[number] <= config.score_threshold:
                del alive[number]
    return chosen


def random_boxes(rng: np.random.Generator, shape, *, side: float = 100.0) -> np.ndarray:
    """[*shape, 4] float32 boxes with sides of at least 1, inside a square of this side."""
    corner = rng.uniform(0, side * 0.7, (*shape, 2))
    size = rng.uniform(1, side * 0.3, (*shape, 2))
    return np.concatenate([corner, corner + size], axis=-1).astype(np.float32)


def losses_of_batch(detector, batch, *, training: bool = True):
    """Return all losses of one batch by name, as one process takes them."""
    outputs = detector.training_outputs(batch.images, batch.sizes, training=training)
    targets = detector.targets(batch.objects, outputs if detector.learns_from_outputs else None)
    return {**losses(detector, outputs, targets, detector.counts(targets)), **detector.regularization()}
