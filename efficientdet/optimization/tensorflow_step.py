"""The training step of TensorFlow: one program, or with several ranks several programs with Horovod sums between."""

from collections.abc import Callable, Sequence

import tensorflow as tf
from keras import ops

from efficientdet.optimization.optimizer import squared_norms
from efficientdet.optimization.step import TrainStep
from object_detection.structures import Batch, Objects


class TensorflowStep(TrainStep):
    """Training step of TensorFlow; see `build_train_step`.

    Horovod cannot sum inside a program compiled by XLA, and XLA cannot call the host, so with several ranks or a
    detector that `matches_on_host` the parts of the step are separate programs.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._traced = None
        self._is_one_program = self.compiled and self.world.size == 1 and not self.detector.matches_on_host

    def __call__(self, batch: Batch, learning_rate: float, stop_requested: bool = False) -> dict:
        """See `TrainStep`."""
        if self._traced is None:
            scalar = tf.TensorSpec((), tf.float32)
            signature = [_batch_signature(batch, fixed_slots=self.compiled), scalar, scalar]
            self._traced = tf.function(
                self._step, input_signature=signature, jit_compile=self._is_one_program, autograph=False
            )
        return self._traced(
            batch, tf.constant(learning_rate, tf.float32), tf.constant(float(stop_requested), tf.float32)
        )

    def _step(self, batch, learning_rate, stop_requested):
        scale = self.loss_scale(self._state()) + 0.0  # a copy: the variable itself would be read after the update
        if self.detector.learns_from_outputs:
            targets, counts = None, self.detector.counts_of_objects(batch.objects)  # None: known with the outputs
        else:
            targets, counts = self._target_program(batch)
        if counts is not None:
            counts = self._summed(counts)
        gradients_of = self._gradients if self._is_divided(targets, counts) else self._forward_program(self._gradients)
        gradients, terms, counts = gradients_of(batch, targets, counts, scale)
        if self.world.size > 1:
            # Scaled for float16, the gradient also fits its range on the way to the other ranks; losses stay float32.
            packing = self.optimizer.packing
            gradients = packing.unpack(self.world.sum([packing.pack(gradients)], half=self.optimizer.scales_loss)[0])
        [values] = self.world.sum([ops.stack([*terms.values(), stop_requested])])
        *values, stop_requests = ops.unstack(values, len(terms) + 1)
        terms = dict(zip(terms, values, strict=True))
        return self._program(self._update)(gradients, terms, counts, scale, learning_rate, stop_requests)

    def _program(self, function: Callable) -> Callable:
        if not self.compiled or self._is_one_program:
            return function
        return tf.function(function, jit_compile=True, autograph=False)

    def _forward_program(self, function: Callable) -> Callable:
        """Return the compiled function, or the function itself if batch normalization communicates between ranks."""
        return function if self.world.group_size > 1 else self._program(function)

    def _training_outputs(self, images, sizes):
        return self.detector.outputs(images, sizes, training=True)

    def _is_divided(self, targets, counts) -> bool:
        """Return whether XLA compiles the parts of the forward pass, between which the host or other ranks are called.

        The host is called for targets, the ranks for counts that are known only with the outputs.
        """
        return counts is None or (targets is None and self.detector.matches_on_host)

    def _target_program(self, *arguments) -> tuple:
        """Return `targets_and_counts` of a batch and, where targets depend on them, constant outputs."""
        function = self.targets_and_counts
        return (function if self.detector.matches_on_host else self._program(function))(*arguments)

    def _targets_from(self, outputs, batch) -> tuple:
        """Return targets and counts assigned from the outputs, all without gradient."""
        constant = tf.nest.map_structure(tf.stop_gradient, outputs)
        return tf.nest.map_structure(tf.stop_gradient, self._target_program(batch, constant))

    def _state(self) -> dict:
        return {name: variable.value for name, variable in self.optimizer.variables.items()}

    def _summed(self, counts: dict) -> dict:
        return dict(zip(counts, self.world.sum([*counts.values()]), strict=True))

    def _gradients(self, batch, targets, counts, scale):
        """Return gradients of the scaled loss and its terms, summed over the parts, and the counts of all ranks."""
        if self.parts == 1:
            return self._gradients_of_part(batch, targets, counts, scale)
        gradients, terms, _ = self._gradients_of_part(self.part_of(batch, 0), self.part_of(targets, 0), counts, scale)
        names, packing = list(terms), self.optimizer.packing

        def add(number, gradient, values):
            part = self.part_of(batch, number), self.part_of(targets, number)
            more, terms, _ = self._gradients_of_part(*part, counts, scale)
            return number + 1, gradient + packing.pack(more), values + ops.stack([terms[name] for name in names])

        _, gradient, values = tf.while_loop(
            lambda number, *_: number < self.parts,
            add,
            [tf.constant(1), packing.pack(gradients), ops.stack([terms[name] for name in names])],
            parallel_iterations=1,
        )
        return packing.unpack(gradient), dict(zip(names, ops.unstack(values, len(names)), strict=True)), counts

    def _gradients_of_part(self, batch, targets, counts, scale):
        weights = [weight.value for weight in self.network.trainable_variables]
        forward, loss_of = self._training_outputs, self.loss
        if self._is_divided(targets, counts):
            forward, loss_of = self._forward_program(forward), self._program(loss_of)
        with tf.GradientTape() as tape:
            outputs = forward(batch.images, batch.sizes)
            if targets is None:
                targets, of_rank = self._targets_from(outputs, batch)
                if counts is None:
                    with tape.stop_recording():
                        counts = self._summed(of_rank)
            loss, terms = loss_of(outputs, targets, counts)
            scaled = loss * scale if self.optimizer.scales_loss else loss
        gradients = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return gradients, terms, counts

    def _update(self, gradients: Sequence, terms, counts, scale, learning_rate, stop_requests):
        weights = self.network.trainable_variables
        packed = self.optimizer.packed_weights([weight.value for weight in weights])
        squares = squared_norms(gradients)
        change, state, applied = self.optimizer.updated(
            self._state(), gradients, learning_rate, squared_norms=squares, weights=packed
        )
        for weight, part in zip(weights, self.optimizer.changes(change), strict=True):
            # Not Keras's, which is three operations: each of hundreds of weights takes milliseconds to trace
            weight.value.assign_add(ops.cast(part, weight.dtype), read_value=False)
        for name, variable in self.optimizer.variables.items():
            variable.assign(state[name])
        packed_average = None
        if self.average is not None:
            packed_average = self.average.update(state["iterations"], applied=applied)
        return self.report(
            terms,
            counts,
            squared_norms=squares,
            scale=scale,
            applied=applied,
            packed_average=packed_average,
            stop_requests=stop_requests,
        )


def _batch_signature(batch: Batch, *, fixed_slots: bool) -> Batch:
    """Return the input signature; unless `fixed_slots`, the number of object slots may vary without a new trace."""
    signature = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    if fixed_slots:
        return signature
    slots = (tf.TensorSpec([spec.shape[0], None, *spec.shape[2:]], spec.dtype) for spec in signature.objects)
    return signature._replace(objects=Objects(*slots))
