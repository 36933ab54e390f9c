"""Training steps under JAX on one device and on several host devices; run by test_mesh.

    python mesh_probe.py found.npz

Arrays out: reports and weights by number of devices.
"""

import sys

import jax
import keras
import numpy as np
from miniature import miniature_detector

from efficientdet.devices.distributed import World
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.predict import build_predict
from efficientdet.training.batch_norm_calibration import Calibration
from efficientdet.training.build_step import build_train_step
from efficientdet.training.optimizer import build_optimizer
from efficientdet.training.weight_average import WeightAverage
from model.detector import named_variables
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


def trained(devices: int, *, accumulate_steps: int = 1) -> dict[str, np.ndarray]:
    """Reports and weights after a few steps."""
    detector = miniature_detector()
    hparams = hyperparameters_of("efficientdet-d0", {})
    optimizer = build_optimizer(hparams, precision="float32")
    average = WeightAverage(list(named_variables(detector.network).values()), decay=0.9)
    world = World(devices=devices)
    step = build_train_step(detector, optimizer, average, compiled=True, world=world, accumulate_steps=accumulate_steps)
    found = {}
    for number in range(STEPS):
        report = step(batch_of(number), 0.05)
        assert len(report["loss"].sharding.device_set) == devices
        found |= {f"report/{number}/{name}": np.asarray(value) for name, value in report.items()}
    step.store()
    predict = build_predict(detector, compiled=True)
    batch = batch_of(99)
    detections = predict.detect(batch.images, batch.sizes)
    found |= {
        f"detections/{name}": np.asarray(values) for name, values in detections._asdict().items() if values is not None
    }
    Calibration(detector, use_xla=True)([batch])
    found |= {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}
    return found | {"average": np.asarray(average.packed.value)}


if __name__ == "__main__":
    assert keras.backend.backend() == "jax"
    assert jax.local_device_count() == 8
    np.savez(
        sys.argv[1],
        **{f"1/{name}": value for name, value in trained(1).items()},
        **{f"8/{name}": value for name, value in trained(8).items()},
        **{f"accumulated/{name}": value for name, value in trained(4, accumulate_steps=2).items()},
        **{f"accumulated on one/{name}": value for name, value in trained(1, accumulate_steps=2).items()},
    )
