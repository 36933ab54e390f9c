"""Weights that mean nothing without their conventions bring them into the training that starts from them."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from drawn_records import draw_records
from log_lines import logged
from miniature import build_miniature

from dataset.class_names import ClassNames
from efficientdet.checkpoints.checkpoint import Description, existing_backbone, write_arrays
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.examination import with_suggestions
from efficientdet.families.efficientdet.build import network_config
from efficientdet.families.efficientdet.presets import NVIDIA_CONVENTIONS
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training import loop as train_loop
from efficientdet.training import state as training_state
from efficientdet.training.state import initial_state, with_conventions_of_resumed, with_conventions_of_start
from program_support.errors import InputError

NAMES = ClassNames((1, 2, 3), ("one", "two", "three"))
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
NVIDIAS = (((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)), 2, False, True)


def config(model_dir, *, overrides=None, **changes):
    overrides = overrides or {}
    defaults = {
        "hparams": hyperparameters_of("efficientdet-d0", {"image_size": 64, **overrides}),
        "hparams_given": frozenset(overrides),
        "records": ("r",),
        "val_records": (),
        "val_json_file": None,
        "class_names": NAMES,
        "model_dir": str(model_dir),
        "training_mode": "train300",
    }
    return TrainingConfig(**{**defaults, **changes})


def conventions(hparams):
    return hparams.aspect_ratios, hparams.normalizations, hparams.fusion_relu, hparams.half_pixel_upsampling


def described(prefix, hparams, *, arrays=None, age=0):
    """A checkpoint of ours with these hyperparameters beside it, last written `age` seconds ago."""
    description = Description(
        model_name="efficientdet-d0", hparams=hparams, categories=NAMES.to_categories(), weights="raw"
    )
    write_arrays(str(prefix), arrays or {"a": np.zeros(1, np.float32)}, description)
    written = os.stat(f"{prefix}.json").st_mtime - age
    os.utime(f"{prefix}.json", (written, written))
    return str(prefix)


def nvidias(prefix, arrays=None):
    """A checkpoint that looks like one of NVIDIA's: object-based, nothing beside it."""
    described(prefix, {}, arrays={OBJECT_GRAPH: np.array(b"graph"), **(arrays or {"a": np.zeros(1, np.float32)})})
    os.unlink(f"{prefix}.json")
    return str(prefix)


def test_nvidias_conventions_come_with_its_weights_and_are_said(tmp_path):
    found, lines = logged(
        with_conventions_of_start, config(tmp_path / "out", pretrained_ckpt=nvidias(tmp_path / "emackpt-10"))
    )
    assert conventions(found.hparams) == NVIDIAS
    network = network_config(found.hparams, num_classes=3)
    assert (network.bifpn.fusion_relu, network.bifpn.half_pixel_upsampling) == (False, True)
    [line] = lines
    assert line.startswith(
        f"hyperparameters taken from {tmp_path / 'emackpt-10'}: aspect_ratios ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)), "
    )
    assert line.endswith("normalizations 2, fusion_relu False, half_pixel_upsampling True")


def test_nvidias_saved_model_of_the_backbone_normalizes_once(tmp_path):
    """It was trained to classify, where the input is normalized once; the detector's program does it a second time."""
    weights = {"layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE": np.zeros(1, np.float32)}
    (tmp_path / "mounted" / "variables").mkdir(parents=True)
    (tmp_path / "mounted" / "saved_model.pb").touch()
    with pytest.raises(
        InputError, match=r"--backbone_init=.*mounted/variables/variables: there is no checkpoint of that name"
    ):
        existing_backbone(str(tmp_path / "mounted"))
    nvidias(tmp_path / "mounted" / "variables" / "variables", weights)
    start = config(tmp_path / "out", backbone_init=existing_backbone(str(tmp_path / "mounted")))
    found, lines = logged(with_conventions_of_start, start)
    assert (found.hparams, lines) == (start.hparams, [])
    assert start.hparams.normalizations == 1
    start = config(tmp_path / "out", backbone_init=start.backbone_init, overrides={"conv_padding": "symmetric"})
    with pytest.raises(InputError, match=r"was trained, as far as its arrays show, with conv_padding same; --hparams"):
        logged(with_conventions_of_start, start)


