"""Configuration of a detector: checkpoint, model, precision and runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset.class_names import ClassNames
from efficientdet.families.registry import DEFAULT_MODEL


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
