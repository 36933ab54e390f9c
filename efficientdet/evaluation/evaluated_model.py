"""A restored model, ready to detect in records."""

from typing import NamedTuple

from dataset.input.input_config import InputConfig
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import replicate
from efficientdet.devices.runtime import Runtime
from efficientdet.families.inputs import input_config
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.inference.runtimes import Predictor


class EvaluatedModel(NamedTuple):
    """A model with the configuration of its inputs and its detection in batches of them."""

    restored: Restored
    inputs: InputConfig
    predict: Predictor


def open_evaluated(
    config: ModelConfig, restored: Restored, runtime: Runtime, *, batch_size: int, in_parallel: bool
) -> EvaluatedModel:
    """Return a model for global batches of `batch_size` records, which are decoded in parallel or by one thread."""
    inputs = input_config(
        restored.hparams,
        class_names=restored.class_names,
        batch_size=batch_size,
        num_threads=0 if in_parallel else 1,
    )
    replicate(restored.detector.network, batch_size=batch_size)
    predict = build_predict(
        restored.detector,
        compiled=runtime.use_xla,
        runtime=config.runtime,
        int8_images=config.int8_images,
        resize=restored.resize,
    )
    return EvaluatedModel(restored, inputs, predict)
