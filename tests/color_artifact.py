"""An exported file with known detections: how red, green and blue the image is, each in a corner of its own."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description
from efficientdet.exports.exported_file import ArtifactMetadata
from object_detection.structures import DETECTIONS

SIDE = 64  # of the input
CLASSES = ClassNames((1, 5, 9), ("red", "<img src=x onerror=document.title='broken'>", "blue & co"))
SHARES = np.float32([[0, 0, 0.5, 0.5], [0.25, 0.25, 0.75, 0.75], [0.5, 0.5, 1, 1]])  # yxyx of the image, by class


def wanted(color: tuple[int, int, int], *, height: int, width: int) -> list[tuple[list[float], float, int, str]]:
    """(x_min, y_min, x_max, y_max), score, category id and name of an image all of one color, best first."""
    found = [
        ([share[1] * width, share[0] * height, share[3] * width, share[2] * height], value / 255, number, name)
        for share, value, number, name in zip(SHARES.tolist(), color, CLASSES.category_ids, CLASSES.names, strict=True)
    ]
    return sorted((one for one in found if one[1] > 0), key=lambda one: -one[1])


def write_color_artifact(path: Path, score_thresholds: dict | None = None) -> Path:
    """images [B, 64, 64, 3] uint8 and sizes [B, 2] int32 -> three boxes, whose scores are the means of the channels."""
    constants = {
        "axes": np.int64([1, 2]),
        "last": np.int64([1]),
        "white": np.float32(255),
        "three": np.int64([3]),
        "shares": SHARES,
    }
    nodes = [
        ("Cast", ["images"], ["pixels"], {"to": TensorProto.FLOAT}),
        ("Cast", ["sizes"], ["sides"], {"to": TensorProto.FLOAT}),
        ("ReduceSum", ["pixels", "axes"], ["sums"], {"keepdims": 0}),
        ("ReduceProd", ["sides", "last"], ["area"], {}),
        ("Div", ["sums", "area"], ["means"], {}),
        ("Div", ["means", "white"], ["shown"], {}),
        ("TopK", ["shown", "three"], ["scores", "order"], {}),
        ("Cast", ["order"], ["classes"], {"to": TensorProto.INT32}),
        ("Gather", ["shares", "order"], ["chosen"], {}),
        ("Concat", ["sides", "sides"], ["corners"], {"axis": 1}),
        ("Unsqueeze", ["corners", "last"], ["each"], {}),
        ("Mul", ["chosen", "each"], ["boxes"], {}),
    ]
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **settings) for kind, inputs, outputs, settings in nodes],
        "colors",
        [tensor("images", TensorProto.UINT8, ["B", SIDE, SIDE, 3]), tensor("sizes", TensorProto.INT32, ["B", 2])],
        [
            tensor("boxes", TensorProto.FLOAT, ["B", 3, 4]),
            tensor("scores", TensorProto.FLOAT, ["B", 3]),
            tensor("classes", TensorProto.INT32, ["B", 3]),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    metadata = ArtifactMetadata(
        description=Description(
            model_name="efficientdet-d0",
            hparams={},
            categories=CLASSES.to_categories(),
            weights="raw",
            score_thresholds=score_thresholds or {},
        ),
        resize=HostResize(kind="letterbox", size=(SIDE, SIDE)),
        outputs=DETECTIONS,
    )
    helper.set_model_props(model, metadata.to_props())
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path
