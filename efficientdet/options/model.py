"""Options that several programs share."""

from collections.abc import Mapping
from typing import Annotated, Any

from efficientdet.families.registry import DEFAULT_MODEL, model_names
from program_support.checked_fields import Help, checked, one_of


@checked
class ModelOptions:
    """Model and hyperparameters."""

    model_name: Annotated[str, Help(f"Model: one of {', '.join(model_names())}.")] = DEFAULT_MODEL
    hparams: Annotated[
        str | Mapping[str, Any], Help("Hyperparameters: key=value items, comma-separated, or a .yaml file.")
    ] = ""


@checked
class MachineOptions:
    """Precision and compilation."""

    amp: Annotated[
        bool | None,
        Help("Automatic mixed precision: mixed_float16 instead of float32. Default: on with an accelerator."),
    ] = None
    precision: Annotated[
        str | None,
        one_of("float32", "mixed_float16", "mixed_bfloat16"),
        Help("Precision policy of Keras. Overrides --amp."),
    ] = None
    use_xla: Annotated[bool | None, Help("Compile with XLA. Default: on with an accelerator.")] = None
