"""Training steps under JAX on one device and on several host devices; run by test_mesh.

    python mesh_probe.py found.npz

Arrays out: reports and weights by case.
"""

import re
import sys

import jax
import keras
import numpy as np
from miniature import miniature_detector

from efficientdet.devices.device import replicate
from efficientdet.devices.distributed import World, join_world
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.optimization.build_step import build_train_step
from efficientdet.optimization.optimizer import WeightAverage, build_optimizer
from efficientdet.training.batch_norm_calibration import Calibration
from model.batch_norm import BatchNormalization, divide_statistics
from model.detection_model import named_variables
from object_detection.structures import Batch, Objects

BATCH, STEPS = 8, 3


def batch_of(number: int) -> Batch:
    """Images of noise with boxes; the same for the same number."""
    random = np.random.default_rng(number)
    corner = random.uniform(0, 30, (BATCH, 4, 2))
    return Batch(
        images=random.integers(0, 256, (BATCH, 64, 64, 3), dtype=np.uint8),
        sizes=np.int32([[64, 64], [40, 64]] * (BATCH // 2)),
        objects=Objects(
            boxes=np.concatenate([corner, corner + random.uniform(8, 30, (BATCH, 4, 2))], axis=-1).astype(np.float32),
            classes=random.integers(0, 3, (BATCH, 4)).astype(np.int32),
            valid=random.random((BATCH, 4)) < 0.7,
            crowd=random.random((BATCH, 4)) < 0.1,
            difficult=np.zeros((BATCH, 4), bool),
            masks=np.zeros((BATCH, 4, 0, 0), np.uint8),
        ),
        image_ids=np.arange(BATCH, dtype=np.int64) + 2**40,
        positions=np.arange(BATCH, dtype=np.int64),
        scales=np.ones((BATCH, 2), np.float32),
    )


def trained(
    devices: int, *, accumulate_steps: int = 1, groups: int = 1, precision: str = "float32"
) -> dict[str, np.ndarray]:
    """Reports and weights after a few steps, and the bytes of the state on a device."""
    detector = miniature_detector(precision=precision)
    divide_statistics(detector.network, groups)
    hparams = hyperparameters_of("efficientdet-d0", {})
    optimizer = build_optimizer(hparams, precision=precision)
    optimizer.build(detector.network.trainable_variables)
    average = WeightAverage(list(named_variables(detector.network).values()), decay=0.9)
    world = World(devices=devices)
    step = build_train_step(detector, optimizer, average, compiled=True, world=world, accumulate_steps=accumulate_steps)
    found = {}
    for number in range(STEPS):
        report = step(batch_of(number), 0.05)
        assert len(report["loss"].sharding.device_set) == devices
        found |= {f"report/{number}/{name}": np.asarray(value) for name, value in report.items()}
    step.store()
    averages = average.packing.arrays(average.packed.value)
    found["average"] = np.concatenate([array.ravel() for array in averages])
    found |= {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}
    if groups == 1 and precision == "float32":
        found |= detections(detector)
    if devices == BATCH and precision == "float32":
        program, _, _ = step.lowered(batch_of(0)).compile().as_text().partition("\nENTRY")  # without what is in no loop
        found["sums in loops"] = np.asarray(len(re.findall(r" (all-reduce|all-gather|collective-permute)\(", program)))
    return found


def detections(detector) -> dict[str, np.ndarray]:
    """Detections with the trained weights, and batch statistics after a calibration."""
    batch = batch_of(99)
    predict = build_predict(detector, compiled=True)
    found, few = predict.detect(batch.images, batch.sizes), predict.detect(batch.images[:3], batch.sizes[:3])
    Calibration(detector, use_xla=True)([batch])
    statistics = [layer for layer in detector.network.layers if isinstance(layer, BatchNormalization)]
    return {
        **{f"detections/{name}": np.asarray(values) for name, values in found._asdict().items() if values is not None},
        "boxes of three images": np.asarray(few.boxes),
        **{f"calibrated/{layer.name}": np.asarray(layer.moving_variance.value) for layer in statistics},
    }


if __name__ == "__main__":
    assert keras.backend.backend() == "jax"
    assert jax.local_device_count() == 8
    cases = {
        "1": trained(1),
        "8": trained(8),
        "options on one": trained(1, accumulate_steps=2, groups=2),
        "options": trained(4, accumulate_steps=2, groups=2),
        "bfloat16": trained(8, precision="mixed_bfloat16"),
    }
    six = miniature_detector().network
    replicate(six, batch_size=6)
    world = join_world({}, group_size=2)
    np.savez(
        sys.argv[1],
        world=[world.devices, world.groups, world.sharing_statistics],
        devices=[len(variable.value.sharding.device_set) for variable in six.variables],
        **{f"{case}/{name}": value for case, found in cases.items() for name, value in found.items()},
    )
