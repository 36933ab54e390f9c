"""Settings of a detector from the options of a program. Imports neither Keras nor TensorFlow."""

from collections.abc import Mapping
from typing import Any

from dataset.class_files import parse_class_names
from dataset.files.file_kinds import holds_records
from dataset.files.image_files import find_images
from dataset.files.untrusted_values import error_context
from efficientdet.configuration.inference_runtimes import require_runtime
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.overrides import parse_overrides, split_label_map
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of
from efficientdet.options.model import CheckpointOptions, MachineOptions, ModelOptions, RuntimeOptions, WeightsOptions
from program_support.errors import InputError


def hyperparameters(options: ModelOptions, **option_names: str) -> Hyperparameters:
    """Return the hyperparameters of --model_name, --hparams and `option_names` (hyperparameter=option).

    An option that is given (not None), such as --lr, overrides --hparams, as in the reference.
    """
    given = {key: value for key, name in option_names.items() if (value := getattr(options, name)) is not None}
    return with_overrides(with_overrides(_defaults(options), parse_overrides(options.hparams)), given)


def checked_overrides(options: ModelOptions, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return --hparams, overridden by `given`.

    Raises:
        InputError: --model_name does not accept one of them.
    """
    overrides = {**parse_overrides(options.hparams), **(given or {})}
    with_overrides(_defaults(options), split_label_map(overrides)[0])
    return overrides


def _defaults(options: ModelOptions) -> Hyperparameters:
    return hyperparameters_of(DEFAULT_MODEL if options.model_name is None else options.model_name, {})


def model_config(
    ckpt_path: str | None, overrides: Mapping[str, Any], options: CheckpointOptions, **settings: Any
) -> ModelConfig:
    """Return the configuration of a checkpoint. `settings` are further fields.

    google/automl's hyperparameter label_map names classes as --class_names does.
    """
    overrides, label_map = split_label_map(overrides)
    with error_context("--class_names:"):
        named = parse_class_names(options.class_names) if options.class_names else label_map
    if isinstance(options, MachineOptions):
        settings = {"precision": options.precision, "amp": options.amp, "use_xla": options.use_xla, **settings}
    return ModelConfig(
        checkpoint_classes=named,
        ckpt_path=ckpt_path,
        model_name=DEFAULT_MODEL if options.model_name is None else options.model_name,
        model_name_given=options.model_name is not None,
        overrides=overrides,
        averaged=not isinstance(options, WeightsOptions) or options.weights != "raw",
        **settings,
    )


def runtime_settings(options: RuntimeOptions) -> dict[str, Any]:
    """Return --runtime and --int8_images as fields of `ModelConfig`.

    Raises:
        InputError: a package is missing, or options are in conflict.
    """
    chosen, images = options.runtime or "keras", options.int8_images
    if images and chosen != "openvino":
        raise InputError(f"--int8_images needs --runtime=openvino; --runtime is {chosen}")
    if chosen != "keras":
        require_runtime(chosen, asked_by=f"--runtime={chosen}")
        if isinstance(options, MachineOptions) and (options.amp or options.precision not in (None, "float32")):
            raise InputError(f"--runtime={chosen} computes in float32; --amp and --precision need --runtime=keras")
    if images:
        require_runtime("onnxruntime", asked_by="--int8_images")
        images = tuple(find_images(images, flag="int8_images"))
        if records := next(filter(holds_records, images), None):
            raise InputError(f"--int8_images: {records}: holds records; expected images")
    return {"runtime": chosen, "int8_images": images}


def first_given(options: Any, names: tuple[str, ...]) -> str | None:
    """Return the first of the options that has another value than its default; None if none has."""
    return next((name for name in names if getattr(options, name) != getattr(type(options), name)), None)
