"""What to say when a step does not fit into memory."""

from efficientdet.config import TrainingConfig
from efficientdet.device import peak_device_memory
from efficientdet.hyperparameters import height_and_width
from object_detection.errors import InputError

# Measured by the reference's recipes: D0 at 512 trains 200 images in 80 GB under mixed_float16 and 104 in TF32.
_BYTES_PER_IMAGE_OF_D0 = {"float32": 80e9 / 104, "mixed_float16": 80e9 / 200, "mixed_bfloat16": 80e9 / 200}


def out_of_memory(error: Exception, config: TrainingConfig) -> InputError:
    """One line with the largest batch that should fit."""
    height, width = height_and_width(config.hparams.image_size)
    precision = config.precision or ("mixed_float16" if config.amp else "float32")
    # Activations grow with the pixels and, from model to model, about with the channels of its feature network.
    channels = config.hparams.fpn_num_filters * config.hparams.fpn_cell_repeats / (64 * 3)
    per_image = _BYTES_PER_IMAGE_OF_D0[precision] * height * width / 512**2 * max(1.0, channels) ** 0.5
    memory = peak_device_memory()
    fitting = min(int(memory / per_image), config.batch_size - 1) if memory else config.batch_size // 2
    advice = f"--batch_size={fitting} should fit, with --accumulate_steps for as many images a step" if fitting >= 1 else \
        "not even one image fits: use a smaller model or hparam image_size"
    return InputError(f"out of memory at --batch_size={config.batch_size}, {height} x {width} pixels, {precision}: {advice}")
