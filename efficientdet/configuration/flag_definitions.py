"""Flags that several entry points share. Imports neither Keras nor TensorFlow."""

from collections.abc import Callable, Mapping
from typing import Any

from absl import flags
from absl.flags import FlagValues

from dataset.class_files import CLASS_FILE_SUFFIXES, parse_class_names
from dataset.files.file_kinds import holds_records
from dataset.files.image_files import find_images
from dataset.files.untrusted_values import error_context
from efficientdet.configuration.inference_runtimes import require_runtime
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.overrides import parse_overrides, split_label_map
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of, model_names
from efficientdet.options.model import RUNTIMES
from efficientdet.options.removed_flags import ALIASES, GONE
from program_support.checked_fields import Config
from program_support.command_line import REMOVED, Define
from program_support.errors import InputError
from program_support.field_flags import define_flags_of, options_of_flags

FLAGS = flags.FLAGS  # Flags of the command line; each call of the Python interface has its own FlagValues.


def define_model_flags(values: FlagValues = FLAGS) -> None:
    """Define --model_name and --hparams."""
    define = Define(values)
    define.string("model_name", DEFAULT_MODEL, f"Model: one of {', '.join(model_names())}.")
    define.string("hparams", "", "Hyperparameters: key=value items, comma-separated, or a .yaml file.")


def define_machine_flags(values: FlagValues = FLAGS) -> None:
    """Define --amp, --precision and --use_xla."""
    define = Define(values)
    define.bool(
        "amp", None, "Automatic mixed precision: mixed_float16 instead of float32. Default: on with an accelerator."
    )
    define.enum(
        "precision", None, ["float32", "mixed_float16", "mixed_bfloat16"], "Precision policy of Keras. Overrides --amp."
    )
    define.bool("use_xla", None, "Compile with XLA. Default: on with an accelerator.")


def define_runtime_flag(values: FlagValues = FLAGS) -> None:
    """Define --runtime and --int8_images, for entry points that only detect."""
    define = Define(values)
    define.enum(
        "runtime",
        "keras",
        RUNTIMES,
        "Runtime of the network: the Keras backend, or ONNX Runtime or OpenVINO on "
        "a CPU, for which the network is exported with folded batch norm.",
    )
    define.multi_string(
        "int8_images",
        None,
        "With --runtime=openvino: run convolutions in int8, calibrated on these images; "
        "use training images. An image, a folder or a glob pattern.",
    )


def define_class_names_flag(values: FlagValues = FLAGS) -> None:
    """Define --class_names, for entry points that open checkpoints."""
    Define(values).string(
        "class_names",
        None,
        "Classes of a checkpoint that does not name them (google/automl, NVIDIA, PyTorch): names in the order of their "
        f"ids, comma-separated, or a file of them ({', '.join(CLASS_FILE_SUFFIXES)}). Default: classes.json, a label "
        "map or another such file beside the checkpoint, else those of COCO, or numbers.",
    )


def finish_flags(program: str, values: FlagValues = FLAGS) -> None:
    """Define the aliases and the removed flags of a program. Must be called after its other flags are defined."""
    for name, original in ALIASES.get(program, {}).items():
        flags.DEFINE_alias(name, original, flag_values=values)
    for name, gone in GONE.get(program, {}).items():
        define = flags.DEFINE_bool if gone.boolean else flags.DEFINE_string
        define(name, None, f"{REMOVED}{gone.reason}.", flag_values=values)
        flags.register_validator(
            name,
            lambda value, gone=gone: value in (None, "") or str(value) in gone.passes,
            message=f"has been removed: {gone.reason}",
            flag_values=values,
        )


def program(
    name: str, options: type[Config], operation: Callable[[Config], Any]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the functions that define a program's flags, and that run its operation with the options they state."""

    def define_flags() -> None:
        define_flags_of(options)
        finish_flags(name)

    def main() -> None:
        operation(options_of_flags(options))

    return define_flags, main


def typed_name(name: str) -> str:
    """Return the name under which a flag was given: its own name or an alias."""
    given = [
        alias
        for aliases in ALIASES.values()
        for alias, original in aliases.items()
        if original == name and alias in flags.FLAGS and flags.FLAGS[alias].present
    ]
    return given[0] if given else name


def runtime_settings(values: FlagValues = FLAGS) -> dict:
    """Return --runtime and --int8_images.

    Raises:
        InputError: for a missing package or conflicting flags.
    """
    chosen, int8_images = values.runtime, values.int8_images
    if int8_images and chosen != "openvino":
        raise InputError(f"--int8_images needs --runtime=openvino; --runtime is {chosen}")
    if chosen != "keras":
        require_runtime(chosen, asked_by=f"--runtime={chosen}")
        if values.amp or values.precision not in (None, "float32"):
            raise InputError(f"--runtime={chosen} computes in float32; --amp and --precision need --runtime=keras")
    if int8_images:
        require_runtime("onnxruntime", asked_by="--int8_images")
        int8_images = find_images(int8_images, flag="int8_images")
        if records := next(filter(holds_records, int8_images), None):
            raise InputError(f"--int8_images: {records}: holds records; expected images")
    return {"runtime": chosen, "int8_images": tuple(int8_images or ())}


def machine_settings(values: FlagValues = FLAGS) -> dict:
    """Return the arguments of `start_runtime`."""
    return {"precision": values.precision, "amp": values.amp, "use_xla": values.use_xla}


def checked_overrides(given: Mapping[str, Any] | None = None, *, values: FlagValues = FLAGS) -> dict[str, Any]:
    """Return --hparams, overridden by `given`.

    Raises:
        InputError: --model_name does not accept one of them.
    """
    overrides = {**parse_overrides(values.hparams), **(given or {})}
    with_overrides(hyperparameters_of(values.model_name, {}), split_label_map(overrides)[0])
    return overrides


def model_config(
    ckpt_path: str | None, overrides: Mapping[str, Any], *, values: FlagValues = FLAGS, **settings: Any
) -> ModelConfig:
    """Return the configuration of --model_name, --weights, --class_names and the arguments.

    `settings` are further fields. google/automl's hyperparameter label_map names classes as --class_names does.
    """
    overrides, label_map = split_label_map(overrides)
    with error_context("--class_names:"):
        named = parse_class_names(values.class_names) if values.class_names else label_map
    return ModelConfig(
        checkpoint_classes=named,
        ckpt_path=ckpt_path,
        model_name=values.model_name,
        model_name_given=model_name_given(values),
        overrides=overrides,
        averaged=values.weights == "averaged",
        **settings,
    )


def hyperparameters(options: FlagValues = FLAGS, **option_names: str) -> Hyperparameters:
    """Return the hyperparameters of --model_name, --hparams and `option_names` (hyperparameter=option).

    An option that is given (not None), such as --lr, overrides --hparams, as in the reference.
    """
    given = {key: value for key, name in option_names.items() if (value := getattr(options, name)) is not None}
    hparams = hyperparameters_of(options.model_name, {})
    return with_overrides(with_overrides(hparams, parse_overrides(options.hparams)), given)


def model_name_given(values: FlagValues = FLAGS) -> bool:
    """Return whether --model_name was given on the command line."""
    return values["model_name"].present > 0
