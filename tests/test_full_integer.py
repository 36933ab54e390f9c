"""Full-integer LiteRT files: their contract, their detections, metadata, and operators for Edge TPUs."""

import dataclasses
import hashlib
import io
import json
import re
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import yaml
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.tools import flatbuffer_utils
from drawn_records import draw_records
from miniature import miniature_detector
from PIL import Image

import efficientdet
from dataset.input.resize import letterbox
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts
from efficientdet.plugins.small_devices.litert_files import integer_resize, write_frigate_files
from model.batch_norm import BatchNormalization
from model.bifpn import BifpnConfig, build_bifpn
from model.dense_detector import DenseDetector, DenseDetectorConfig
from model.detection_model import named_variables
from model.heads import HeadConfig, build_box_head, build_class_head
from object_detection.geometry.anchor_grid import AnchorConfig
from object_detection.geometry.box_coding import BoxCoder
from object_detection.suppression.tensor_suppression import SuppressionConfig
from program_support.errors import InputError

SIDE = 80  # levels of 10, 5 and 3 cells: upsampling by 2, and from 3 to 5
ANCHORS = AnchorConfig(min_level=3, max_level=5, num_scales=1, anchor_scale=3.0)
SUPPRESSION = SuppressionConfig(method="hard", max_detections=20)
FULL = "detector-full-int8.tflite"


