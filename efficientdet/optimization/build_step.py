"""The training step of the backend in use."""

import keras

from efficientdet.devices.distributed import World
from efficientdet.optimization.optimizer import PackedOptimizer, WeightAverage
from efficientdet.optimization.step import TrainStep
from model.detection_model import DetectionModel
from program_support.errors import InputError


def build_train_step(
    detector: DetectionModel,
    optimizer: PackedOptimizer,
    average: WeightAverage | None,
    *,
    compiled: bool,
    world: World | None = None,
    accumulate_steps: int = 1,
    seed: int = 0,
) -> TrainStep:
    """Return the training step of the Keras backend in use.

    Args:
      detector: the detector to train.
      optimizer: the optimizer; it is built for the trainable weights.
      average: the moving average of the weights, None without one.
      compiled: whether TensorFlow compiles the step with XLA; JAX always does.
      world: the processes that train together; None: this process only.
      accumulate_steps: the number of equal parts of a batch whose gradients are summed for one update.
      seed: random seed of the sampling of targets.

    Raises:
      InputError: accumulation for a detector whose counts depend on its outputs: its loss normalizers are known only
          after the last part.
    """
    counts_objects = type(detector).counts_of_objects is not DetectionModel.counts_of_objects
    if accumulate_steps > 1 and detector.learns_from_outputs and not counts_objects:
        raise InputError(
            f"--accumulate_steps={accumulate_steps}: expected 1 for this model, which learns from its own outputs"
        )
    optimizer.build(detector.network.trainable_variables)
    step_class: type[TrainStep]
    if keras.backend.backend() == "jax":
        from efficientdet.optimization.jax_step import JaxStep

        step_class = JaxStep
    else:
        from efficientdet.optimization.tensorflow_step import TensorflowStep

        step_class = TensorflowStep
    return step_class(
        detector, optimizer, average, world=world or World(), parts=accumulate_steps, compiled=compiled, seed=seed
    )
