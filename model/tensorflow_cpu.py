"""Faster implementations of operations that TensorFlow computes slowly on a CPU.

A training step there is bound by memory bandwidth: the activations of a batch exceed all caches, and TensorFlow passes
over them once per operation. XLA fuses elementwise operations into one pass, but its convolutions and sums are slower,
so only elementwise parts are compiled by it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import ParamSpec, TypeVar

import keras
from keras import ops

from object_detection.structures import Tensor

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_SHAPES_ARE_FIXED = ContextVar("shapes are fixed", default=False)


def applies() -> bool:
    """Return whether TensorFlow on a CPU is used."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")


def shapes_may_depend_on_values() -> bool:
    """Return whether shapes of traced or executed code may depend on tensor values: `applies`, and not in XLA."""
    return runs_operations() and not _SHAPES_ARE_FIXED.get()


def runs_operations() -> bool:
    """Return whether TensorFlow runs traced or executed code on a CPU by its own operations: `applies`, not in XLA."""
    return applies() and not _compiled_by_xla()


@contextmanager
def fixed_shapes() -> Iterator[None]:
    """Make shapes inside the block independent of tensor values, as under XLA."""
    previous = _SHAPES_ARE_FIXED.set(True)
    try:
        yield
    finally:
        _SHAPES_ARE_FIXED.reset(previous)


def places(chosen: Tensor) -> Tensor:
    """Return the indices of the True entries of [N] bool, [R] int32."""
    import tensorflow as tf

    return tf.cast(tf.where(chosen)[:, 0], "int32")


def in_one_pass(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function, compiled by XLA where TensorFlow runs on a CPU.

    It is elementwise, possibly with a sum over the last axis.
    """
    if not applies():
        return function
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def run_eagerly(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function with every `tf.function` in it run operation by operation, neither traced nor compiled."""
    import tensorflow as tf

    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        previous = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            return function(*arguments, **options)
        finally:
            tf.config.run_functions_eagerly(previous)

    return run


def silu(inputs: Tensor) -> Tensor:
    """Return x sigmoid(x) for training. Value and gradient take one pass each, not two and four; only x is kept."""
    return _silu()(inputs)


@lru_cache(maxsize=1)
def _silu() -> Callable[[Tensor], Tensor]:
    import tensorflow as tf

    @in_one_pass
    def gradient(inputs: Tensor, outer: Tensor) -> Tensor:
        share = tf.sigmoid(inputs)
        return outer * share * (1.0 + inputs * (1.0 - share))

    @in_one_pass
    def value(inputs: Tensor) -> Tensor:
        return inputs * tf.sigmoid(inputs)

    @tf.custom_gradient
    def call(inputs: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return value(inputs), lambda outer: gradient(inputs, outer)

    return call


def half_squared_norm(tensor: Tensor) -> Tensor:
    """Return half the sum of the squares, float32, as one operation: a step has hundreds, which take time to trace."""
    tensor = ops.cast(tensor, "float32")
    if not applies():
        return 0.5 * ops.sum(ops.square(tensor))
    import tensorflow as tf

    return tf.nn.l2_loss(tensor)


def depthwise_conv(inputs: Tensor, kernel: Tensor, *, stride: int) -> Tensor:
    """Return the depthwise convolution, padding "same", of [B, H, W, C] by [k, k, C, 1].

    For kernels wider than three taps, oneDNN's kernel gradient takes up to ten times as long as all the rest, and two
    to five times as long as TensorFlow's own code, which is used if the padding is explicit. That code takes three
    times as long for bfloat16 as for float32, casts included.
    """
    import tensorflow as tf

    strides = [1, stride, stride, 1]

    @tf.custom_gradient
    def call(inputs: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        def gradients(outer: Tensor) -> tuple[Tensor, Tensor]:
            padding = [
                _same_padding(size, taps, stride=stride)
                for size, taps in zip(inputs.shape[1:3], kernel.shape[:2], strict=True)
            ]
            of_inputs = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(inputs), filter=kernel, out_backprop=outer, strides=strides, padding="SAME"
            )
            of_kernel = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
                input=tf.cast(inputs, tf.float32),
                filter_sizes=kernel.shape,
                out_backprop=tf.cast(outer, tf.float32),
                strides=strides,
                padding="EXPLICIT",
                explicit_paddings=[0, 0, *padding[0], *padding[1], 0, 0],
            )
            return of_inputs, tf.cast(of_kernel, kernel.dtype)

        return tf.nn.depthwise_conv2d(inputs, kernel, strides, "SAME"), gradients

    return call(inputs, tf.convert_to_tensor(kernel))


def grouped_conv(
    inputs: Tensor, kernel: Tensor, *, strides: tuple[int, int], padding: str, dilations: tuple[int, int]
) -> Tensor:
    """Return the grouped convolution of [B, H, W, C] by [k, k, C / groups, F]: [B, h, w, F].

    TensorFlow's own operation is used. Keras compiles it by XLA, whose code takes a hundred times as long.
    """
    import tensorflow as tf

    return tf.nn.conv2d(inputs, tf.convert_to_tensor(kernel), list(strides), padding.upper(), dilations=list(dilations))


def _compiled_by_xla() -> bool:
    """Return whether the code being traced is for XLA."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util  # there is no public API for this

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _same_padding(size: int, taps: int, *, stride: int) -> tuple[int, int]:
    """Return TensorFlow's padding in pixels before and after an axis."""
    total = max((-(-size // stride) - 1) * stride + taps - size, 0)
    return total // 2, total - total // 2
