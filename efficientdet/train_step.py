"""One training step as one compiled program, for each backend.

A step takes a `Batch` and a learning rate, updates weights, optimizer and average in place, and returns scalars: the loss
terms, `loss`, `det_loss`, `gradient_norm` (before clipping), `positives`, and `applied` (False where loss scaling skipped
the update because a gradient overflowed).
"""

from collections.abc import Callable

import keras

from efficientdet.optimizer import global_norm, inner_optimizer
from efficientdet.weight_average import WeightAverage
from model.detector import Detector
from object_detection.structures import Batch, Objects

Step = Callable[[Batch, float], dict]


def build_train_step(
    detector: Detector, optimizer: keras.optimizers.Optimizer, average: WeightAverage | None, *, compiled: bool
) -> Step:
    """The step of the backend in use; `compiled`: by XLA (JAX always is)."""
    optimizer.build(detector.network.trainable_variables)
    if keras.backend.backend() == "jax":
        return _jax_step(detector, optimizer, average)
    return _tensorflow_step(detector, optimizer, average, compiled=compiled)


def _losses(detector: Detector, batch: Batch, targets, normalizer) -> tuple:
    terms = detector.loss_terms(batch, targets, normalizer)
    return sum(terms.values()), terms


def _report(terms: dict, *, loss, norm, positives, applied) -> dict:
    detection = loss - terms["reg_l2_loss"] if "reg_l2_loss" in terms else loss
    return {**terms, "det_loss": detection, "loss": loss, "gradient_norm": norm, "positives": positives, "applied": applied}


def _tensorflow_step(detector, optimizer, average, *, compiled: bool) -> Step:
    import tensorflow as tf

    network = detector.network
    inner = inner_optimizer(optimizer)
    scales_loss = optimizer is not inner

    def step(batch, learning_rate):
        inner.learning_rate.assign(learning_rate)
        targets = detector.assign(batch.objects)
        positives = detector.count_positives(targets)
        weights = network.trainable_variables
        with tf.GradientTape() as tape:
            loss, terms = _losses(detector, batch, targets, positives + 1.0)
            scaled = optimizer.scale_loss(loss) if scales_loss else loss
        gradients = tape.gradient(scaled, [weight.value for weight in weights])
        norm = global_norm(gradients) / (optimizer.dynamic_scale if scales_loss else 1.0)
        before = inner.iterations + 0  # a copy: the variable itself would be read after the update
        optimizer.apply(gradients, weights)
        applied = inner.iterations > before
        if average is not None:
            average.update(inner.iterations, applied=applied)
        return _report(terms, loss=loss, norm=norm, positives=positives, applied=applied)

    traced = None

    def run(batch, learning_rate):
        nonlocal traced
        if traced is None:
            signature = [_batch_signature(batch, fixed_slots=compiled), tf.TensorSpec((), tf.float32)]
            traced = tf.function(step, input_signature=signature, jit_compile=compiled, autograph=False)
        return traced(batch, tf.constant(learning_rate, tf.float32))

    return run


def _batch_signature(batch: Batch, *, fixed_slots: bool) -> Batch:
    """The shapes of a first batch; on a CPU the number of object slots may differ from batch to batch without a new trace."""
    import tensorflow as tf

    signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    if fixed_slots:
        return signature
    slots = (tf.TensorSpec([spec.shape[0], None, *spec.shape[2:]], spec.dtype) for spec in signature.objects)
    return signature._replace(objects=Objects(*slots))


def _jax_step(detector, optimizer, average) -> Step:
    import jax

    network = detector.network
    inner = inner_optimizer(optimizer)
    scales_loss = optimizer is not inner
    index_of_iterations = [variable is inner.iterations for variable in optimizer.variables].index(True)
    index_of_rate = [variable is inner.learning_rate for variable in optimizer.variables].index(True)

    def forward(trainable, frozen, batch, targets, normalizer, scale):
        mapping = [*zip(network.trainable_variables, trainable, strict=True),
                   *zip(network.non_trainable_variables, frozen, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            loss, terms = _losses(detector, batch, targets, normalizer)
            frozen = [scope.get_current_value(variable) for variable in network.non_trainable_variables]
        return loss * scale, (loss, terms, frozen)

    def step(trainable, frozen, slots, packed_average, batch, learning_rate):
        targets = detector.assign(batch.objects)
        positives = detector.count_positives(targets)
        slots[index_of_rate] = learning_rate
        scale = slots[[v is optimizer.dynamic_scale for v in optimizer.variables].index(True)] if scales_loss else 1.0
        (_, (loss, terms, frozen)), gradients = jax.value_and_grad(forward, has_aux=True)(
            trainable, frozen, batch, targets, positives + 1.0, scale)
        norm = global_norm(gradients) / scale
        before = slots[index_of_iterations]
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        applied = slots[index_of_iterations] > before
        if average is not None:
            values = dict(zip([id(v) for v in (*network.trainable_variables, *network.non_trainable_variables)],
                              [*trainable, *frozen], strict=True))
            packed_average = [average.updated(packed_average[0], [values[id(variable)] for variable in average.variables],
                                              step=slots[index_of_iterations], applied=applied)]
        report = _report(terms, loss=loss, norm=norm, positives=positives, applied=applied)
        return trainable, frozen, slots, packed_average, report

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))

    def run(batch, learning_rate):
        state = [network.trainable_variables, network.non_trainable_variables, optimizer.variables,
                 [average.packed] if average is not None else []]
        *new_state, report = compiled(*([variable.value for variable in group] for group in state),
                                      jax.tree.map(jax.numpy.asarray, batch), jax.numpy.float32(learning_rate))
        for group, values in zip(state, new_state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
        return report

    return run
