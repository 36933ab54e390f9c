"""What a family of detectors tells the program about itself. Free of Keras and TensorFlow until it builds one."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.hyperparameters import Hyperparameters
from model.weight_arrays import model_arrays

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.detector import Detector
    from object_detection.geometry.anchor_grid import AnchorGrid

Arrays = Mapping[str, np.ndarray]


class Family:
    """One family: its models, its hyperparameters, how a detector of it is built and its published weights are read.

    A module `family` in a folder of efficientdet/families has one as FAMILY; another package offers one by an entry point of
    the group `efficientdet.families`.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[type[Hyperparameters]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # model name -> the hyperparameters that make it
    quickstart: ClassVar[bool] = False  # whether quickstart.py's choices were made for its models
    # Hyperparameters that weights mean something only with, and which no shape of a weight tells.
    conventions: ClassVar[tuple[str, ...]] = ()
    backbone_conventions: ClassVar[tuple[str, ...]] = ()  # those of them that the backbone alone asks for
    # Of checkpoints with so many classes that do not name them: the row of COCO's category id 1, the next ids following.
    coco_class_rows: ClassVar[Mapping[int, int]] = {}

    def build(self, hparams: Hyperparameters, *, num_classes: int, precision: str = "float32",
              backbone_weights: str | None = None) -> "Detector":
        """A detector with random weights, or with a backbone of `backbone_weights`; the first that imports Keras."""
        raise NotImplementedError

    def resize_rule(self, hparams: Hyperparameters) -> "ResizeRule":
        """How any image becomes the network's input."""
        from dataset.input.resize import Letterbox

        return Letterbox(hparams.input_size)

    def anchors(self, hparams: Hyperparameters) -> "AnchorGrid | None":
        """The anchors that `build`'s detector stands on, without its network; None where the family does not tell."""
        return None

    def augmentation(self, hparams: Hyperparameters) -> "Augmentation":
        """How an image is changed for training."""
        from dataset.input.augmentation import ScaleJitterCrop

        return ScaleJitterCrop(hparams.input_size, hparams.jitter_min, hparams.jitter_max,
                               0.5 if hparams.input_rand_hflip else 0.0)

    def numbers_per_pixel(self, hparams: Hyperparameters) -> float:
        """How many numbers the network's layers put out for each pixel of its input: what memory is reckoned from."""
        return 600.0  # EfficientDet-D0's and ResNet-50's, about

    def mlperf_benchmark(self, ruleset: str | None) -> str:
        """The id under which a version of MLPerf's rules, such as "2.1.0", knows this family; None: those that it was first
        known under. Raises InputError for rules that do not know it. By default the family's name: MLPerf has no such task."""
        return self.name

    def mlperf_values(self, hparams: Hyperparameters, *, batch_norm_images: int) -> dict[str, Any]:
        """What its rules want logged beside what every training logs; a batch norm takes its statistics over so many images."""
        return {}

    def mlperf_tensors(self, names: Iterable[str]) -> list[str]:
        """What its rules call those of our weights whose initialization is logged, a line each."""
        return []

    def stored_conventions(self, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """The hyperparameters beside a checkpoint of ours, with what older ones leave out."""
        return dict(hparams)

    def imagenet_backbone(self, hparams: Hyperparameters) -> str | None:
        """The published file that --backbone_init=imagenet stands for; None where `build` knows by itself."""
        return None

    def imported_conventions(self, arrays: Arrays) -> dict[str, Any]:
        """Hyperparameters of a checkpoint of another program, known from its arrays."""
        return {}

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """A checkpoint's arrays of the model under our names, `names` in the order of the layers; averaged or raw ones."""
        return model_arrays(arrays, averaged=averaged)

    def is_class_predictor(self, name: str) -> bool:
        """Whether a weight has a part for each class, and starts from scratch where the classes differ."""
        return False

    def is_backbone(self, name: str) -> bool:
        """Whether --backbone_init brings this weight."""
        return False

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """For how many classes a checkpoint's predictor is; None where it does not tell. `shapes` are the network's."""
        return None

    def with_class_rows(self, arrays: Arrays, rows: list[int], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The same with the parts of these classes alone, in this order."""
        return dict(arrays)
