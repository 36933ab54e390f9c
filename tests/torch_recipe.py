"""Weights by the recipe of golden/families/README.md: random ones that a name and a seed make, as torch holds them."""

import json
import re
import zlib

import numpy as np

_LAST_NORMS = {True: "bn3", False: "bn2"}  # of a residual branch, with and without bottlenecks
_FACTORS = (  # of a kernel's deviation, by its name
    (r"backbone\.fpn\..*\.weight", 0.7),
    (r"head\.classification_head\.cls_logits\.weight", 0.3),
    (r"head\.regression_head\.bbox_reg\.weight", 0.1),
    (r"loc\..*\.weight", 0.35),
    (r"conf\..*\.weight", 0.7),
    (r"rpn\.head\.(cls_logits|bbox_pred)\.weight", {"cls_logits": 0.5, "bbox_pred": 0.1}),
    (r"roi_heads\.box_predictor\.(cls_score|bbox_pred)\.weight", {"cls_score": 0.5, "bbox_pred": 0.3}),
)


def named_shapes(golden_folder, file, changed=None):
    """Names and shapes of a state dict in golden/families/names; `changed`: first sizes of arrays, by module name."""
    stored, changed = json.loads((golden_folder / "families" / "names" / f"{file}.json").read_text()), changed or {}
    shapes = {name: tuple(shape) for name, shape in stored.items() if not name.endswith("num_batches_tracked")}
    return {name: (changed.get(name.rsplit(".", 1)[0], shape[0]), *shape[1:]) for name, shape in shapes.items()}


def recipe_weights(shapes, seed):
    """torch's name -> float32 array, of `named_shapes`."""
    norms = {name.rsplit(".", 1)[0] for name in shapes if name.endswith("running_var")}
    has_bottlenecks = any(".bn3" in name for name in norms)
    return {
        name: _array(
            name,
            shape,
            np.random.default_rng([seed, zlib.crc32(name.encode())]),
            is_norm=name.rsplit(".", 1)[0] in norms,
            last_norm=_LAST_NORMS[has_bottlenecks],
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def _array(name, shape, rng, *, is_norm, last_norm):
    module, role = name.rsplit(".", 1)
    if role == "running_var":
        return rng.uniform(0.5, 1.5, shape)
    if role == "running_mean" or (is_norm and role == "bias"):
        return 0.1 * rng.standard_normal(shape)
    if is_norm:
        is_residual = re.search(r"layer\d\.(?:[4-6]\.)?\d+\.", f"{module}.") and module.endswith(last_norm)
        factor = 0.25 if is_residual else 0.7 if module.endswith("downsample.1") else 1.0
        return factor * rng.uniform(0.5, 1.5, shape)
    if role == "bias":
        return 0.05 * rng.standard_normal(shape) + (-3.5 if name == "head.classification_head.cls_logits.bias" else 0.0)
    return _factor(name) * np.sqrt(2 / np.prod(shape[1:])) * rng.standard_normal(shape)


def _factor(name):
    for pattern, factor in _FACTORS:
        if found := re.fullmatch(pattern, name):
            return factor[found[1]] if isinstance(factor, dict) else factor
    return 1.0


def drawn_steps(steps=20, *, size=128, classes=12):
    """For each step two images [H, W, 3] uint8, boxes [4, 4] yxyx and labels [4]: bright rectangles on noise, whose
    color says the class."""
    rng = np.random.default_rng(7)
    colors = rng.integers(0, 256, (classes, 3))
    for _ in range(steps):
        images = rng.integers(0, 100, (2, size, size, 3)).astype(np.uint8)
        corners = rng.integers(0, size - 80, (2, 4, 2)).astype(np.float32)
        boxes = np.concatenate([corners, corners + rng.integers(16, 80, (2, 4, 2))], axis=-1).astype(np.float32)
        labels = rng.integers(0, classes, (2, 4))
        for image, of_image, kinds in zip(images, boxes.astype(int), labels, strict=True):
            for (top, left, bottom, right), kind in zip(of_image, kinds, strict=True):
                image[top:bottom, left:right] = colors[kind]
        yield images, boxes, labels
