"""Configuration of a detector: checkpoint, model, precision and runtime."""

import ast
import importlib.util
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset.class_names import COCO_2017, ClassNames, class_names_from, parse_class_names
from dataset.files.file_kinds import holds_records
from dataset.files.image_files import find_images
from dataset.files.untrusted_values import error_context, shown
from dataset.files.xml_and_yaml import ValueLoader, read_yaml
from efficientdet.families.hyperparameters import Hyperparameters, flattened, with_overrides
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of
from efficientdet.options.model import CheckpointOptions, MachineOptions, ModelOptions, RuntimeOptions, WeightsOptions
from program_support.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a stored detector, or of one with random weights.

    Attributes:
        ckpt_path: prefix of a checkpoint; None: random weights with a fixed seed.
        model_name: model of a checkpoint that does not state its model.
        model_name_given: raise an error if the checkpoint states another model.
        overrides: flat hyperparameters that override the checkpoint's, such as {"nms_configs.method": "hard"}.
        class_names: classes of the data; None: the checkpoint's.
        checkpoint_classes: classes of a checkpoint that does not name them; None: those of a file beside it, else
            COCO's or numbered.
        averaged: use the moving average of the weights if the checkpoint has both.
        precision, amp, use_xla: see `start_runtime`.
        runtime: runtime of the network: "keras", "onnxruntime" or "openvino".
        int8_images: image files for the calibration of an int8 network; (): float32.
    """

    ckpt_path: str | None = None
    model_name: str = DEFAULT_MODEL
    model_name_given: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    class_names: ClassNames | None = None
    checkpoint_classes: ClassNames | None = None
    averaged: bool = True
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    runtime: str = "keras"
    int8_images: tuple[str, ...] = ()


def require_runtime(runtime: str, *, asked_by: str) -> None:
    """Raise InputError if a package that the runtime needs is not installed."""
    for package in ("onnx", runtime):
        require_package(package, asked_by=asked_by)


def require_package(package: str, *, asked_by: str) -> None:
    """Raise InputError if the package is not installed; "litert" stands for `ai_edge_litert`."""
    package, extra = ("ai_edge_litert", "litert") if package == "litert" else (package, "export")
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{asked_by} needs the package {package}: pip install -e '.[{extra}]'")


def parse_overrides(text: str | Mapping[str, Any]) -> dict[str, Any]:
    """Parse `a=1,b.c=2,x=1*2*3`, the path of a .yaml file, or a mapping to flat overrides with Python values."""
    if not text:
        return {}
    if isinstance(text, Mapping):
        return {key: value for name, values in text.items() for key, value in flattened(name, values).items()}
    if "=" not in text or text.endswith((".yaml", ".yml")):
        return _read_yaml(text)
    items = []
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise InputError(
                f"--hparams: {shown(item)} in {shown(text)}; expected comma-separated key=value items, or a .yaml file"
            )
        items.append((key, tuple(map(_literal, value.split("*"))) if "*" in value else _literal(value)))
    return _distinct(items, where=shown(text)[1:-1])


def split_label_map(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], ClassNames | None]:
    """Return overrides without google/automl's `label_map`, and its classes: a mapping, a file of names or "coco"."""
    others = {key: value for key, value in overrides.items() if key.partition(".")[0] != "label_map"}
    mapping = {key.removeprefix("label_map."): str(value) for key, value in overrides.items() if key not in others}
    if not mapping or overrides.get("label_map", "") is None:
        return others, None
    with error_context("hparam label_map:"):
        value = overrides.get("label_map")
        if value == "coco":
            return others, COCO_2017
        return others, parse_class_names(value) if isinstance(value, str) else class_names_from(value or mapping)


def _literal(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        content, _ = read_yaml(path, loader=ValueLoader)
    except InputError as error:
        raise InputError(f"--hparams={error}; expected a .yaml file or key=value items") from error
    if not isinstance(content, dict):
        raise InputError(f"--hparams={path}: holds {type(content).__name__}; expected a mapping of keys to values")
    flat = _distinct([item for key, values in content.items() for item in flattened(key, values).items()], where=path)
    # As in the reference, text is parsed again: YAML reads 4e-5 and quoted numbers as text.
    return {key: _literal(value) if isinstance(value, str) else value for key, value in flat.items()}


def _distinct(items: list[tuple[str, Any]], *, where: str) -> dict[str, Any]:
    """Return the items as a dictionary.

    Raises:
        InputError: for a duplicate key.
    """
    mapping = dict(items)
    if len(mapping) < len(items):
        key = Counter(key for key, _ in items).most_common(1)[0][0]
        values = ", ".join(shown(value) for other, value in items if other == key)
        raise InputError(f"--hparams={where}: gives {shown(key)} more than once ({values}); expected each key once")
    return mapping


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
