"""A detector of another family, small: outputs of its own, some from a layer that brings its translation to ONNX."""

import keras
import numpy as np
from keras import layers, ops

from model.detection_model import DetectionModel
from object_detection.structures import Detections

INT32 = 6  # of onnx.TensorProto, which need not be installed


def drawn(network):
    """Weights and statistics among which none could be left out unnoticed."""
    random = np.random.default_rng(1)
    for weight in network.weights:
        low, high = (0.5, 2.0) if "variance" in weight.path or "gamma" in weight.path else (-1.0, 1.0)
        weight.assign(random.uniform(low, high, weight.shape))
    return network


class BestCells(layers.Layer):
    """The cells of an image that score most: places [B, n] and values [B, n, C], by a translation of its own."""

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count

    def call(self, features):
        rows = ops.reshape(features, (-1, features.shape[1] * features.shape[2], features.shape[3]))
        _, places = ops.top_k(rows[..., 0], self.count)
        return ops.cast(places, "int32"), ops.take_along_axis(rows, places[..., None], axis=1)

    def to_onnx(self, graph, inputs):
        _, height, width, channels = graph.shape_of(inputs[0])
        rows = graph.add("Reshape", [inputs[0], np.array([0, height * width, channels])])
        scores = graph.add("Squeeze", [graph.add("Slice", [rows, *(np.array([n]) for n in (0, 1, 2))]), np.array([2])])
        _, places = graph.add_several("TopK", [scores, np.array([self.count])], 2)
        values = graph.add("GatherND", [rows, graph.add("Unsqueeze", [places, np.array([2])])], batch_dims=1)
        return [graph.add("Cast", [places], to=INT32), values]


class OtherFamily(DetectionModel):
    """A detector whose network has outputs of its own, some from a layer of its own."""

    image_size = (16, 24)

    def __init__(self, *, masks_padding=True):
        self.masks_padding = masks_padding
        keras.utils.set_random_seed(0)
        image = keras.Input((16, 24, 3))
        features = layers.ReLU()(layers.Conv2D(8, 3, strides=2)(image))
        places, values = BestCells(5, name="best")(features)
        boxes = layers.Dense(4, name="boxes")(values)
        maps = layers.Conv2D(2, 1, name="maps")(features)
        self.network = drawn(keras.Model(image, {"boxes": boxes, "maps": maps, "places": places, "values": values}))

    def normalize(self, images, sizes):
        rows, columns = (ops.arange(side)[None] < sizes[:, axis, None] for axis, side in enumerate((16, 24)))
        inside = ops.logical_and(rows[:, :, None], columns[:, None])[..., None]
        pixels = (ops.cast(images, "float32") - np.float32([120, 110, 100])) / 60.0
        return ops.where(inside, pixels, np.float32([1, 0, -1])) if self.masks_padding else pixels

    def outputs(self, images, sizes, *, training=False):
        return self.network(self.normalize(images, sizes), training=training)

    def detections(self, outputs, sizes):
        corner = outputs["boxes"][..., :2]
        boxes = ops.concatenate([corner, corner + ops.abs(outputs["boxes"][..., 2:])], axis=-1)
        scores = ops.sigmoid(outputs["values"][..., 0])
        return Detections(boxes, scores, outputs["places"] % 3, scores > 0.1)
