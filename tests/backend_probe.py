"""What object_detection and model compute, on whichever Keras backend is loaded; run by test_backends.

    python backend_probe.py given.npz found.npz

`tensorflow` is made unimportable first. Arrays in, arrays out.
"""

import dataclasses
import sys

if __name__ == "__main__":
    sys.modules["tensorflow"] = None
    sys.path.insert(0, sys.argv[3])

import keras
import numpy as np
from keras import ops
from miniature import miniature_detector

from efficientdet.plugins.mask_rcnn.detector import TwoStageConfig, TwoStageDetector
from efficientdet.plugins.mask_rcnn.network import MaskRcnnConfig, build_mask_rcnn
from efficientdet.plugins.mask_rcnn.regions import ProposalConfig
from model.bifpn import BifpnConfig
from model.dense_detector import DenseDetector
from model.dense_losses import LossConfig
from model.detection_model import losses, named_variables
from model.efficientdet import EfficientDetConfig, build_efficientdet
from model.heads import HeadConfig
from object_detection.assignment.anchor_assignment import assign_anchors
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid
from object_detection.structures import Batch, Objects
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs


def given_arrays() -> dict[str, np.ndarray]:
    """Images, objects and the weights of both networks."""
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 30, (2, 4, 2))
    given = {
        "images": rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8),
        "sizes": np.int32([[64, 64], [40, 64]]),
        "boxes": np.concatenate([corner, corner + rng.uniform(8, 30, (2, 4, 2))], axis=-1).astype(np.float32),
        "classes": rng.integers(0, 3, (2, 4)).astype(np.int32),
        "valid": np.array([[True, True, True, False], [True, True, False, False]]),
        "crowd": np.array([[False, True, False, False], [False] * 4]),
    }
    corner = rng.integers(0, 60, (2, 40, 2)) * 4.0  # whole cells, so that many overlaps are equal
    given["many"] = np.concatenate([corner, corner + rng.integers(1, 30, (2, 40, 2)) * 4], axis=-1).astype(np.float32)
    for prefix, network in (
        ("miniature", _detector().network),
        ("b0", _b0()),
        ("regions", _two_stage_detector().network),
    ):
        for name, variable in named_variables(network).items():
            given[f"{prefix}:{name}"] = _drawn(rng, name, variable.shape)
            if prefix == "regions" and ("bbox_pred" in name or "cls_score" in name):  # boxes that lie within the image
                given[f"{prefix}:{name}"] *= np.float32(1e-3)
    return given


def _drawn(rng, name: str, shape) -> np.ndarray:
    """Weights under which a signal neither dies nor explodes on its way through the network."""
    if name.endswith(("gamma", "moving_variance")):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    inputs = np.prod(shape[:2] if "depthwise" in name else shape[:-1]) if name.endswith("kernel") else 100
    return (rng.normal(size=shape) * np.sqrt(2 / inputs)).astype(np.float32)


def found_arrays(given) -> dict[str, np.ndarray]:
    """Everything that the two backends must agree on, by name."""
    detector = _detector()
    for name, variable in named_variables(detector.network).items():
        variable.assign(given[f"miniature:{name}"])
    objects = Objects.of_boxes(*(ops.convert_to_tensor(given[name]) for name in ("boxes", "classes", "valid", "crowd")))
    images, sizes = ops.convert_to_tensor(given["images"]), ops.convert_to_tensor(given["sizes"])
    targets = _compiled(detector.targets)(objects)
    detections = _compiled(lambda images, sizes: detector.detections(detector.outputs(images, sizes), sizes))(
        images, sizes
    )
    logits, deltas = _compiled(detector.outputs)(images, sizes)
    found = (
        {"outputs.logits": logits, "outputs.deltas": deltas}
        | _named("targets", targets)
        | _named("detections", detections)
    )
    found |= _named("assignment", _compiled(_assigned)(ops.convert_to_tensor(given["many"])))
    for method, per_class in (("hard", True), ("hard", False), ("gaussian", False)):
        found |= _named(
            f"{method}.{per_class}", _suppressed(logits, deltas, detector, method=method, per_class=per_class)
        )
    found |= _task_aligned(detector, objects, outputs=(logits, deltas))
    terms, gradients = _trained(detector, Batch(images, sizes, objects, None, None, None), targets)
    found |= {f"losses.{name}": value for name, value in terms.items()}
    found |= {f"gradients.{i}": gradient for i, gradient in enumerate(gradients)}
    found |= dict(zip(("b0.logits", "b0.deltas"), _b0_outputs(detector.normalize(images, sizes), given), strict=True))
    found |= _two_stages(images, sizes, objects, given)
    return {name: ops.convert_to_numpy(value) for name, value in found.items()}


def _named(prefix: str, bundle) -> dict:
    return {f"{prefix}.{name}": value for name, value in bundle._asdict().items() if value is not None}


