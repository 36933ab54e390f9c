"""Interface between a detector family and the programs that train, evaluate and export it."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import keras
import numpy as np
from keras import ops
from keras.initializers import Constant, Initializer, Ones, RandomNormal, RandomUniform, VarianceScaling, Zeros

from model import tensorflow_cpu
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.onnx_nodes import Graph, Output
from object_detection.structures import Detections, Objects, Tensor
from program_support.errors import InputError


class Postprocessing:
    """Post-processing outside of a compiled program.

    A family defines what it supports; the defaults report that it does not.
    """

    detects_on_host = False  # True: `host_outputs` and `detections_on_host` are defined

    def host_outputs(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return the inputs of `detections_on_host`, [B, ...] each, which are also the outputs of an exported file."""
        raise NotImplementedError

    def detections_on_host(self, outputs: Sequence[np.ndarray], size: np.ndarray) -> Detections[np.ndarray]:
        """Return one image's Detections, arrays without B, in pixels of the network input. size: height and width."""
        raise NotImplementedError

    def onnx_outputs(self, graph: Graph, tensors: Sequence[str]) -> dict[str, Output] | None:
        """Return the outputs of an exported network by name, from its tensors.

        None (default): the network's own outputs, named `output_names` if set.
        """
        return None

    def onnx_detections(self, graph: Graph, tensors: Sequence[str], sizes: str) -> dict[str, Output] | None:
        """Add post-processing to an exported network: `boxes`, `scores`, `classes` of D slots, best first.

        Scores are 0 in empty slots. sizes: the tensor [B, 2] int32, height and width of the images. None (default): the
        network's outputs are detections.
        """
        return None

    def litert_operator(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Return anchors and attributes of LiteRT's operator `TFLite_Detection_PostProcess`.

        Anchors are [A, 4] float32: center y and x, height and width as fractions of the image.

        Raises:
            InputError: (default) if the operator cannot do this detector's post-processing.
        """
        raise InputError(
            "litert-full-int8: TFLite_Detection_PostProcess cannot do the post-processing of this detector; use "
            "another format"
        )

    def probabilities(self, outputs: Any) -> Tensor:
        """Return probabilities [B, A, K], including the background's: the scores for `litert_operator`."""
        raise NotImplementedError


Outputs = TypeVar("Outputs")  # a tensor or a nested structure of tensors, float32, with the image as first axis
Targets = TypeVar("Targets")  # the same


class DetectionModel(Postprocessing, Generic[Outputs, Targets]):
    """Base class of detectors. Methods are traceable: no Python branch on tensor values.

    A loss is a sum over the images of a batch, divided by a normalizer that is computed from counts. Sums and counts
    are those of one batch. The training step adds counts over processes and accumulation steps before they become
    normalizers, so that several processes use the same divisors as one process with all images.

    A family must define `normalize`, `outputs`, `targets`, `counts`, `loss_sums`, `normalizers` and `detections`. The
    other methods have defaults, for a network that is trained and evaluated in the same way.
    """

    network: keras.Model
    image_size: tuple[int, int]  # H, W of the network input
    learns_from_outputs = False  # True: targets depend on outputs, and counts are known only after the forward pass
    # True: `targets` runs Python or NumPy code, such as a matching by SciPy in tf.numpy_function or jax.pure_callback.
    # TensorFlow's step then compiles what is before and after it, as XLA cannot compile a call of the host.
    matches_on_host = False
    first_head_layer: str | None = None  # name of the first layer of a head that all levels of the pyramid share
    anchors: np.ndarray | None = None  # [A, 4] float32 yxyx of a detector with outputs per anchor
    litert_obstacle: str | None = None  # why the network cannot be exported to LiteRT
    output_names: tuple[str, ...] | None = None  # names of an exported file's outputs; None: those of the network

    def normalize(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Return the network's input, float32 [B, H, W, 3], from uint8 images; 0 outside `sizes` [B, 2]."""
        raise NotImplementedError

    def outputs(self, images: Tensor, sizes: Tensor, *, training: bool = False) -> Outputs:
        """Return the network's outputs.

        images: uint8 [B, H, W, 3]; sizes: int32 [B, 2], height and width of the valid area.
        """
        raise NotImplementedError

    def training_outputs(self, images: Tensor, sizes: Tensor, *, training: bool) -> Outputs:
        """Return the outputs for `targets` and `loss_sums`. Default: `outputs`."""
        return self.outputs(images, sizes, training=training)

    def trained_network(self) -> keras.Model:
        """Return the network that a training step runs for an image, to count its multiply-adds. Default: `network`."""
        return self.network

    def targets(self, objects: Objects[Tensor], outputs: Outputs | None = None, seeds: Tensor | None = None) -> Targets:
        """Return the training targets, without gradient.

        outputs: set if `learns_from_outputs`. seeds: int32 [B, 2], (seed of the training, position of the image in it),
        for random sampling.
        """
        raise NotImplementedError

    def counts(self, targets: Targets) -> dict[str, Tensor]:
        """Return float32 scalars by name; `positives` is logged and checked."""
        raise NotImplementedError

    def counts_of_objects(self, objects: Objects[Tensor]) -> dict[str, Tensor] | None:
        """Return `counts` of a detector that learns from its outputs, where objects alone determine them.

        They are then known before the forward pass, so that gradients of parts of a batch can be accumulated. None
        (default): targets determine them.
        """
        return None

    def loss_sums(self, outputs: Outputs, targets: Targets) -> dict[str, Tensor]:
        """Return weighted losses by name, float32 scalars, summed over the batch and not divided by their normalizers.

        A divisor that belongs to one image, such as its positives, is applied here; the counts then include the images.
        """
        raise NotImplementedError

    def normalizers(self, counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the divisor of each sum, by name."""
        raise NotImplementedError

    def regularization(self) -> dict[str, Tensor]:
        """Return losses of the weights by name, independent of the batch. Default: none."""
        return {}

    def detections(self, outputs: Outputs, sizes: Tensor) -> Detections[Tensor]:
        """Return boxes in pixels of the network input, not clipped."""
        raise NotImplementedError

    @cached_property
    def postprocessing(self) -> Postprocessing:
        """Post-processing outside of a compiled program. Default: the methods of the detector itself."""
        return self


def losses(
    detector: DetectionModel[Outputs, Targets], outputs: Outputs, targets: Targets, counts: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the losses by name, each divided by its normalizer; training minimizes their sum + regularization."""
    sums, normalizers = detector.loss_sums(outputs, targets), detector.normalizers(counts)
    return {name: value / normalizers[name] for name, value in sums.items()}


def detections_in_original(
    detector: DetectionModel[Any, Any], images: Tensor, sizes: Tensor, scales: Tensor
) -> Detections[Tensor]:
    """Return detections in pixels of the original images, clipped to them.

    images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as in `Batch`.
    """
    detections = detector.detections(detector.outputs(images, sizes), sizes)
    boxes = clip_boxes(detections.boxes, sizes)
    return detections._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])


SEED_STATE = "seed_generator_state"  # Keras's name; its type differs from backend to backend


def named_variables(network: keras.Model) -> dict[str, keras.Variable]:
    """Return every weight of the network by its name in checkpoints, such as `class_net/class-0/pointwise_kernel`.

    The names are those of the published TensorFlow checkpoints; layer names have dots instead of slashes. Weights of
    nested models and of layers inside a layer, such as `attention/query/kernel`, are named by their path below it.

    Raises:
        InputError: two weights have one name.
    """
    named: dict[str, keras.Variable] = {}
    for name, variable in _weights_below(network):
        if named.setdefault(name, variable) is not variable:
            raise InputError(f"the network has two weights of the name {name}; give their layers names that differ")
    return named


def _weights_below(model: keras.Model) -> Iterator[tuple[str, keras.Variable]]:
    for layer in model.layers:
        prefix = layer.name.replace(".", "/")
        if isinstance(layer, keras.Model):
            yield from ((f"{prefix}/{name}", variable) for name, variable in _weights_below(layer))
            continue
        for variable in layer.variables:
            if variable.name == SEED_STATE:
                continue  # the seed of a dropout layer belongs to a run, not to the model
            path = variable.path.split("/")  # names from the outermost layer on; a layer may have got another one since
            role = "/".join(path[path.index(layer.name) + 1 if layer.name in path else 1 :]) or variable.name
            if isinstance(layer, keras.layers.DepthwiseConv2D):
                role = {"kernel": "depthwise_kernel"}.get(role, role)
            yield f"{prefix}/{role}", variable


def set_value(variable: keras.Variable, array: np.ndarray) -> None:
    """Assign an array to a variable, or make it the initial value of a variable created in a `keras.StatelessScope`.

    Keras initializes the variables of such a scope at its end. A network whose variables are set before is built in
    half the time, because no random numbers are drawn and overwritten.
    """
    if variable._initializer is None:
        variable.assign(array)
    else:  # Keras has no public way to replace an initializer
        variable._initializer = lambda shape, dtype: ops.convert_to_tensor(array, dtype)


DECAYED_WEIGHTS = ("kernels", "all")


def decaying_weights(network: keras.Model, decays: str) -> list[bool]:
    """Return whether weight decay applies to each trainable weight of a network; see `WeightDecay`."""
    names = {id(variable): name for name, variable in named_variables(network).items()}
    return [decays == "all" or names[id(variable)].endswith("kernel") for variable in network.trainable_variables]


class WeightDecay:
    """Weight decay: `coefficient` times half the squared norm of a network's kernels, or of all weights (`decays`)."""

    def __init__(self, network: keras.Model, *, coefficient: float, decays: str):
        self._coefficient = coefficient
        self._weights = [
            variable
            for name, variable in named_variables(network).items()
            if decays == "all" or name.endswith("kernel")
        ]

    def losses(self) -> dict[str, Tensor]:
        """Return `reg_l2_loss` of the weights that are trainable at this moment."""
        halves = [tensorflow_cpu.half_squared_norm(weight.value) for weight in self._weights if weight.trainable]
        return {"reg_l2_loss": self._coefficient * sum(halves, ops.convert_to_tensor(0.0))}


_TRUNCATED = 0.8796256610342398  # standard deviation of the standard normal distribution between -2 and 2


def draw_on_host(network: keras.Model) -> None:
    """Make NumPy draw the initial values of a network that was built in a `keras.StatelessScope`.

    The distributions and seeds are those of Keras's initializers, the numbers are not. A variable with an initializer
    of another package keeps it. Keras calls the initializers at the end of the scope and has no public way to replace
    them.
    """
    for variable in network.variables:
        if type(variable._initializer).__module__.startswith("keras."):
            variable._initializer = partial(_initial_value, variable._initializer)


def _initial_value(initializer: Initializer, shape: tuple[int, ...], dtype: str) -> Tensor:
    values = _draw(initializer, shape)
    return initializer(shape, dtype) if values is None else ops.convert_to_tensor(values, dtype)


def _draw(initializer: Initializer, shape: tuple[int, ...]) -> np.ndarray | None:
    match initializer:
        case Zeros():
            return np.zeros(shape)
        case Ones():
            return np.ones(shape)
        case Constant():
            return np.full(shape, initializer.value)
    if not isinstance(initializer, RandomNormal | RandomUniform | VarianceScaling):
        return None
    random = np.random.default_rng(initializer.seed)
    if isinstance(initializer, RandomNormal):
        return random.normal(initializer.mean, initializer.stddev, shape)
    if isinstance(initializer, RandomUniform):
        return random.uniform(initializer.minval, initializer.maxval, shape)
    if len(shape) < 2:
        return None
    field = math.prod(shape[:-2])
    fans = {"fan_in": field * shape[-2], "fan_out": field * shape[-1], "fan_avg": field * (shape[-2] + shape[-1]) / 2}
    deviation = math.sqrt(initializer.scale / fans[initializer.mode])
    if initializer.distribution == "uniform":
        return random.uniform(-1.0, 1.0, shape) * math.sqrt(3.0) * deviation
    values = random.standard_normal(shape)
    if initializer.distribution == "truncated_normal":
        deviation /= _TRUNCATED
        while (outside := np.abs(values) > 2.0).any():
            values[outside] = random.standard_normal(outside.sum())
    return values * deviation
