"""The families beside EfficientDet go through the real programs once, with few and narrow layers.

They are trained, evaluated and exported, which compares the detections of the files. test_families.py evaluates
families of one and of two stages by every runtime.
"""

import json
import os

import pytest
from drawn_records import draw_records
from test_families import ROOT, call, export_agrees, training

from efficientdet.checkpoints.checkpoint import read_arrays

pytestmark = pytest.mark.slow

NARROW = "tests/small_families.py"
SMALLEST = {
    "ssd300-resnet34": "image_size=257,backbone_name=resnet18",
    "retinanet-resnet18": "image_size=64,trainable_backbone_stages=5,is_training_bn=True",
    "mask-rcnn-resnet18": "image_size=64,anchor_scale=4,trainable_backbone_stages=5,is_training_bn=True,mask_size=28,"
    "candidates_per_level=50,proposals=30,training_proposals=30,regions_an_image=32",
}
STEPS = 2


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(
        tmp_path_factory.mktemp("drawn"), images={"train": 2 * STEPS, "val": 2}, side=96, with_masks=True
    )


@pytest.fixture(scope="module", params=SMALLEST)
def model_name(request):
    return request.param


@pytest.fixture(scope="module")
def env():
    return {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def trained(drawn, model_name, env, tmp_path_factory):
    """Folder of a training; test_families.py kills one of a two-stage family, and compares the bits once it resumed."""
    folder = tmp_path_factory.mktemp(model_name) / "model"
    short = {"batch_size": 2, "num_epochs": 1, "lr": 0.001, "warmup_epochs": 0, "calibration_images": 0}
    flags = training(drawn, model_name, folder, hparams=SMALLEST[model_name], **short)
    call(env, NARROW, "train.py", **flags)
    return folder


def test_a_trained_detector_is_evaluated_and_exported(drawn, env, trained, tmp_path):
    assert read_arrays(str(trained / "ckpt-final"))["global_step"] == STEPS
    call(
        env,
        NARROW,
        "eval.py",
        ckpt_path=trained,
        val_file_pattern=f"{drawn.folder}/val-*.tfrecord",
        batch_size=2,
        use_xla=False,
        precision="float32",
        output_json=tmp_path / "measures.json",
        hparams="nms_configs.score_thresh=0.001",
    )
    measures = json.loads((tmp_path / "measures.json").read_text())
    assert measures["images"] == 2
    assert measures["detections"] > 10
    export_agrees(env, NARROW, "export.py", ckpt=trained, output_dir=tmp_path / "exported", images=drawn.folder / "val")
