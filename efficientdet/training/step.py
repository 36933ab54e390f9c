"""One training step as compiled programs, for each backend.

A step takes a `Batch` and a learning rate, updates weights, optimizer and average in place, and returns scalars: the loss
terms, `loss`, `det_loss`, `gradient_norm` (before clipping), `positives`, `applied` (False where loss scaling skipped
the update because a gradient overflowed), with loss scaling `loss_scale`, `finite` (False where loss, gradient, weights or
average are not and the update was not skipped), and `stop_wishes` (of how many ranks).

With several ranks: positives are summed before the forward pass, so that all divide by the same number; the gradients are
one vector and summed in one message with the losses; what comes then is the same computation on the same bits everywhere.
So two ranks equal one with twice the batch, batch statistics apart.
"""

from collections.abc import Callable

import keras
from keras import ops

from efficientdet.machine.distributed import World
from efficientdet.training.optimizer import global_norm, inner_optimizer
from efficientdet.training.packing import Packing
from efficientdet.training.weight_average import WeightAverage
from model.detector import Detector
from object_detection.structures import Batch, Objects

Step = Callable[..., dict]  # (batch, learning_rate, stop_wish=False)


def build_train_step(
    detector: Detector, optimizer: keras.optimizers.Optimizer, average: WeightAverage | None, *, compiled: bool,
    world: World | None = None, accumulate_steps: int = 1,
) -> Step:
    """The step of the backend in use; `compiled`: by XLA (JAX always is).

    A batch is worked off in `accumulate_steps` equal parts whose gradients add up to one update.
    """
    optimizer.build(detector.network.trainable_variables)
    backend = _JaxStep if keras.backend.backend() == "jax" else _TensorflowStep
    return backend(detector, optimizer, average, world=world or World(), parts=accumulate_steps, compiled=compiled)


class _StepParts:
    """What both backends share: the mathematics between the gradient tape and the variables."""

    def __init__(self, detector, optimizer, average, *, world: World, parts: int, compiled: bool):
        self.detector, self.optimizer, self.average = detector, optimizer, average
        self.world, self.parts, self.compiled = world, parts, compiled
        self.network = detector.network
        self.inner = inner_optimizer(optimizer)
        self.scales_loss = optimizer is not self.inner
        self.packing = Packing([variable.shape for variable in self.network.trainable_variables])

    def losses(self, batch: Batch, targets, normalizer) -> tuple:
        """This rank's share of the loss, and of its terms: over all ranks and parts they add up to those of one big batch."""
        terms = self.detector.loss_terms(batch, targets, normalizer)
        if "reg_l2_loss" in terms:
            terms = {**terms, "reg_l2_loss": terms["reg_l2_loss"] / (self.world.size * self.parts)}
        return sum(terms.values()), terms

    def part_of(self, tensors, number):
        """Part `number` of tensors [B, ..] (any nest of tuples)."""
        if isinstance(tensors, tuple):
            return type(tensors)(*(self.part_of(tensor, number) for tensor in tensors))
        size = tensors.shape[0] // self.parts
        return ops.slice(tensors, (number * size, *[0] * (len(tensors.shape) - 1)), (size, *ops.shape(tensors)[1:]))

    def report(self, terms: dict, *, norm, scale, positives, applied, packed_average, stop_wishes) -> dict:
        """The scalars of a step."""
        loss = sum(terms.values())
        finite = ops.logical_and(ops.isfinite(loss), ops.isfinite(norm))
        if packed_average is not None:
            # What is not finite in any weight or average makes this sum so: one pass over a vector instead of hundreds.
            finite = ops.logical_and(finite, ops.isfinite(ops.sum(packed_average)))
        # An overflow that loss scaling skipped touched nothing.
        skipped = ops.logical_not(applied) if self.scales_loss else False
        detection = loss - terms["reg_l2_loss"] if "reg_l2_loss" in terms else loss
        scales = {"loss_scale": scale} if self.scales_loss else {}
        return {**terms, **scales, "det_loss": detection, "loss": loss, "gradient_norm": norm, "positives": positives,
                "applied": applied, "finite": ops.logical_or(finite, skipped), "stop_wishes": stop_wishes}


