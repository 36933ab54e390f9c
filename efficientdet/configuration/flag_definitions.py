"""Flags that several entry points share, and what they mean; free of Keras and TensorFlow."""

from collections.abc import Mapping
from typing import Any

from absl import flags
from absl.flags import FlagValues

from dataset.files.image_files import find_images
from efficientdet.configuration.inference_runtimes import RUNTIMES, require_runtime
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.configuration.removed_flags import ALIASES, GONE
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of, model_names
from program_support.command_line import Define
from program_support.errors import InputError

FLAGS = flags.FLAGS  # of the command line; the Python interface has values of its own for each call


def define_model_flags(values: FlagValues = FLAGS) -> None:
    """--model_name and --hparams."""
    define = Define(values)
    define.string("model_name", DEFAULT_MODEL, f"One of {', '.join(model_names())}.")
    define.string("hparams", "", "Hyperparameters: key=value items with commas between, or a .yaml file.")


def define_machine_flags(values: FlagValues = FLAGS) -> None:
    """--amp, --precision, --use_xla."""
    define = Define(values)
    define.bool("amp", None, "mixed_float16 instead of float32. Default: on where there is an accelerator.")
    define.enum("precision", None, ["float32", "mixed_float16", "mixed_bfloat16"], "Wins over --amp.")
    define.bool("use_xla", None, "Compile with XLA. Default: on where there is an accelerator.")


def define_runtime_flag(values: FlagValues = FLAGS) -> None:
    """--runtime, for entry points that only detect."""
    define = Define(values)
    define.enum("runtime", "keras", RUNTIMES, "What runs the network: Keras's backend, or the exported network, with "
                                               "batch statistics folded in, in a runtime made for inference on a CPU.")
    define.multi_string("int8_images", None, "With --runtime=openvino: convolutions in 8 bits, for the ranges that "
                                                   "values have on these images (an image, a folder or a glob; of training).")


def finish_flags(program: str, values: FlagValues = FLAGS) -> None:
    """Define other names of a program's flags, and the flags that are gone; to be called after all its other flags."""
    for name, original in ALIASES.get(program, {}).items():
        flags.DEFINE_alias(name, original, flag_values=values)
    for name, gone in GONE.get(program, {}).items():
        define = flags.DEFINE_bool if gone.boolean else flags.DEFINE_string
        define(name, None, f"Gone: {gone.reason}.", flag_values=values)
        flags.register_validator(name, lambda value, gone=gone: value in (None, "") or str(value) in gone.passes,
                                 message=f"is gone: {gone.reason}", flag_values=values)


def typed_name(name: str) -> str:
    """Return the name under which a flag was given: its own, or another name of it."""
    given = [alias for aliases in ALIASES.values() for alias, original in aliases.items()
             if original == name and alias in flags.FLAGS and flags.FLAGS[alias].present]
    return given[0] if given else name


def runtime_settings(values: FlagValues = FLAGS) -> dict:
    """--runtime and --int8_images. Raises InputError where packages are missing or other flags do not go with them."""
    chosen, int8_images = values.runtime, values.int8_images
    if int8_images and chosen != "openvino":
        raise InputError(f"--int8_images goes with --runtime=openvino; --runtime is {chosen}")
    if chosen != "keras":
        require_runtime(chosen, asked_by=f"--runtime={chosen}")
        if values.amp or values.precision not in (None, "float32"):
            raise InputError(f"--runtime={chosen} computes in float32; --amp and --precision are Keras's")
    if int8_images:
        require_runtime("onnxruntime", asked_by="--int8_images")
        int8_images = find_images(int8_images, flag="int8_images")
    return {"runtime": chosen, "int8_images": tuple(int8_images or ())}


def machine_settings(values: FlagValues = FLAGS) -> dict:
    """What `start_runtime` wants."""
    return {"precision": values.precision, "amp": values.amp, "use_xla": values.use_xla}


def checked_overrides(given: Mapping[str, Any] | None = None, *, values: FlagValues = FLAGS) -> dict[str, Any]:
    """Return --hparams and on top of them `given`. Raises InputError where --model_name does not have or take one of them."""
    overrides = {**parse_overrides(values.hparams), **(given or {})}
    with_overrides(hyperparameters_of(values.model_name, {}), overrides)
    return overrides


def model_config(ckpt_path: str | None, overrides: Mapping[str, Any], *, values: FlagValues = FLAGS,
                 **settings: Any) -> ModelConfig:
    """Return the model that --model_name, --weights and the arguments name; `settings` are further fields."""
    return ModelConfig(ckpt_path=ckpt_path, model_name=values.model_name, model_name_given=model_name_given(values),
                       overrides=overrides, averaged=values.weights == "averaged", **settings)


def hyperparameters(values: FlagValues = FLAGS, **flag_names: str) -> Hyperparameters:
    """Of --model_name, then the defaults of the flags (hyperparameter=flag), then --hparams, then the flags that were given.

    A flag wins over --hparams, as in the reference: its whole configuration as a file does not undo a --lr.
    """
    defaults = {key: values[name].default for key, name in flag_names.items()}
    given = {key: values[name].value for key, name in flag_names.items() if values[name].present}
    hparams = hyperparameters_of(values.model_name, {key: value for key, value in defaults.items() if value is not None})
    return with_overrides(with_overrides(hparams, parse_overrides(values.hparams)), given)


def model_name_given(values: FlagValues = FLAGS) -> bool:
    """Whether --model_name stood on the command line."""
    return values["model_name"].present > 0
