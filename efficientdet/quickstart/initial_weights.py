"""Weights that a quick start begins with: those of a detector, of a backbone, or random ones."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from efficientdet.checkpoints.checkpoint import prefixes
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.published_files import CLASSIFIER, published_files
from efficientdet.families.registry import hyperparameters_of
from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartConfig
from efficientdet.options.train import PRETRAINED_BACKBONE
from efficientdet.quickstart.output_folder import State
from efficientdet.weights.downloads import local_path
from program_support.errors import InputError

_FLAGS = {"detector": "pretrained_ckpt", "starter": "pretrained_ckpt", "backbone": "backbone_init"}


@dataclass(frozen=True)
class InitialWeights:
    """Weights to start from. kind: as in `QuickstartRecipe`; path: path or name of a file; description: source."""

    kind: str
    description: str
    path: str | None = None

    @property
    def flags(self) -> dict[str, str]:
        """Return the flag of train.py with the weights; none for random ones."""
        return {_FLAGS[self.kind]: self.path} if self.path else {}

    @property
    def line(self) -> str:
        """Return a line for the log: a warning for random weights that --weights does not ask for."""
        is_unwanted = self.kind == "random" and self != _RANDOM
        return f"{'warning: ' if is_unwanted else ''}initial weights: {self.description}"


_RANDOM = InitialWeights("random", f"random, set by --weights={NO_WEIGHTS}")


def weights_of_run(config: QuickstartConfig, folder: Path, *, state: State) -> InitialWeights:
    """Return and print the initial weights; until the training begins, a download that failed is tried again."""
    chosen = state.result("choose")
    if chosen and any(prefixes(folder / name, "ckpt-*") for name in ("model_smaller_input", "model")):
        return InitialWeights(**chosen["weights"])
    weights = initial_weights(config)
    if chosen and chosen["weights"] != asdict(weights):
        state.discard("choose")
    print(weights.line, flush=True)
    return weights


def initial_weights(config: QuickstartConfig) -> InitialWeights:
    """Return the weights that --weights names, else the first that are available, in the order of `_candidates`.

    Raises:
        InputError: --weights names a file that does not fit the model.
    """
    if config.weights == NO_WEIGHTS:
        return _RANDOM
    if config.weights and config.weights != PRETRAINED_BACKBONE:
        kind = _kind_of(config.weights, starters=hyperparameters_of(config.model_name, {}).family.quickstart.starters)
        return InitialWeights(kind, f"{kind} of --weights={config.weights}", config.weights)
    reasons = []
    for kind, name, description in _candidates(config):
        try:
            path = local_path(name)
            if kind == "starter":
                _check_settings(config, path)
        except InputError as error:
            reasons.append(str(error))
            print(f"no {description}: {error}", flush=True)
        else:
            return InitialWeights(kind, f"{description} ({path})", name)
    if config.weights:
        raise InputError(f"--weights={config.weights}: {'; '.join(reasons) or f'none for {config.model_name}'}")
    reason = "none could be downloaded" if reasons else f"none are published for {config.model_name}"
    return InitialWeights("random", f"random; {reason}")


def _candidates(config: QuickstartConfig) -> list[tuple[str, str, str]]:
    """Return kind, name and description of weights, the best first."""
    hparams, model_name = hyperparameters_of(config.model_name, parse_overrides(config.hparams)), config.model_name
    recipe = hparams.family.quickstart
    candidates = [("backbone", hparams.family.imagenet_backbone(hparams), "backbone pretrained on ImageNet")]
    if not config.weights:
        detector = recipe.detectors.get(model_name, model_name)
        candidates[:0] = [
            ("detector", detector if detector in published_files() else None, "detector pretrained on COCO"),
            ("starter", recipe.starters.get(model_name), "starter detector of this package"),
        ]
    return [(kind, name, description) for kind, name, description in candidates if name]


def _check_settings(config: QuickstartConfig, starter: str) -> None:
    """Raise InputError if --hparams sets another network or other anchors than those of a starter detector."""
    given = parse_overrides(config.hparams)
    conventions = given.keys() & hyperparameters_of(config.model_name, {}).family.conventions
    description = read_description(starter)
    assert description is not None  # it is part of this package
    ours = hyperparameters_of(config.model_name, given)
    theirs = hyperparameters_of(config.model_name, {key: description.hparams[key] for key in conventions})
    if differing := sorted(key for key in conventions if getattr(ours, key) != getattr(theirs, key)):
        raise InputError(f"--hparams sets {', '.join(differing)} differently")


def _kind_of(path: str, *, starters: Mapping[str, str]) -> str:
    """Return the kind of weights: a starter detector or a backbone by its name, else a detector."""
    if path in starters.values() or local_path(path) in map(local_path, starters.values()):
        return "starter"
    file = published_files().get(path)
    return "backbone" if file and file.holds == CLASSIFIER else "detector"


def use_no_accelerator() -> None:
    """Keep TensorFlow, which computes sizes of images, from taking the memory of a GPU that the programs need."""
    prepare_environment(owns_process=False)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
