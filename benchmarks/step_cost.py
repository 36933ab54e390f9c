"""Print the cost of a JAX training step as XLA counts it, and the memory of its state.

`python benchmarks/step_cost.py [--model=efficientdet-d0 --size=512 --batch_sizes 2 4 --devices=1 --shard_state]`

The step is not run, so that its batch may be larger than the memory of this machine. The operations are counted in the
program of the complete batch before it is optimized. With `--compile` it is compiled for the devices of this machine,
and memory traffic, temporary memory and compile time are printed, per device: on a CPU those of a CPU's program. There
`XLA_FLAGS=--xla_force_host_platform_device_count=8` provides eight devices.
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from training_step import random_batch

from efficientdet.devices.device import device_name
from efficientdet.devices.distributed import World
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.training.build_step import build_train_step
from efficientdet.training.optimizer import build_optimizer
from efficientdet.training.weight_average import WeightAverage
from model.detector import Detector, named_variables, set_value

BOXES = 40  # object slots per image
MIB = 2**20


def untrained_detector(hparams, *, precision: str) -> Detector:
    """Return a detector whose weights are zeros, because drawing them takes longer than building the network."""
    with keras.StatelessScope():
        detector = build_detector(hparams, num_classes=80, precision=precision)
        for variable in detector.network.variables:
            set_value(variable, np.zeros(variable.shape, variable.dtype))
    return detector


def main() -> None:
    """Print one line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="efficientdet-d0")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_sizes", type=int, nargs="*", default=[2, 4], help="Images per device.")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--shard_state", action="store_true", help="As train.py --shard_optimizer_state.")
    parser.add_argument("--compile", action="store_true", help="Also compile, which takes minutes on a CPU.")
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16"])
    arguments = parser.parse_args()
    hparams = hyperparameters_of(arguments.model, {"image_size": arguments.size})
    devices, parts = arguments.devices, arguments.devices if arguments.shard_state else 1
    detector = untrained_detector(hparams, precision=arguments.precision)
    optimizer = build_optimizer(hparams, precision=arguments.precision)
    optimizer.build(detector.network.trainable_variables, parts=parts)
    variables, decay = list(named_variables(detector.network).values()), hparams.moving_average_decay
    average = WeightAverage(variables, decay=decay, parts=parts) if decay else None
    world = World(devices=devices, state_parts=parts)
    step = build_train_step(detector, optimizer, average, compiled=True, world=world)
    vectors = optimizer.packing.size * len(optimizer.slots) + (average.packing.size if average else 0)
    state = 4 * (sum(variable.value.size for variable in detector.network.variables) + vectors // parts)
    print(
        f"{arguments.model} at {arguments.size} px, {arguments.precision}, {devices} x {device_name()}; state of a "
        f"device: {state / MIB:.1f} MiB"
    )
    for batch_size in arguments.batch_sizes:
        mask_size = getattr(hparams, "mask_size", 0)
        batch = random_batch(arguments.size, devices * batch_size, boxes=BOXES, slots=BOXES, mask_size=mask_size)
        start = time.monotonic()
        lowered = step.lowered(keras.tree.map_structure(np.asarray, batch))
        seconds = time.monotonic() - start
        flops = lowered.cost_analysis()["flops"]
        print(f"{batch_size} images per device: {flops / 1e9:.1f} GFLOP in all, lowered in {seconds:.1f} s", flush=True)
        if arguments.compile:
            start = time.monotonic()
            compiled = lowered.compile()
            seconds = time.monotonic() - start
            cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
            print(
                f"  compiled in {seconds:.1f} s: {cost['flops'] / 1e9:.1f} GFLOP, "
                f"{cost['bytes accessed'] / 1e9:.2f} GB accessed, "
                f"{memory.argument_size_in_bytes / MIB:.1f} MiB of arguments, "
                f"{memory.temp_size_in_bytes / MIB:.1f} MiB temporary",
                flush=True,
            )


if __name__ == "__main__":
    main()