class _TensorflowStep(_StepParts):
    """Alone one program; with several ranks three, between which Horovod sums (it cannot inside a compiled one)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._traced = None

    def __call__(self, batch: Batch, learning_rate: float, stop_wish: bool = False) -> dict:
        import tensorflow as tf

        if self._traced is None:
            scalar = tf.TensorSpec((), tf.float32)
            signature = [_batch_signature(batch, fixed_slots=self.compiled), scalar, scalar]
            alone = self.compiled and self.world.size == 1
            self._traced = tf.function(self._step, input_signature=signature, jit_compile=alone, autograph=False)
        return self._traced(batch, tf.constant(learning_rate, tf.float32), tf.constant(float(stop_wish), tf.float32))

    def _step(self, batch, learning_rate, stop_wish):
        targets, positives = self._program(self._assign)(batch.objects)
        positives, stop_wishes = self.world.sum([positives, stop_wish])
        gradient, terms = self._program(self._gradient)(batch, targets, positives + 1.0)
        # Scaled for float16, the gradient also fits its range on the way to the other ranks; losses stay float32.
        [gradient] = self.world.sum([gradient], half=self.scales_loss)
        names = list(terms)
        [values] = self.world.sum([ops.stack([terms[name] for name in names])])
        terms = dict(zip(names, ops.unstack(values), strict=True))
        return self._program(self._update)(gradient, terms, positives, learning_rate, stop_wishes)

    def _program(self, function: Callable) -> Callable:
        if not self.compiled or self.world.size == 1:
            return function
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)

    def _assign(self, objects):
        targets = self.detector.assign(objects)
        return targets, self.detector.count_positives(targets)

    def _gradient(self, batch, targets, normalizer):
        """Packed gradient of the (scaled) loss, and the terms; of all parts together."""
        if self.parts == 1:
            return self._part_gradient(batch, targets, normalizer)
        import tensorflow as tf

        gradient, terms = self._part_gradient(self.part_of(batch, 0), self.part_of(targets, 0), normalizer)
        names = list(terms)

        def add(number, gradient, values):
            more, terms = self._part_gradient(self.part_of(batch, number), self.part_of(targets, number), normalizer)
            return number + 1, gradient + more, values + ops.stack([terms[name] for name in names])

        _, gradient, values = tf.while_loop(
            lambda number, *_: number < self.parts, add,
            [tf.constant(1), gradient, ops.stack([terms[name] for name in names])], parallel_iterations=1)
        return gradient, dict(zip(names, ops.unstack(values, len(names)), strict=True))

    def _part_gradient(self, batch, targets, normalizer):
        import tensorflow as tf

        weights = [weight.value for weight in self.network.trainable_variables]
        with tf.GradientTape() as tape:
            loss, terms = self.losses(batch, targets, normalizer)
            scaled = self.optimizer.scale_loss(loss) if self.scales_loss else loss
        gradients = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return self.packing.pack(gradients), terms

    def _update(self, gradient, terms, positives, learning_rate, stop_wishes):
        self.inner.learning_rate.assign(learning_rate)
        gradients = self.packing.unpack(gradient)
        scale = self.optimizer.dynamic_scale + 0.0 if self.scales_loss else 1.0  # a copy, as `before` is
        norm = global_norm([gradient]) / scale
        before = self.inner.iterations + 0  # a copy: the variable itself would be read after the update
        self.optimizer.apply(gradients, self.network.trainable_variables)
        applied = self.inner.iterations > before
        packed = None
        if self.average is not None:
            packed = self.average.update(self.inner.iterations, applied=applied)
        return self.report(terms, norm=norm, scale=scale, positives=positives, applied=applied, packed_average=packed,
                           stop_wishes=stop_wishes)


def _batch_signature(batch: Batch, *, fixed_slots: bool) -> Batch:
    """The shapes of a first batch; on a CPU the number of object slots may differ from batch to batch without a new trace."""
    import tensorflow as tf

    signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    if fixed_slots:
        return signature
    slots = (tf.TensorSpec([spec.shape[0], None, *spec.shape[2:]], spec.dtype) for spec in signature.objects)
    return signature._replace(objects=Objects(*slots))


class _JaxStep(_StepParts):
    """One program over explicit state; one device."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import jax

        places = {id(variable): place for place, variable in enumerate(self.optimizer.variables)}
        self._iterations, self._rate = places[id(self.inner.iterations)], places[id(self.inner.learning_rate)]
        self._scale = places[id(self.optimizer.dynamic_scale)] if self.scales_loss else None
        self._compiled = jax.jit(self._step, donate_argnums=(0, 1, 2, 3))

    def __call__(self, batch: Batch, learning_rate: float, stop_wish: bool = False) -> dict:
        import jax

        state = [self.network.trainable_variables, self.network.non_trainable_variables, self.optimizer.variables,
                 [self.average.packed] if self.average is not None else []]
        *new_state, report = self._compiled(*([variable.value for variable in group] for group in state),
                                            jax.tree.map(jax.numpy.asarray, batch), jax.numpy.float32(learning_rate),
                                            jax.numpy.float32(stop_wish))
        for group, values in zip(state, new_state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)
        return report

    def _step(self, trainable, frozen, slots, packed_average, batch, learning_rate, stop_wish):
        targets = self.detector.assign(batch.objects)
        positives = self.detector.count_positives(targets)
        slots[self._rate] = learning_rate
        scale = slots[self._scale] if self.scales_loss else 1.0
        gradients, frozen, terms = self._gradient(trainable, frozen, batch, targets, positives + 1.0, scale)
        norm = global_norm(gradients) / scale
        before = slots[self._iterations]
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        applied = slots[self._iterations] > before
        if self.average is not None:
            variables = (*self.network.trainable_variables, *self.network.non_trainable_variables)
            values = dict(zip(map(id, variables), [*trainable, *frozen], strict=True))
            packed_average = [self.average.updated(
                packed_average[0], [values[id(variable)] for variable in self.average.variables],
                step=slots[self._iterations], applied=applied)]
        report = self.report(terms, norm=norm, scale=scale, positives=positives, applied=applied,
                             packed_average=packed_average[0] if packed_average else None, stop_wishes=stop_wish)
        return trainable, frozen, slots, packed_average, report

    def _gradient(self, trainable, frozen, batch, targets, normalizer, scale):
        """Gradients, the weights that are not trained after the step, and the terms; of all parts together."""
        import jax

        def forward(trainable, frozen, batch, targets):
            mapping = [*zip(self.network.trainable_variables, trainable, strict=True),
                       *zip(self.network.non_trainable_variables, frozen, strict=True)]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                loss, terms = self.losses(batch, targets, normalizer)
                frozen = [scope.get_current_value(variable) for variable in self.network.non_trainable_variables]
            return loss * scale, (terms, frozen)

        def part(frozen, number):
            gradients, (terms, frozen) = jax.grad(forward, has_aux=True)(
                trainable, frozen, self.part_of(batch, number), self.part_of(targets, number))
            return frozen, (gradients, terms)

        if self.parts == 1:
            gradients, (terms, frozen) = jax.grad(forward, has_aux=True)(trainable, frozen, batch, targets)
            return gradients, frozen, terms
        frozen, several = jax.lax.scan(part, frozen, jax.numpy.arange(self.parts))
        gradients, terms = jax.tree.map(lambda values: values.sum(axis=0), several)
        return gradients, frozen, terms