def _compiled(function):
    """As one program; step by step JAX would compile every operation by itself."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, autograph=False)


def _assigned(boxes):
    batch, slots = boxes.shape[:2]
    numbers = ops.tile(ops.arange(slots, dtype="int32")[None], (batch, 1))
    objects = Objects.of_boxes(boxes, numbers, numbers >= 0, numbers % 7 == 6)
    return assign_anchors(objects, anchor_grid(AnchorConfig(), (256, 256)))


def _task_aligned(detector, objects, *, outputs):
    """Targets by task alignment, and the losses that have its scores as target."""
    quality = LossConfig(class_loss="quality focal", box_loss="ciou", box_loss_weight=2.0)
    config = dataclasses.replace(detector.config, assigner=TaskAlignedAssigner(), losses=quality)
    detector = DenseDetector(detector.network, config)

    def learnt(objects, outputs):
        targets = detector.targets(objects, outputs)
        return targets, losses(detector, outputs, targets, detector.counts(targets))

    targets, terms = _compiled(learnt)(objects, outputs)
    return _named("task_aligned", targets) | {f"task_aligned.{term}": value for term, value in terms.items()}


def _suppressed(logits, deltas, detector, *, method: str, per_class: bool):
    config = SuppressionConfig(method=method, per_class=per_class, candidates=80, max_detections=8)
    anchors = ops.convert_to_tensor(detector.anchors)
    return _compiled(lambda logits, deltas: detections_from_outputs(logits, deltas, anchors, config=config))(
        logits, deltas
    )


def _detector():
    return miniature_detector(
        losses=LossConfig(iou_loss_type="giou"), suppression=SuppressionConfig(candidates=100, max_detections=10)
    )


def _b0():
    with keras.StatelessScope(initialize_variables=False):  # drawing weights that are given anyway is slow
        return build_efficientdet(
            EfficientDetConfig(
                backbone="efficientnet-b0",
                image_size=(64, 64),
                num_classes=3,
                bifpn=BifpnConfig(filters=8, cells=1),
                head=HeadConfig(filters=8, depth=1),
                anchors=AnchorConfig(),
            )
        )


def _b0_outputs(images, given):
    """Class logits and box deltas of the network with the given weights."""
    network = _b0()
    names = {id(variable): name for name, variable in named_variables(network).items()}
    trainable, frozen = (
        [ops.convert_to_tensor(given[f"b0:{names[id(variable)]}"]) for variable in variables]
        for variables in (network.trainable_variables, network.non_trainable_variables)
    )
    outputs, _ = _compiled(lambda *state: network.stateless_call(*state, training=False))(trainable, frozen, images)
    return outputs


def _two_stage_detector():
    networks = build_mask_rcnn(
        MaskRcnnConfig(
            backbone="resnet18",
            image_size=(64, 64),
            num_classes=3,
            proposals=ProposalConfig(candidates_per_level=20, kept=12),
        )
    )
    return TwoStageDetector(
        networks,
        TwoStageConfig(
            image_size=(64, 64),
            proposals=ProposalConfig(candidates_per_level=30, kept=30),
            anchors_per_image=32,
            regions_per_image=16,
        ),
    )


def _two_stages(images, sizes, objects, given):
    """Detections, what is learned and the losses of a Mask R-CNN with the given weights; objects fill their boxes."""
    detector = _two_stage_detector()
    for name, variable in named_variables(detector.network).items():
        variable.assign(given[f"regions:{name}"])
    objects = objects._replace(masks=ops.ones((*objects.valid.shape, 14, 14), "uint8"))
    seeds = ops.convert_to_tensor(np.int32([[0, 0], [0, 1]]))

    def learnt(images, sizes):
        outputs = detector.training_outputs(images, sizes, training=False)
        targets = detector.targets(objects, outputs, seeds)
        return (targets.classes, targets.deltas, targets.masks), losses(
            detector, outputs, targets, detector.counts(targets)
        )

    found = dict(zip(detector.output_names, _compiled(detector.outputs)(images, sizes), strict=True))
    targets, terms = _compiled(learnt)(images, sizes)
    found |= dict(zip(("targets of classes", "targets of boxes", "targets of masks"), targets, strict=True)) | terms
    return {f"regions.{name}": value for name, value in found.items()}


def _trained(detector, batch, targets):
    """Loss terms in training and the gradient of every trainable weight."""

    def loss_terms():
        outputs = detector.outputs(batch.images, batch.sizes, training=True)
        return {**losses(detector, outputs, targets, detector.counts(targets)), **detector.regularization()}

    weights = detector.network.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            terms = loss_terms()
            loss = sum(terms.values())
        return terms, tape.gradient(loss, [weight.value for weight in weights])

    import jax

    def loss_of(values):
        with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
            terms = loss_terms()
        return sum(terms.values()), terms

    values = [weight.value for weight in weights]
    (_, terms), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(values)
    return terms, gradients


if __name__ == "__main__":
    assert keras.backend.backend() == "jax"
    np.savez(sys.argv[2], **found_arrays(np.load(sys.argv[1])))
