"""The smallest input of a quick start at which the objects of a data set match anchors."""

from collections.abc import Callable
from typing import Any, cast

from dataset.records.labeled_images import LabeledImages
from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.data_checks.anchor_search import smallest_usable_size
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import hyperparameters_of
from efficientdet.quickstart.configuration import QuickstartConfig
from efficientdet.weights.downloads import local_path
from program_support.errors import InputError


def usable_side(
    config: QuickstartConfig,
    images: LabeledImages,
    sizes: dict[int | str, int],
    settings: dict[str, Any],
    *,
    weights: dict[str, str],
    check: Callable[[dict[str, Any]], Any],
) -> int:
    """Return the smallest side at which most objects match anchors, or contain the center of one.

    sizes: values of `image_size` and their sides, ascending. check: prints what the data check advises.

    Raises:
        InputError: there is none.
    """
    hparams, fixed = _with_weights_settings(hyperparameters_of(config.model_name, settings), weights)
    fixed |= settings.keys() & parse_overrides(config.hparams).keys()
    use_no_accelerator()
    if (size := smallest_usable_size(images, hparams, cast(list[str], list(sizes)), fixed=fixed)) is not None:
        return sizes[size]
    largest = list(sizes)[-1]
    check({"image_size": largest, **settings})
    raise InputError(
        f"most objects match no anchor at any input up to {largest} pixels, so that {config.model_name} would not "
        "learn them; see the advice above: set the size by --hparams=image_size=, or train on tiles of the images"
    )


def use_no_accelerator() -> None:
    """Keep TensorFlow, which computes sizes of images, from taking the memory of a GPU that the programs need."""
    prepare_environment(owns_process=False)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")


def _with_weights_settings(hparams: Hyperparameters, weights: dict[str, str]) -> tuple[Hyperparameters, frozenset[str]]:
    """Return hyperparameters with those of the pretrained detector, and the keys that it determines."""
    if "pretrained_ckpt" not in weights:
        return hparams, frozenset()
    family, stated = hparams.family, {}
    if description := read_description(checkpoint_prefix(local_path(weights["pretrained_ckpt"]))):
        stated = description.hparams
    known = {
        key: stated[key] for key in family.conventions if key in stated and key not in family.adaptable_conventions
    }
    return with_overrides(hparams, known), frozenset(family.conventions)
