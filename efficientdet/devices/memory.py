"""The batch size that fits in memory: the default batch size, and the error message for one that did not fit."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.device import peak_device_memory, total_device_memory, total_host_memory
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime, accelerator_count
from efficientdet.families.hyperparameters import Hyperparameters
from program_support.errors import InputError

_BYTES_PER_NUMBER = {"float32": 4, "mixed_float16": 2, "mixed_bfloat16": 2}
# A training step holds more than all layer outputs. On a CPU 1.04 to 1.12 times (D0 in float32, peak memory of
# `python benchmarks/training_step.py --steps=1 --size=S --batch_size=B`: 3031, 5511 and 9308 MiB at S=512, B=2, 6, 12;
# 3038 and 7048 at S=256, B=8, 32). The reference's recipes fill 80 GB with 104 images of D0 in TF32 and 200 in float16:
# 1.22 and 1.27.
_OF_TRAINING = 1.25
_OF_EVALUATION = 0.2  # 0.14 of D0 at S=512 on a CPU, `build_predict`: 1056, 1534 and 2244 MiB at B=2, 8, 16
_BESIDE_IMAGES = 2e9  # bytes for libraries, network and compiled programs; 1.9e9 in the same runs
# Shares of the total memory, not of the free memory: one machine always gives the same batch size.
_SHARE_OF_DEVICE, _SHARE_OF_HOST = 0.9, 0.6
_RESOURCE_EXHAUSTED = 8  # google.rpc.Code of a tf.errors.OpError
_MOST_IMAGES, _MOST_IMAGES_ON_CPU = 64, 16  # the reference's; larger ones are not faster on a CPU


@dataclass(frozen=True)
class Memory:
    """Memory available to one process, in bytes."""

    usable: float
    total: float
    place: str


def with_batch_sizes(
    config: TrainingConfig, runtime: Runtime, world: World, *, log: Callable[[str], None]
) -> TrainingConfig:
    """Return the configuration with default batch sizes, equal on all ranks; log them."""
    if config.batch_size is not None and config.eval_batch_size is not None:
        return config
    on_device = accelerator_count() > 0
    memory = available_memory(on_device=on_device, local_ranks=world.local_size)
    most = _MOST_IMAGES if on_device else _MOST_IMAGES_ON_CPU
    flags, sizes = [], {}
    for name, share in (("batch_size", _OF_TRAINING), ("eval_batch_size", _OF_EVALUATION)):
        if getattr(config, name) is None:
            images = most
            if memory is not None:
                image_bytes = bytes_per_image(config.hparams, runtime.precision, share=share)
                images = fitting_batch(memory, image_bytes, most=most)
            sizes[name] = min(world.gather(images))
            flags.append(f"--{name}={sizes[name]}")
    where = "memory unknown" if memory is None else f"{memory.total / 1e9:.0f} GB {memory.place}"
    log(f"{' '.join(flags)}, chosen automatically: {where}, {runtime.precision}")
    return replace(config, **sizes)


def available_memory(*, on_device: bool, local_ranks: int) -> Memory | None:
    """Return the memory of this rank's accelerator, or this rank's share of the host memory.

    None if the memory of the accelerator is unknown.
    """
    if not on_device:
        total = total_host_memory() / local_ranks
        return Memory(_SHARE_OF_HOST * total, total, "for this process on a CPU")
    device_total = total_device_memory()
    return Memory(_SHARE_OF_DEVICE * device_total, device_total, "on the accelerator") if device_total else None


def bytes_per_image(hparams: Hyperparameters, precision: str, *, share: float = _OF_TRAINING) -> float:
    """Return the bytes of memory per image of a batch, `share` of the size of its layer outputs."""
    height, width = hparams.input_size
    numbers = hparams.family.activations_per_pixel(hparams)
    return share * numbers * height * width * _BYTES_PER_NUMBER[precision]


def fitting_batch(memory: Memory, image_bytes: float, *, most: int) -> int:
    """Return `most`, halved until it fits; at least 1. Halving keeps it stable under small changes of memory."""
    while most > 1 and _BESIDE_IMAGES + most * image_bytes > memory.usable:
        most //= 2
    return most


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of TensorFlow, JAX or the host reports a lack of memory."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error):  # jax.errors.JaxRuntimeError
        return True
    return getattr(error, "error_code", None) == _RESOURCE_EXHAUSTED


def out_of_memory(config: TrainingConfig, runtime: Runtime, *, local_ranks: int) -> InputError:
    """Return the error for a training that ran out of memory, with the largest batch size that should fit."""
    assert config.batch_size is not None  # set by `with_batch_sizes`
    height, width = config.hparams.input_size
    memory = available_memory(on_device=accelerator_count() > 0, local_ranks=local_ranks)
    # The peak is less than the total if other processes use the device.
    usable = peak_device_memory() or (memory.usable if memory else 0)
    fitting = int((usable - _BESIDE_IMAGES) / bytes_per_image(config.hparams, runtime.precision))
    if fitting >= config.batch_size:
        fitting = config.batch_size // 2
    advice = (
        f"--batch_size={fitting} should fit; use --accumulate_steps to keep the global batch size"
        if fitting >= 1
        else "not even one image fits: use a smaller model or hparam image_size"
    )
    return InputError(
        f"out of memory at --batch_size={config.batch_size} --eval_batch_size={config.eval_batch_size}, "
        f"{height} x {width} pixels, {runtime.precision}: {advice}; during evaluation, lower --eval_batch_size"
    )


@contextlib.contextmanager
def report_out_of_memory(*, batch_size: int) -> Iterator[None]:
    """Raise InputError if the block runs out of memory; for programs that only detect."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        advice = f"try --batch_size={batch_size // 2}" if batch_size > 1 else "use a smaller model or hparam image_size"
        raise InputError(f"out of memory at --batch_size={batch_size}: {advice}") from error
