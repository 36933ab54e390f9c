"""One training step as compiled programs, for each backend.

A step takes a `Batch` and a learning rate, updates weights, optimizer and average in place, and returns scalars: the
loss terms, `loss`, `det_loss` (without regularization), `gradient_norm` (before clipping), the detector's counts such
as `positives`, `applied` (False where loss scaling skipped the update because a gradient overflowed), with loss scaling
`loss_scale`, `finite` (False where loss, gradient, weights or average are NaN or infinite and the update was not
skipped), and `stop_requests` (the number of ranks with a stop request).

With several ranks: counts are summed before the losses are divided by the normalizers computed from them, so that all
ranks use the same normalizers; the gradients are one vector and summed in one message with the losses; the rest is the
same computation on the same bits on all ranks. Two ranks therefore equal one with twice the batch, except for batch
statistics.
"""

from functools import reduce
from operator import add

from keras import ops

from efficientdet.devices.distributed import World
from efficientdet.optimization.optimizer import PackedOptimizer, WeightAverage
from model.detection_model import DetectionModel, losses
from object_detection.stateless_random import seeds_of
from object_detection.structures import Batch, Tensor


class TrainStep:
    """Base class of both backends' training steps: the computation between gradients and variables."""

    def __init__(
        self,
        detector: DetectionModel,
        optimizer: PackedOptimizer,
        average: WeightAverage | None,
        *,
        world: World,
        parts: int,
        compiled: bool,
        seed: int,
    ):
        self.detector, self.optimizer, self.average, self.network = detector, optimizer, average, detector.network
        self.world, self.parts, self.compiled, self.seed = world, parts, compiled, seed
        self._weight_losses: tuple[str, ...] = ()  # names of losses of weights alone, set by `loss`

    def __call__(self, batch: Batch, learning_rate: float, stop_requested: bool = False) -> dict[str, Tensor]:
        """Run a training step and return its sums."""
        raise NotImplementedError

    def store(self) -> None:
        """Write the state to the variables, before anything else reads or changes them."""

    def targets_and_counts(self, batch: Batch, outputs=None) -> tuple:
        """Return the targets of a batch, and this rank's counts."""
        targets = self.detector.targets(batch.objects, outputs, seeds_of(batch.positions, seed=self.seed))
        return targets, self.detector.counts(targets)

    def loss(self, outputs, targets, counts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return this rank's share of the loss and its terms; summed over ranks and parts: the global batch's loss."""
        regularization = {
            name: value / (self.world.replicas * self.parts) for name, value in self.detector.regularization().items()
        }
        self._weight_losses = tuple(regularization)
        terms = {**losses(self.detector, outputs, targets, counts), **regularization}
        return reduce(add, terms.values()), terms

    def part_of(self, tensors, number):
        """Return part `number` of tensors [B, ..] (any nest of tuples, or None)."""
        if tensors is None:
            return None
        if isinstance(tensors, tuple):
            parts = (TrainStep.part_of(self, tensor, number) for tensor in tensors)
            return type(tensors)(*parts) if hasattr(tensors, "_fields") else tuple(parts)
        size = tensors.shape[0] // self.parts
        return ops.slice(tensors, (number * size, *[0] * (len(tensors.shape) - 1)), (size, *ops.shape(tensors)[1:]))

    def loss_scale(self, state: dict[str, Tensor]) -> Tensor | float:
        """Return the factor of the loss before its gradient is computed."""
        return state["dynamic_scale"] if self.optimizer.scales_loss else 1.0

    def report(
        self, terms: dict, counts: dict, *, squared_norms, scale, applied, packed_average, stop_requests
    ) -> dict[str, Tensor]:
        """Return the scalars of a step."""
        loss, norm = sum(terms.values()), ops.sqrt(ops.sum(squared_norms)) / scale
        finite = ops.logical_and(ops.isfinite(loss), ops.isfinite(norm))
        if packed_average is not None:
            # Any NaN or infinite weight or average makes this sum NaN or infinite: one pass over a vector.
            finite = ops.logical_and(finite, ops.isfinite(ops.sum(packed_average)))
        # An overflow that loss scaling skipped changed nothing.
        skipped = ops.logical_not(applied) if self.optimizer.scales_loss else False
        of_weights = sum(terms[name] for name in self._weight_losses)
        scales = {"loss_scale": scale} if self.optimizer.scales_loss else {}
        return {
            **terms,
            **counts,
            **scales,
            "det_loss": loss - of_weights,
            "loss": loss,
            "gradient_norm": norm,
            "applied": applied,
            "finite": ops.logical_or(finite, skipped),
            "stop_requests": stop_requests,
        }