@pytest.mark.parametrize(("key", "value"), [("fusion_relu", True), ("anchor_scale", 2.0), ("mean_rgb", 127.0)])
def test_an_override_is_refused_unless_it_is_meant(key, value, tmp_path):
    start = config(tmp_path / "out", pretrained_ckpt=nvidias(tmp_path / "ckpt"), overrides={key: value})
    with pytest.raises(InputError, match=rf"ckpt: was trained, .*with {key} .*; --hparams sets {key} .*--override_che"):
        logged(with_conventions_of_start, start)
    found, lines = logged(with_conventions_of_start, replace(start, override_checkpoint=True))
    assert getattr(found.hparams, key) == getattr(start.hparams, key)
    assert lines[1].startswith(f"warning: {tmp_path / 'ckpt'} was trained, as far as its arrays show, with {key} ")
    same = config(tmp_path / "out", pretrained_ckpt=nvidias(tmp_path / "ckpt"), overrides={"anchor_scale": 4.0})
    assert len(logged(with_conventions_of_start, same)[1]) == 1


def test_an_override_of_a_resumed_training_is_refused(tmp_path):
    prefix = described(tmp_path / "ckpt-5", {"anchor_scale": 2.0})
    start = config(tmp_path, overrides={"anchor_scale": 4.0})
    with pytest.raises(InputError, match=rf"{prefix}: was trained with anchor_scale 2\.0; --hparams sets anchor_scale"):
        logged(with_conventions_of_resumed, start, given=start.hparams_given)


def test_depth_and_width_are_those_of_the_weights(tmp_path):
    """A training of the demo, with two cells of the BiFPN, was refused as lacking the weights of the third."""
    own = {"fpn_num_filters": 32, "fpn_cell_repeats": 2, "box_class_repeats": 1, "backbone_name": "efficientnet-b1"}
    prefix = described(tmp_path / "ckpt", hyperparameters_of("efficientdet-d0", own).to_dict())
    found, [line] = logged(with_conventions_of_start, config(tmp_path / "out", pretrained_ckpt=prefix))
    assert {key: getattr(found.hparams, key) for key in own} == own
    assert "fpn_cell_repeats 2, box_class_repeats 1" in line
    start = config(tmp_path / "out", pretrained_ckpt=prefix, overrides={"box_class_repeats": 2})
    found, lines = logged(with_conventions_of_start, start)
    assert found.hparams.box_class_repeats == 2
    assert lines[1].startswith(f"warning: {prefix} was trained with box_class_repeats 1")
    third_party = config(tmp_path / "out", pretrained_ckpt=nvidias(tmp_path / "a"), overrides={"fpn_cell_repeats": 2})
    assert len(logged(with_conventions_of_start, third_party)[1]) == 1


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_data_check_keeps_the_anchors_of_the_weights(is_ours, tmp_path):
    """Objects of 3 to 8 pixels: without weights, --suggest halves the anchors."""
    drawn = draw_records(tmp_path / "drawn", images={"train": 8})
    start = config(tmp_path / "out", records=drawn.records("train"), class_names=drawn.class_names, suggest=True)
    assert logged(with_suggestions, start)[0].hparams.anchor_scale < 4.0
    prefix = str(tmp_path / "ckpt")
    (described(prefix, {"anchor_scale": 4.0}) if is_ours else nvidias(prefix))
    found, _ = logged(with_conventions_of_start, replace(start, pretrained_ckpt=prefix))
    suggested, lines = logged(with_suggestions, found)
    assert suggested.hparams.anchor_scale == 4.0
    assert not any("--suggest sets anchor_scale" in line for line in lines)


