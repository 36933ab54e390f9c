"""The training step of JAX: one program over explicit state, on the devices of all processes."""

import jax
import keras
import numpy as np

from efficientdet.devices.mesh import finished, for_each_device, local, replicate, replicated, shard_batch, sharded
from efficientdet.optimization.optimizer import squared_norms
from efficientdet.optimization.step import TrainStep
from object_detection.stateless_random import seeds_of
from object_detection.structures import Batch


class JaxStep(TrainStep):
    """Training step of JAX; see `build_train_step`.

    Between steps the state stays on the devices and the variables are outdated until `store`; the next step after that
    starts from the variables.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._state = None
        self._devices = (self.world.devices, self.world.size)  # devices per process, number of processes
        self._replicated = replicated(*self._devices)
        self._compiled = jax.jit(self._step, donate_argnums=0, out_shardings=self._replicated)
        self._is_compiled = False

    def __call__(self, batch: Batch, learning_rate: float, stop_requested: bool = False) -> dict:
        """See `TrainStep`."""
        arguments = self._arguments(batch, learning_rate, stop_requested)
        if self.world.size > 1 and not self._is_compiled:
            self._compiled.lower(*arguments).compile()  # the call uses it
            self.world.barrier()  # a step waits for others, whose compilation may take minutes longer, only so long
            self._is_compiled = True
        self._state = None  # donated: after an error there is nothing to store
        self._state, report = finished(self._compiled(*arguments))
        return report

    def lowered(self, batch: Batch) -> jax.stages.Lowered:
        """Return the program of a step before its compilation, to analyze its cost."""
        return self._compiled.lower(*self._arguments(batch, 0.0, False))

    def _arguments(self, batch: Batch, learning_rate: float, stop_requested: bool) -> tuple:
        state = self._state
        if state is None:
            values = jax.tree.map(lambda variable: variable.value, self._variables())
            state = replicate(values, *self._devices)
        requests = np.zeros(self.world.devices, np.float32)
        requests[0] = stop_requested
        return (
            state,
            jax.tree.map(self._placed, batch),
            np.float32(learning_rate),
            shard_batch(requests, *self._devices),
        )

    def _placed(self, array) -> jax.Array:
        """Return an array of the batch on the devices, with the precision that they have."""
        if isinstance(array, jax.Array):
            return array
        array = np.asarray(array)
        return shard_batch(array.astype(jax.dtypes.canonicalize_dtype(array.dtype)), *self._devices)

    def store(self) -> None:
        """See `TrainStep`. Without a step since the last call, the variables are placed as after one."""
        if self._state is None:
            values = replicate(jax.tree.map(lambda variable: variable.value, self._variables()), self.world.devices)
        else:
            values = local(self._state, self.world.devices)
        jax.tree.map(lambda variable, value: variable.assign(value), self._variables(), values)
        self._state = None

    def _variables(self) -> dict:
        return {
            "trained": self.network.trainable_variables,
            "others": self.network.non_trainable_variables,
            "optimizer": self.optimizer.variables,
            "average": [self.average.packed] if self.average is not None else [],
        }

    def _step(self, state, batch, learning_rate, stop_requested):
        scale = self.loss_scale(state["optimizer"])
        gradients, others, terms, counts = self._gradients(state["trained"], state["others"], batch, scale)
        packed = self.optimizer.packed_weights(state["trained"])
        squares = squared_norms(gradients)
        change, slots, applied = self.optimizer.updated(
            state["optimizer"], gradients, learning_rate, squared_norms=squares, weights=packed
        )
        change = jax.lax.with_sharding_constraint(change, self._replicated)  # one collective instead of one per weight
        trained = [
            weight + part.astype(weight.dtype)
            for weight, part in zip(state["trained"], self.optimizer.changes(change), strict=True)
        ]
        average = state["average"]
        if self.average is not None:
            variables = (*self.network.trainable_variables, *self.network.non_trainable_variables)
            values = dict(zip(map(id, variables), [*trained, *others], strict=True))
            average = [
                self.average.updated(
                    average[0],
                    [values[id(variable)] for variable in self.average.variables],
                    step=slots["iterations"],
                    applied=applied,
                )
            ]
        # Summed after the loop over parts, which sums over devices too: see `uses_gloo`.
        stop_requested = stop_requested + 0.0 * jax.numpy.nan_to_num(sum(terms.values()))
        report = self.report(
            terms,
            counts,
            squared_norms=squares,
            scale=scale,
            applied=applied,
            packed_average=average[0] if average else None,
            stop_requests=stop_requested.sum(),
        )
        return {"trained": trained, "others": others, "optimizer": slots, "average": average}, report

    def part_of(self, tensors, number):
        """Return part `number` of tensors [B, ..], sharded as the batch is: every device computes a share of it."""
        if tensors is None:
            return None
        return jax.lax.with_sharding_constraint(super().part_of(tensors, number), sharded(*self._devices))

    def targets_and_counts(self, batch: Batch, outputs=None) -> tuple:
        """See `TrainStep`; each device assigns the objects of its own images."""
        if outputs is not None:
            return super().targets_and_counts(batch, outputs)
        assign = for_each_device(lambda objects, seeds: self.detector.targets(objects, None, seeds), *self._devices)
        targets = assign(batch.objects, seeds_of(batch.positions, seed=self.seed))
        return targets, self.detector.counts(targets)

    def _gradients(self, trained, others, batch, scale):
        """Return gradients of the scaled loss of all parts, the values of other weights, the terms and the counts."""
        if self.detector.learns_from_outputs:
            targets, counts = None, self.detector.counts_of_objects(batch.objects)
        else:
            targets, counts = self.targets_and_counts(batch)

        def forward(trained, others, batch, targets):
            mapping = [
                *zip(self.network.trainable_variables, trained, strict=True),
                *zip(self.network.non_trainable_variables, others, strict=True),
            ]
            with keras.StatelessScope(state_mapping=mapping) as scope:
                outputs, known = self.detector.outputs(batch.images, batch.sizes, training=True), counts
                if targets is None:
                    constant = jax.lax.stop_gradient(outputs)
                    targets, counted = jax.lax.stop_gradient(self.targets_and_counts(batch, constant))
                    known = counted if counts is None else counts
                loss, terms = self.loss(outputs, targets, known)
                others = [scope.get_current_value(variable) for variable in self.network.non_trainable_variables]
            return loss * scale, (terms, known, others)

        def part(others, number):
            gradients, (terms, _, others) = jax.grad(forward, has_aux=True)(
                trained, others, self.part_of(batch, number), self.part_of(targets, number)
            )
            return others, (gradients, terms)

        if self.parts == 1:
            gradients, (terms, counts, others) = jax.grad(forward, has_aux=True)(trained, others, batch, targets)
            return gradients, others, terms, counts
        others, several = jax.lax.scan(part, others, jax.numpy.arange(self.parts))
        gradients, terms = jax.tree.map(lambda values: values.sum(axis=0), several)
        return gradients, others, terms, counts
