"""The four families under JAX: programs lowered for GPUs and TPUs, steps on eight devices; run by test_mesh_families.

    python mesh_families.py folder

The folder has NAME.npz with the weights of each family that is trained. Written into it are, under JAX, lowered.json,
the numbers of devices of all lowered programs, and jax.npz, reports and weights; under TensorFlow tensorflow.npz, the
same of one device.
"""

import json
import sys
from pathlib import Path
from unittest import mock

import jax
import keras
import numpy as np
from small_families import SMALL, batch_of, small_detector

from efficientdet.devices.distributed import World
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.optimization.build_step import build_train_step
from efficientdet.optimization.optimizer import build_optimizer
from efficientdet.training.batch_norm_calibration import Calibration
from model.detection_model import named_variables

# After a step of 0.01 Mask R-CNN is so near to a kink of a loss that rounding decides its gradient
RATES = (0.012, 0.02)
PLATFORMS = ("cuda", "tpu")
jit = jax.jit


class Lowered:
    """A compiled function, lowered for other platforms at its first call; calls run it here only if it `runs`."""

    def __init__(self, function, *, runs, devices, **options):
        self._function, self._runs, self._devices = jit(function, **options), runs, devices
        self._exported = None

    def __call__(self, *arguments):
        if self._exported is None:
            self._exported = jax.export.export(self._function, platforms=PLATFORMS)(*arguments)
            self._devices.append(self._exported.nr_devices)
        if self._runs:
            return self._function(*arguments)
        outputs = [jax.numpy.zeros(aval.shape, aval.dtype) for aval in self._exported.out_avals]
        return jax.tree.unflatten(self._exported.out_tree, outputs)


def lowering(devices: list[int], *, runs: bool):
    """Make every compiled program a `Lowered` one, which appends its number of devices to `devices`."""
    return mock.patch.object(jax, "jit", lambda *given, **more: Lowered(*given, runs=runs, devices=devices, **more))


def reports_and_weights(detector, hparams, *, devices, rates=RATES, runs=True) -> dict[str, np.ndarray]:
    """Training steps on several devices: reports and weights; the weights of before unless the step `runs`."""
    optimizer = build_optimizer(hparams, precision="float32")
    step = build_train_step(detector, optimizer, None, compiled=False, world=World(devices=devices), seed=1)
    found = {}
    for number, rate in enumerate(rates):
        report = step(batch_of(number, detector), rate)
        found |= {f"report/{number}/{name}": np.asarray(value) for name, value in report.items()}
    if runs:
        step.store()
    return found | {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}


def infer(detector) -> None:
    """Call inference and calibration."""
    batch = batch_of(0, detector)
    build_predict(detector, compiled=True).detect(batch.images, batch.sizes)
    Calibration(detector, use_xla=True)([batch])


def main_under_jax(folder: Path) -> None:
    """Lower the step on eight devices and the other programs on one, and take the steps of families with weights."""
    lowered, found = {}, {}
    for name in SMALL:
        is_trained = (file := folder / f"{name}.npz").exists()
        detector, hparams = small_detector(name, np.load(file) if is_trained else None)
        devices = lowered[name] = []
        with lowering(devices, runs=is_trained):
            rates = RATES if is_trained else RATES[:1]
            steps = reports_and_weights(detector, hparams, devices=8, rates=rates, runs=is_trained)
        if is_trained:
            found |= {f"{name}/{key}": value for key, value in steps.items()}
        with lowering(devices, runs=False):
            for variable in detector.network.variables:
                variable.assign(np.asarray(variable.value))  # on one device
            infer(detector)
    (folder / "lowered.json").write_text(json.dumps(lowered))
    np.savez(folder / "jax.npz", **found)


def main_under_tensorflow(folder: Path) -> None:
    """Take the steps on one device."""
    expected = {}
    for file in sorted(folder.glob("*.npz")):
        detector, hparams = small_detector(file.stem, np.load(file))
        steps = reports_and_weights(detector, hparams, devices=1)
        expected |= {f"{file.stem}/{key}": value for key, value in steps.items()}
    np.savez(folder / "tensorflow.npz", **expected)


if __name__ == "__main__":
    main = main_under_jax if keras.backend.backend() == "jax" else main_under_tensorflow
    main(Path(sys.argv[1]))
