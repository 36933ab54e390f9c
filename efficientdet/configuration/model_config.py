"""Which detector is opened, and how it is computed; a part of the configuration of every program that opens one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataset.class_names import ClassNames
from efficientdet.families.registry import DEFAULT_MODEL


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A stored detector, or one with random weights.

    Attributes:
        ckpt_path: prefix of a checkpoint; None: random weights, always the same.
        model_name: of a checkpoint that does not state its model. model_name_given: an error if the checkpoint states another.
        overrides: hyperparameters over those of the checkpoint, flat, such as {"nms_configs.method": "hard"}.
        class_names: those of the data; None: the checkpoint's, else COCO's.
        averaged: the moving average of the weights where the checkpoint has both.
        precision, amp, use_xla: see `start_runtime`.
        runtime: what runs the network: "keras", "onnxruntime" or "openvino".
        int8_images: image files for the ranges of activations of a network in 8 bits; none: 32 bits.
    """

    ckpt_path: str | None = None
    model_name: str = DEFAULT_MODEL
    model_name_given: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    class_names: ClassNames | None = None
    averaged: bool = True
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    runtime: str = "keras"
    int8_images: tuple[str, ...] = ()