def test_a_checkpoint_of_ours_hands_them_on(tmp_path):
    stored = hyperparameters_of(
        "efficientdet-d0", {**NVIDIA_CONVENTIONS, "anchor_scale": 2.0, "momentum": 0.5}
    ).to_dict()
    prefix = described(tmp_path / "ckpt-final", json.loads(json.dumps(stored)))
    found, [line] = logged(with_conventions_of_start, config(tmp_path / "out", pretrained_ckpt=prefix))
    assert (found.hparams.half_pixel_upsampling, found.hparams.normalizations, found.hparams.anchor_scale) == (
        True,
        2,
        2.0,
    )
    assert found.hparams.momentum == 0.9  # no convention of the weights
    assert "anchor_scale 2.0" in line


def test_a_training_that_goes_on_keeps_its_own(tmp_path):
    """Whatever it started from: here one that was begun from NVIDIA's weights with other conventions than theirs."""
    described(tmp_path / "ckpt-100", {"normalizations": 1, "anchor_scale": 3.0}, age=5)
    described(tmp_path / "ckpt-90", {"normalizations": 1, "anchor_scale": 2.0})  # the last one written
    (tmp_path / "ckpt-120.json").write_text("{")
    source = nvidias(tmp_path / "start")
    cases = [("auto", (1, 2.0)), (str(tmp_path / "ckpt-100"), (1, 3.0)), ("never", (2, 4.0))]
    for resume, wanted in cases:
        found, _ = logged(with_conventions_of_start, config(tmp_path, pretrained_ckpt=source, resume=resume))
        found, _ = logged(with_conventions_of_resumed, found, given=frozenset())
        assert (found.hparams.normalizations, found.hparams.anchor_scale) == wanted, resume
    found, _ = logged(with_conventions_of_start, config(tmp_path, pretrained_ckpt=source, benchmark=True))
    found, _ = logged(with_conventions_of_resumed, found, given=frozenset())
    assert found.hparams.normalizations == 2  # a benchmark continues from scratch


def test_number_of_classes_is_said_or_refused(tmp_path):
    _, [line] = logged(with_conventions_of_start, config(tmp_path, overrides={"num_classes": 91}))
    assert line == "num_classes=91 counts as the reference does; the network has the 3 classes of the data"
    with pytest.raises(InputError, match="num_classes is 7; the data has 3 classes"):
        config(tmp_path, overrides={"num_classes": 7})


def test_a_training_builds_says_and_stores_them(tmp_path, monkeypatch, capsys):
    """`train` up to the first step: what it would build, log and write beside its checkpoints."""
    drawn = draw_records(tmp_path / "drawn", images={"train": 2})
    started = []

    def without_weights(given, **options):
        started.append(given)
        return initial_state(replace(given, pretrained_ckpt=None), **options)

    class Ended(Exception):
        pass

    def end(*_, **__):
        raise Ended

    monkeypatch.setattr(training_state, "build_detector", build_miniature)
    monkeypatch.setattr(training_state, "initial_state", without_weights)
    monkeypatch.setattr(train_loop, "build_train_step", end)
    hparams = hyperparameters_of("efficientdet-d0", {"image_size": 64, "num_epochs": 1, "name": "mine"})
    with pytest.raises(Ended):
        train_loop.train(
            config(
                tmp_path / "out",
                hparams=hparams,
                records=drawn.records("train"),
                class_names=drawn.class_names,
                batch_size=2,
                pretrained_ckpt=nvidias(tmp_path / "emackpt-10"),
                precision="float32",
                use_xla=False,
                loggers=(),
            )
        )
    assert "hyperparameters taken from" in capsys.readouterr().out
    [training] = started
    assert conventions(training.hparams) == NVIDIAS
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (stored["hparams"]["half_pixel_upsampling"], stored["hparams"]["normalizations"]) == (True, 2)
    assert (stored["model_name"], stored["hparams"]["name"]) == ("efficientdet-d0", "mine")
