"""The training step of the backend in use."""

import keras

from efficientdet.devices.distributed import World
from efficientdet.training.optimizer import PackedOptimizer
from efficientdet.training.step import TrainStep
from efficientdet.training.weight_average import WeightAverage
from model.detector import Detector
from program_support.errors import InputError


def build_train_step(
    detector: Detector, optimizer: PackedOptimizer, average: WeightAverage | None, *, compiled: bool,
    world: World | None = None, accumulate_steps: int = 1, seed: int = 0,
) -> TrainStep:
    """The step of the backend in use; `compiled`: by XLA (JAX always is). `seed`: of what targets draw at random.

    A batch is worked off in `accumulate_steps` equal parts whose gradients add up to one update. Raises InputError for parts
    of a detector that learns from its outputs: what its losses are divided by is known only after the last part.
    """
    if accumulate_steps > 1 and detector.learns_from_outputs:
        raise InputError(f"--accumulate_steps={accumulate_steps}: expected 1 for this model, which learns from its own outputs")
    optimizer.build(detector.network.trainable_variables)
    if keras.backend.backend() == "jax":
        from efficientdet.training.jax_step import JaxStep as Backend
    else:
        from efficientdet.training.tensorflow_step import TensorflowStep as Backend
    return Backend(detector, optimizer, average, world=world or World(), parts=accumulate_steps, compiled=compiled, seed=seed)
