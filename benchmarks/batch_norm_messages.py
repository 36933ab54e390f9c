"""Print the all-reduces of one batch norm layer's gradients under JAX, its batch on two CPU devices.

`KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=2 python benchmarks/batch_norm_messages.py`.
"""

import re

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from model.batch_norm import BatchNormalization

CHANNELS = 16


def main() -> None:
    """Compile the layer's gradients and print the number of messages, and of numbers in them per channel."""
    shape = (4, 8, 8, CHANNELS)
    layer = BatchNormalization()
    layer.build(shape)
    trained = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]

    def loss(trained, images, factors):
        outputs, _ = layer.stateless_call(trained, others, images, training=True)
        return jax.numpy.sum(jax.nn.silu(outputs) * factors)

    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    replicated, sharded = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("batch",)))
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)), in_shardings=(replicated, sharded, sharded))
    images = jax.numpy.ones(shape)
    program = gradients.lower(trained, images, images).compile().as_text()
    messages = re.findall(r"= (.*) all-reduce\(", program)
    numbers = sum(int(size) for message in messages for size in re.findall(r"f32\[(\d+)\]", message))
    print(f"{len(messages)} all-reduces, {numbers / CHANNELS:g} numbers per channel, 2 of them gradients of weights")


if __name__ == "__main__":
    main()
