"""Detection with a checkpoint, which needs TensorFlow (or JAX), as rows of results."""

from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import replicate
from efficientdet.inference.exported_network import ExportedNetwork
from efficientdet.inference.image_rows import LoadedModel, ResizingDetector
from efficientdet.inference.model_loading import load_model
from efficientdet.inference.predict import HostDetector, build_predict
from model import tensorflow_cpu


def detect_with_checkpoint(
    restored: Restored,
    *,
    batch_size: int,
    compiled: bool,
    runtime: str = "keras",
    int8_images: tuple[str, ...] = (),
    network: ExportedNetwork | None = None,
) -> LoadedModel:
    """Return the detection of a restored detector in up to `batch_size` images at a time, resized by its rule.

    `network` replaces the detector's own network.
    """
    predict = (
        build_predict(
            restored.detector, compiled=compiled, runtime=runtime, int8_images=int8_images, resize=restored.resize
        )
        if network is None
        else HostDetector(restored.detector, network)
    )
    return LoadedModel.from_description(
        ResizingDetector(predict, resize=restored.resize, description=restored.description, batch_size=batch_size),
        restored.description,
    )


def detect_with_model(
    config: ModelConfig, *, batch_size: int, owns_process: bool = True, once: bool = False
) -> LoadedModel:
    """Open a model and return its detection in up to `batch_size` images at a time.

    once: the network runs a single time. On a CPU, tracing and compiling it would then take longer than the
    run.
    """
    restored, runtime = load_model(config, owns_process=owns_process)
    replicate(restored.detector.network, batch_size=batch_size)
    loaded = detect_with_checkpoint(
        restored,
        batch_size=batch_size,
        compiled=runtime.use_xla,
        runtime=config.runtime,
        int8_images=config.int8_images,
    )
    on_cpu = restored.detector.detects_on_host and not runtime.use_xla and tensorflow_cpu.applies()
    if once and config.runtime == "keras" and on_cpu:
        return loaded._replace(detect=tensorflow_cpu.run_eagerly(loaded.detect))
    return loaded