def tiny_lite(num_classes=5, **suppression):
    """A network of EfficientDet-Lite's operations with random weights, of which some scores are high."""
    keras.utils.set_random_seed(3)
    images = features = keras.Input((SIDE, SIDE, 3))
    levels = []
    for number, filters in enumerate((8, 12, 16, 16, 16)):
        features = keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False, name=f"conv{number}")(
            features
        )
        features = keras.layers.Activation("relu6")(BatchNormalization(name=f"norm{number}")(features))
        levels.append(features)
    config = BifpnConfig(filters=16, cells=1, min_level=3, max_level=5, weight_method="sum", activation="relu6")
    pyramid = build_bifpn(levels[2:], config)
    head = HeadConfig(filters=16, depth=1, activation="relu6")
    logits = build_class_head(pyramid, head, num_anchors=3, num_classes=num_classes)
    network = keras.Model(images, [logits, build_box_head(pyramid, head, num_anchors=3)])
    for name, variable in named_variables(network).items():
        if name.endswith("class-predict/bias"):
            variable.assign(variable * 0 - 1.0)
        if name.endswith("predict/pointwise_kernel"):  # the outputs of random features hardly differ
            variable.assign(variable * (1000.0 if "class" in name else 100.0))
    return DenseDetector(
        network,
        DenseDetectorConfig(
            image_size=(SIDE, SIDE),
            anchors=ANCHORS,
            suppression=dataclasses.replace(SUPPRESSION, **suppression),
            mean=(127 / 255,) * 3,
            stddev=(128 / 255,) * 3,
        ),
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with the file, the drawn records, and an image of another shape than the input."""
    folder = tmp_path_factory.mktemp("integer")
    drawn = draw_records(folder / "drawn", images={"val": 3}, side=SIDE)
    arrays = {name: np.asarray(variable) for name, variable in named_variables(tiny_lite().network).items()}
    categories = drawn.class_names.to_categories()
    description = Description(
        model_name="efficientdet-lite0",
        hparams={"image_size": SIDE},
        categories=categories,
        weights="raw",
        score_thresholds={"overall": 0.3, "classes": {categories[1]["name"]: 0.61}},
    )
    write_arrays(str(folder / "ckpt"), arrays, description)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", lambda hparams, *, num_classes, precision: tiny_lite(num_classes))
        export_artifacts(
            ModelConfig(ckpt_path=f"{folder}/ckpt", model_name="efficientdet-d0", model_name_given=False, overrides={}),
            ExportConfig(
                output_dir=str(folder),
                formats=("litert-full-int8",),
                runs=1,
                images=tuple(map(str, sorted((drawn.folder / "val").glob("*.jpg")))),
                records=drawn.records("val"),
                calibration_records=drawn.records("val"),
            ),
        )
    return folder, drawn


def an_image(drawn):
    """Return a drawn image that fills the upper part of the input."""
    from dataset.files.image_files import read_image

    return read_image(str(sorted((drawn.folder / "val").glob("*.jpg"))[0]))[: SIDE * 3 // 4]


def padded(image):
    canvas = np.full((1, SIDE, SIDE, 3), 127, np.uint8)
    canvas[0, : image.shape[0]] = image
    return canvas


def plain_run(path, image, *, threads=1):
    """Run a file as Frigate and pycoral do: tensors by their position."""
    interpreter = Interpreter(str(path), num_threads=threads)
    interpreter.allocate_tensors()
    [entry], outputs = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(entry["index"], image)
    interpreter.invoke()
    return entry, [interpreter.get_tensor(output["index"]) for output in outputs]


def test_the_inputs_and_outputs_are_those_that_consumers_expect(exported):
    folder, drawn = exported
    entry, (boxes, classes, scores, count) = plain_run(folder / FULL, padded(an_image(drawn)))
    assert (entry["dtype"], entry["shape"].tolist()) == (np.uint8, [1, SIDE, SIDE, 3])
    assert entry["quantization"] == (1 / 128, 127)
    assert [values.shape for values in (boxes, classes, scores, count)] == [(1, 20, 4), (1, 20), (1, 20), (1,)]
    assert all(values.dtype == np.float32 for values in (boxes, classes, scores, count))
    assert 0 < count[0] <= 20
    assert (np.diff(scores[0]) <= 0).all()
    assert 0.2 < scores.max() < 1
    assert (classes[0] == classes[0].astype(int)).all()
    assert -1 < boxes.min() < boxes.max() < 2


def test_detections_do_not_depend_on_the_number_of_threads(exported):
    """With suppression per class the operator loses a class if there are two."""
    folder, drawn = exported
    _, wanted = plain_run(folder / FULL, padded(an_image(drawn)))
    assert 2 in wanted[1][0]  # the class that would be lost
    for threads in (2, 3):
        _, found = plain_run(folder / FULL, padded(an_image(drawn)), threads=threads)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_only_the_detection_operator_computes_in_float(exported):
    """All others are in the list of https://coral.ai/docs/edgetpu/models-intro/#supported-operations."""
    folder, _ = exported
    tree = flatbuffer_utils.convert_bytearray_to_object(bytearray((folder / FULL).read_bytes()))
    [graph] = tree.subgraphs
    codes = [tree.operatorCodes[one.opcodeIndex] for one in graph.operators]
    assert codes[-1].customCode == b"TFLite_Detection_PostProcess"
    names = [flatbuffer_utils.opcode_to_name(tree, one.opcodeIndex) for one in graph.operators[:-1]]
    assert names[-2:] == ["DEQUANTIZE", "DEQUANTIZE"]
    supported = {
        "ADD",
        "CONCATENATION",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "LOGISTIC",
        "MAX_POOL_2D",
        "MUL",
        "PAD",
        "QUANTIZE",
    }
    assert {*names[:-2]} <= supported | {"RESHAPE", "RESIZE_NEAREST_NEIGHBOR"}
    kinds = {graph.tensors[n].type for one in graph.operators[:-3] for n in (*one.inputs, *one.outputs) if n >= 0}
    assert kinds <= {schema.TensorType.INT8, schema.TensorType.UINT8, schema.TensorType.INT32}


def test_it_is_read_like_every_exported_file(exported):
    """The image is padded with the color that the network's normalization makes zero."""
    folder, drawn = exported
    image = an_image(drawn)
    [found] = efficientdet.load_detector(folder / FULL).predict([image], min_score=0)
    _, (boxes, classes, scores, _) = plain_run(folder / FULL, padded(image))
    shown = scores[0] > 0
    sides = np.clip(boxes[0][shown] * SIDE, 0, [image.shape[0], SIDE] * 2)[:, [1, 0, 3, 2]]
    np.testing.assert_allclose(found.boxes, sides, atol=1e-3)
    np.testing.assert_array_equal(found.scores, scores[0][shown])
    assert found.names == tuple(drawn.class_names.names[int(number)] for number in classes[0][shown])
    [line] = json.loads((folder / "artifacts.json").read_text())["artifacts"]
    assert line["quality"]["ap"] >= 0


def test_the_metadata_is_what_mediapipe_and_the_task_library_have_read(exported):
    """Byte by byte: MediaPipe Tasks 1.2.2 and the Task Library 0.4.4 took labels, normalization and threshold of it."""
    folder, drawn = exported
    content = (folder / FULL).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("labels.txt").decode().splitlines() == list(drawn.class_names.names)
        assert all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    model = schema.Model.GetRootAsModel(content, 0)
    entries = {model.Metadata(i).Name(): model.Metadata(i).Buffer() for i in range(model.MetadataLength())}
    data = model.Buffers(entries[b"TFLITE_METADATA"]).DataAsNumpy().tobytes()
    assert all(struct.pack("<f", number) in data for number in (127, 128, 0.3))
    assert hashlib.sha256(data).hexdigest()[:16] == "968ac581ccd6b7cb"


def test_frigates_configuration_has_the_models_size_labels_and_thresholds(exported):
    folder, drawn = exported
    text = (folder / "frigate.yaml").read_text()
    config = yaml.safe_load(text)
    # Frigate's ModelConfig and BaseDetectorConfig forbid other fields and values
    assert config["model"].keys() <= {
        "path", "labelmap_path", "width", "height", "input_tensor", "input_pixel_format", "model_type"
    }  # fmt: skip
    assert (config["model"]["input_tensor"], config["model"]["input_pixel_format"]) == ("nhwc", "rgb")
    assert config["detectors"] == {"cpu": {"type": "cpu"}}
    model, names = config["model"], list(drawn.class_names.names)
    assert (model["width"], model["height"], model["model_type"]) == (SIDE, SIDE, "ssd")
    assert model["path"] == f"/config/{FULL}"
    lines = (folder / Path(model["labelmap_path"]).name).read_text().splitlines()
    assert dict(line.split(" ", maxsplit=1) for line in lines) == {str(n): name for n, name in enumerate(names)}
    assert config["objects"]["track"] == names
    scores = {name: tuple(one.values()) for name, one in config["objects"]["filters"].items()}
    assert scores == {name: (0.61, 0.61) if name == names[1] else (0.3, 0.3) for name in names}
    assert "the best F1 on the validation data" in text
    assert (folder / "numbered_labels.txt").is_file()


def test_without_stored_thresholds_frigates_own_apply(tmp_path):
    categories = [{"id": 3, "name": "no"}, {"id": 7, "name": "1 euro"}]
    description = Description(model_name="efficientdet-lite0", hparams={}, categories=categories, weights="raw")
    restored = SimpleNamespace(description=description, detector=SimpleNamespace(image_size=(240, 320)))
    files = {"config_file": tmp_path / "frigate.yaml", "labels_file": tmp_path / "numbered_labels.txt"}
    write_frigate_files(restored, tmp_path / FULL, **files)
    text = (tmp_path / "frigate.yaml").read_text()
    assert "Frigate stretches its square regions to this input" in text
    config = yaml.safe_load(text)
    assert config["objects"] == {"track": ["no", "1 euro"]}
    assert (config["model"]["width"], config["model"]["height"]) == (320, 240)
    assert (tmp_path / "numbered_labels.txt").read_text() == "0 no\n1 1 euro\n"


def test_other_normalizations_become_part_of_the_network():
    """ImageNet's mean is 124, 116 and 104, which is the padding of such a file."""
    detector = miniature_detector()
    assert integer_resize(detector, letterbox((64, 64))).padding == (124, 116, 104)
    assert integer_resize(tiny_lite(), letterbox((SIDE, SIDE))).padding == (127, 127, 127)


def test_boxes_of_another_coder_are_refused():
    detector = tiny_lite(box_coder=BoxCoder())
    with pytest.raises(InputError, match="TFLite_Detection_PostProcess cannot decode the boxes"):
        detector.postprocessing.litert_operator()


def test_the_snippet_for_boards_prints_what_this_project_finds(exported, tmp_path, monkeypatch, capsys):
    folder, drawn = exported
    page = (Path(__file__).resolve().parent.parent / "docs/guides/edge.md").read_text()
    [snippet] = [one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "ai_edge_litert" in one]
    (tmp_path / "exported").symlink_to(folder)
    Image.fromarray(an_image(drawn)).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet.replace("score >= 0.4", "score > 0"), "docs/guides/edge.md", "exec"), {})
    [found] = efficientdet.load_detector(folder / FULL).predict("photo.jpg", min_score=0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found.scores) > 0
    for line, name, score in zip(lines, found.names, found.scores, strict=True):
        assert line.startswith(f"{name} {round(float(score), 3)} [")
