"""The quick start: choices, steps, repeated calls, errors; test_page_commands.py runs all of it in miniature."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from drawn_records import draw_records
from labeled import healthy
from stored_miniature import store_miniature

from efficientdet import load_detector
from efficientdet.families.published_files import published_files
from efficientdet.families.registry import family_of, hyperparameters_of, model_names
from efficientdet.operations import quick_start
from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartConfig, QuickstartOptions
from efficientdet.quickstart import choices, chosen_settings, steps
from efficientdet.quickstart import programs as programs_module
from efficientdet.quickstart.choices import StepTime
from efficientdet.quickstart.chosen_settings import shown_images, tile_settings
from efficientdet.quickstart.output_folder import State, sole_quickstart
from efficientdet.quickstart.programs import output_to, run_program
from efficientdet.quickstart.steps import quickstart
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import MARKER
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def _image(side, *, objects=()):
    """One image with 10 square objects of each side in `objects`, a class for each."""
    boxes = [[0, 0, each, each] for each in objects for _ in range(10)]
    return replace(
        healthy(1, size=(side // 2, side)),
        owners=np.zeros(len(boxes), np.int32),
        boxes=np.float32(boxes).reshape(-1, 4),
        classes=np.repeat(np.arange(len(objects)), 10),
    )


def budget(seconds, **changes):
    """A budget without a smaller input; a step takes a second at 256 pixels."""
    step_time = StepTime(seconds=1.0, side=256, batch_size=4, accelerated=False)
    settings = {"start_seconds": 30, "target_steps": 1000, "min_side": 128, "smaller_input_first": False, **changes}
    settings = {"step_time": step_time, "object_share": None, **settings}
    return choices.Budget(seconds=seconds, **settings)


def test_the_side_is_the_largest_that_leaves_time():
    def chosen(largest, seconds):
        return choices.image_side(largest, 512, budget(seconds))

    side, why = chosen(640, 2400)  # 1516 steps of 1.58 s at 320 pixels and 1562 required; 1896 and 1266 at 288
    assert side == 288
    assert "largest at which 1266 steps fit" in why
    assert chosen(640, 16000) == (512, "the model's default")  # 4000 steps of 4 s
    assert chosen(640, 15999)[0] == 480
    assert chosen(300, 4590) == (320, "as large as the images")
    side, why = chosen(640, 51)
    assert side == 128
    assert "needed for a good AP exceed" in why
    assert chosen(40, 4590)[0] == 128


def test_small_objects_need_pixels_and_large_ones_steps():
    def chosen(images):
        return choices.image_side(640, 640, budget(1000, object_share=choices.object_share(images)))

    assert chosen(_image(640))[0] == chosen(_image(640, objects=[40]))[0] == 256  # 40 of 640 pixels are 16 of 256
    side, why = chosen(_image(640, objects=[300, 40, 10]))
    assert side == 416  # a quarter of 16 of 256 pixels needs 0.4 / 3 times the steps: 349 of 379; at 448, 405 of 327
    assert why == "the largest at which 349 steps fit into the time limit, with objects of about 6 pixels"
    assert chosen(_image(640, objects=[320]))[0] == 160  # four times the steps: 1563 of 2560; at 192, 2250 of 1777
    rare = _image(640, objects=[40, 5])
    rare = replace(rare, **{key: getattr(rare, key)[:-1] for key in ("owners", "boxes", "classes")})
    assert chosen(rare)[0] == 256


def test_fewer_steps_are_enough_until_objects_have_12_pixels():
    """Of 640 pixels, 40 are 12 in an input of 192. A third of its 562 required steps, of 0.56 seconds, is enough."""

    def chosen(seconds):
        return choices.image_side(640, 640, budget(seconds, object_share=40 / 640))

    side, why = chosen(316)
    assert side == 192
    assert why == "the largest at which 188 steps fit into the time limit, with objects of about 12 pixels"
    assert [chosen(seconds)[0] for seconds in (587, 586, 106, 105)] == [224, 192, 192, 160]


def test_the_side_is_one_at_which_objects_match_anchors():
    limits = budget(100)
    assert choices.possible_sides(640, 256, min_side=128) == [128, 160, 192, 224, 256]
    assert choices.image_side(640, 256, limits)[0] == 128
    side, why = choices.image_side(640, 256, limits, usable=192)
    assert side == 192
    assert why == "the smallest at which objects match anchors; the steps needed for a good AP exceed the time limit"
    assert limits.required_steps(192) == 562


def test_epochs_are_short_enough_to_look_at_the_clock():
    step_time = StepTime(seconds=0.5, side=256, batch_size=4, accelerated=False)

    def length_of(images, *, side=256, target_steps=2500, seconds):
        limits = budget(seconds, step_time=step_time, target_steps=target_steps)
        return choices.training_length(images, limits, side=side, seconds=seconds)

    length, why = length_of(205, seconds=1500)  # 3000 steps, 37 an epoch
    assert (length.num_epochs, length.num_examples_per_epoch, length.checkpoint_period) == (163, 148, 41)
    assert "at most 6031 steps of 4 images, limited by the time" in why
    length, why = length_of(205, target_steps=250, seconds=1500)
    assert length.num_epochs == 29  # 1040 steps
    assert "further steps would gain little" in why
    length, _ = length_of(5000, target_steps=250, seconds=1e5)
    assert length.num_epochs * length.num_examples_per_epoch == 20 * 5000  # more than the 1000 steps
    length, _ = length_of(118287, side=128, seconds=150)  # 1200 steps, 17 an epoch: 600 have 10000
    assert (length.num_epochs, length.num_examples_per_epoch, length.checkpoint_period) == (142, 68, 142)
    assert length.warmup_epochs == 2.94  # and no evaluation before the last: one takes 12 of the 150 seconds or more
    assert length_of(4, seconds=1e6)[0].num_epochs <= 600
    length, _ = length_of(205, seconds=0.1)
    assert (length.num_epochs, length.checkpoint_period) == (1, 1)


def test_the_time_of_training_is_what_the_other_steps_leave():
    step_time = StepTime(seconds=0.4, side=256, batch_size=4, accelerated=False)
    after = choices.seconds_after_choice(
        30.0, formats=1, evaluated_images=100, step_time=step_time, evaluation_cost=0.9
    )
    assert after == pytest.approx(0.44 * 30 + 100 * 0.09)
    assert choices.training_seconds(6, others=after + 108) == pytest.approx(229.8)
    assert choices.training_seconds(1, others=58) == 6  # a tenth at least


def test_a_smaller_input_first():
    limits = budget(1000, smaller_input_first=True)
    assert limits.inputs((240, 320)) == [(128, 160), (240, 320)]
    assert limits.inputs((512, 512)) == [(256, 256), (512, 512)]
    assert limits.inputs((192, 192)) == [(128, 128), (192, 192)]
    assert limits.inputs((160, 160)) == [(160, 160)]  # 128x128 has more than half of the pixels
    small_objects = budget(1000, smaller_input_first=True, object_share=0.05)
    assert small_objects.inputs((240, 320)) == [(128, 160), (240, 320)]  # 8 pixels
    assert small_objects.inputs((256, 256)) == [(160, 160), (256, 256)]  # 6.4 at 128
    assert small_objects.inputs((192, 192)) == [(192, 192)]
    assert budget(1000).inputs((512, 512)) == [(512, 512)]
    short = budget(599, smaller_input_first=True)  # a start takes over a twentieth
    assert short.inputs((512, 512)) == [(512, 512)]
    assert (limits.is_long, short.is_long) == (True, False)
    assert limits.steps(512) == 500 / 4 + 500
    assert budget(1000).steps(512) == 250
    assert choices.image_side(640, 640, limits)[0] == 320  # 1600 steps of 1562; at 352, 1153 of 1891


def test_other_choices():
    assert choices.typical_side(np.array([[480, 640], [640, 480], [100, 90]])) == 640
    assert [choices.batch_size(images, accelerated=False) for images in (3, 99)] == [3, 4]
    assert choices.batch_size(99, accelerated=True) == 16
    sizes = np.array([[480, 640], [480, 640], [640, 480]])
    assert choices.stretched_shape(256, sizes, min_side=128) == "256x192"
    assert choices.stretched_shape(256, sizes[:, ::-1], min_side=128) == "192x256"
    assert choices.stretched_shape(300, sizes, min_side=257) == "300x257"
    assert choices.stretched_shape(268, sizes[2:, :1].repeat(2, axis=1), min_side=128) == "268x268"


def test_recipes_of_the_families():
    for model in model_names():
        family = hyperparameters_of(model, {}).family
        recipe = family.quickstart
        hparams = hyperparameters_of(model, {**recipe.settings, **recipe.random.settings})
        assert hparams.is_training_bn, model  # from random weights everything is trained
        assert getattr(hparams, "trainable_backbone_stages", 5) == 5, model
        assert hparams.lr_decay_method == "cosine", model  # steps of a preset's schedule have other epochs
        assert hparams.lr_warmup_least_steps == 0, model
        assert set(recipe.detectors) <= set(family.presets)
        assert set(recipe.detectors.values()) <= set(published_files())
    recipe = family_of("efficientdet-d0").quickstart
    assert recipe.random.rate.of(4) == pytest.approx(0.1)
    assert recipe.random.rate.of(16) == pytest.approx(0.16)
    assert recipe.detector.rate.of(4) == pytest.approx(0.003)
    assert recipe.detector.rate.of(16) == pytest.approx(0.004)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Programs that record their calls and write what the steps read; `fails` names one that fails."""
    calls, fails = [], set()
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()

    def run(module, settings):
        if module in fails:
            sys.exit(3)
        calls.append((module, {key: value for key, value in settings.items() if value is not None}))
        if module == "dataset.create_tfrecord":
            draw_records(settings["output_dir"], images={"train": 5, "val": 2})
        elif module == "doctor":
            settings["output_dir"].mkdir(exist_ok=True)
            has_anchors = not settings["model_name"].startswith("ssd")
            suggested = {"image_size": "96x64", "anchor_scale": 2.0} if has_anchors else {}
            (settings["output_dir"] / "doctor.json").write_text(json.dumps({"suggested": {"settings": suggested}}))
        elif module == "train" and "testdev_dir" in settings:
            (settings["testdev_dir"] / TESTDEV_FILE_NAME).touch()
        elif module == "export":
            settings["output_dir"].mkdir(exist_ok=True)
            (settings["output_dir"] / "detector.onnx").touch()
        elif module == "eval":
            settings["output_json"].write_text('{"AP": 0.5, "AP50": 0.75, "mask_numbers": {"AP": 0.25, "AP50": 0.625}}')

    for module in (steps, chosen_settings):
        monkeypatch.setattr(module, "run_program", run)
    monkeypatch.setattr(chosen_settings, "smallest_usable_size", lambda images, hparams, sizes, *, fixed: sizes[0])
    # A step of four images takes half a second
    machine = False, 0.01, 0.125 * 0.42
    monkeypatch.setattr(chosen_settings, "measure_machine", lambda hparams, num_classes: machine)
    monkeypatch.setattr(chosen_settings, "result_of", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(chosen_settings.os, "getloadavg", lambda: (1e3, 1e3, 1e3))
    return calls, fails


def config(folder, **changes):
    settings = {"images": "photos", "output_dir": str(folder), "weights": NO_WEIGHTS, "model_name": "efficientdet-d0"}
    return QuickstartConfig(**settings | changes)


def test_the_way(programs, tmp_path, capsys):
    calls, fails = programs
    fails.add("eval")
    with pytest.raises(SystemExit) as caught:
        quickstart(config(tmp_path / "out", hparams="box_class_repeats=1"))
    assert caught.value.code == 3
    assert [module for module, _ in calls] == ["dataset.create_tfrecord", "doctor", "train", "export"]
    assert [path.parent for path in calls[-1][1]["images"]] == [Path("photos")] * 2
    recipe = "jitter_min=0.8,jitter_max=1.25,survival_prob=1.0"
    assert calls[1][1]["hparams"] == f"image_size=128,{recipe},box_class_repeats=1"
    training = calls[-2][1]
    assert training["hparams"] == f"image_size=96x64,{recipe},box_class_repeats=1,anchor_scale=2.0"
    assert training["training_file_pattern"] == f"{tmp_path}/out/records/train-*"
    assert (training["batch_size"], training["num_epochs"], training["checkpoint_period"]) == (4, 587, 147)
    assert training["max_minutes"] == pytest.approx(30, abs=5)  # programs that do nothing take no time
    assert training["warn_of_lr"] is False
    assert "training_mode" not in training  # with evaluations
    printed = capsys.readouterr().out
    assert "warning: other processes use this machine (load average 1000.0" in printed
    assert f"time: {training['max_minutes']:.1f} of 30 minutes for training, about " in printed

    fails.clear()
    del calls[:]
    quickstart(config(tmp_path / "out", hparams="box_class_repeats=1"))
    assert [module for module, _ in calls] == ["eval"]
    assert calls[0][1]["val_file_pattern"] == f"{tmp_path}/out/records/val-*"
    assert calls[0][1]["results"] == tmp_path / "out" / "model" / TESTDEV_FILE_NAME  # the images are evaluated once
    assert "ckpt" not in calls[0][1]
    said = capsys.readouterr().out
    assert "train: already done" in said
    assert "AP 0.500, AP50 0.750 on the validation images" in said

    del calls[:]
    quickstart(config(tmp_path / "out", hparams="box_class_repeats=1", minutes=45.0))
    assert [module for module, _ in calls] == ["train", "export", "eval"]
    assert calls[0][1]["max_minutes"] == pytest.approx(45, abs=5)
    assert calls[0][1]["num_epochs"] == 881  # half as many more
    assert "--minutes raised from 30 to 45: resuming the training" in capsys.readouterr().out


def test_a_training_with_too_few_steps_is_reported(tmp_path, monkeypatch):
    state = State(tmp_path / "state.json", {"minutes": 3.0})
    state._seconds.update(convert=10.0, train_smaller_input=60.0, train=60.0, export=20.0)
    chosen = {"required_steps": 100, "seconds_per_step": 2.0, "budget": {"start_seconds": 30.0}}
    done = {"model_smaller_input": 30, "model": 10}
    monkeypatch.setattr(steps, "prefixes", lambda folder, pattern: [folder / "ckpt-1"])
    monkeypatch.setattr(steps, "writing_order", str)
    monkeypatch.setattr(steps, "read_description", lambda prefix: SimpleNamespace(global_step=done[prefix.parent.name]))
    wanted = config(tmp_path, minutes=3.0)
    told = steps._shortfall(wanted, tmp_path, chosen, state)
    assert told.startswith("not usable yet: the detector was trained for 40 of the 100 steps that a good AP needs; ")
    assert "--minutes=5 " in told  # 150 seconds were used; 30 of a start and 60 steps of 2 follow
    assert "--minutes=10 " in steps._shortfall(config(tmp_path, minutes=9.5), tmp_path, chosen, state)
    assert steps._shortfall(wanted, tmp_path, {**chosen, "required_steps": 50}, state) == ""
    assert steps._shortfall(wanted, tmp_path, {}, state) == ""  # chosen by an earlier version


def test_the_smaller_input(programs, tmp_path, monkeypatch, capsys):
    calls, _ = programs
    monkeypatch.setattr(choices, "local_path", lambda name: name)  # as if the backbone were downloaded
    wanted = {"model_name": "retinanet-resnet18", "hparams": "image_size=640,lr_end_factor=0.1", "weights": None}
    quickstart(config(tmp_path / "out", **wanted))
    first, last = [settings for module, settings in calls if module == "train"]
    assert first["model_dir"] == last["pretrained_ckpt"] == tmp_path / "out" / "model_smaller_input"
    assert last["model_dir"] == tmp_path / "out" / "model"
    assert "image_size=320x320," in first["hparams"]
    assert "lr_end_factor=0.3" in first["hparams"]
    assert "image_size=640," in last["hparams"]
    assert "lr_end_factor=0.1" in last["hparams"]
    assert first["backbone_init"].startswith("resnet18")
    assert "backbone_init" not in last  # the first training had it
    assert first["max_minutes"] == pytest.approx(15, abs=5)  # half of the time
    assert last["max_minutes"] == pytest.approx(30, abs=5)  # the rest: the first took none
    assert "at 320x320 pixels at most" in capsys.readouterr().out

    del calls[:]
    quickstart(config(tmp_path / "out", **wanted, minutes=45.0))
    assert [settings["model_dir"].name for module, settings in calls if module == "train"] == ["model"]

    del calls[:]
    wanted |= {"model_name": "retinanet-resnet50", "hparams": "image_size=640"}
    quickstart(config(tmp_path / "pretrained", **wanted))
    assert len([module for module, _ in calls if module == "train"]) == 1


def test_weights_are_chosen_again_until_the_training_begins(programs, tmp_path, monkeypatch, capsys):
    calls, fails = programs
    present = set()

    def local_path(name):
        if name in present:
            return f"/cache/{name}"
        raise InputError(f"{name}: cannot be downloaded")

    monkeypatch.setattr(choices, "local_path", local_path)
    fails.add("train")
    wanted = {"model_name": "efficientdet-lite1", "weights": None}
    with pytest.raises(SystemExit):
        quickstart(config(tmp_path / "out", **wanted))
    assert (
        capsys.readouterr()
        .out.partition("\n")[2]
        .startswith(
            "no detector pretrained on COCO: efficientdet-lite1: cannot be downloaded\n"
            "no backbone pretrained on ImageNet: efficientnet-lite1: cannot be downloaded\n"
            "warning: initial weights: random; none could be downloaded\n"
        )
    )

    fails.clear()
    run = steps.run_program

    def interrupted(module, settings):
        run(module, settings)
        if module == "train":
            (settings["model_dir"] / "ckpt-1.index").touch()
            sys.exit(3)

    monkeypatch.setattr(steps, "run_program", lambda module, _: sys.exit(3))
    with pytest.raises(SystemExit):
        quickstart(config(tmp_path / "out", **wanted))
    monkeypatch.setattr(steps, "run_program", interrupted)
    for name in ("efficientnet-lite1", "efficientdet-lite1"):  # the second one appears when the training has begun
        present.add(name)
        with pytest.raises(SystemExit):
            quickstart(config(tmp_path / "out", **wanted))
        assert calls[-1][1]["backbone_init"] == "efficientnet-lite1"
    said = capsys.readouterr().out
    assert "initial weights: backbone pretrained on ImageNet (/cache/efficientnet-lite1)" in said
    assert "choose: already done" in said


def test_the_starter_detector_of_the_package(programs, tmp_path, monkeypatch, capsys):
    """It needs no network. Settings of another network or of other anchors leave it out; those of a training do not."""
    calls, _ = programs
    wanted = {"model_name": "efficientdet-lite0", "weights": None}
    quickstart(config(tmp_path / "out", **wanted, hparams="anchor_scale=3,jitter_max=1.5"))
    assert "initial weights: starter detector of this package (" in capsys.readouterr().out
    flags = calls[-3][1]
    assert flags["pretrained_ckpt"] == "efficientdet-lite0-starter"
    assert "label_assignment=task_aligned," in flags["hparams"]
    named = {"images": str(tmp_path), "output_dir": str(tmp_path / "named"), "weights": "efficientdet-lite0-starter"}
    quick_start.run_quickstart(QuickstartOptions(**named))
    assert "label_assignment=task_aligned," in calls[-3][1]["hparams"]
    monkeypatch.setattr(choices, "_MIN_STARTS", 1e9)  # a start takes long
    quickstart(config(tmp_path / "anchors", **wanted, hparams="anchor_scale=2,num_scales=2"))
    assert "label_assignment" not in calls[-3][1]["hparams"]
    said = capsys.readouterr().out
    assert "no starter detector of this package: --hparams sets anchor_scale, num_scales differently\n" in said
    assert "initial weights: backbone pretrained on ImageNet (" in said


def test_the_starter_detector_finds_objects_in_photos(data_folder):
    """In photos of COCO, by the names of its classes."""
    labeled = json.loads((data_folder / "photos" / "instances_photos.json").read_text())
    names = {one["id"]: one["name"] for one in labeled["categories"]}
    paths = [str(data_folder / "photos" / image["file_name"]) for image in labeled["images"]]
    right, wrong, large = 0, 0, 0
    found = load_detector("efficientdet-lite0-starter").predict(paths, min_score=0.5)
    for image, detections in zip(labeled["images"], found, strict=True):
        labels = [one for one in labeled["annotations"] if one["image_id"] == image["id"]]
        large += sum(one["area"] > 96**2 for one in labels)
        for (left, top, right_side, bottom), name in zip(detections.boxes, detections.names, strict=True):
            center = (left + right_side) / 2, (top + bottom) / 2
            hits = [one for one in labels if names[one["category_id"]] == name and is_inside(center, one["bbox"])]
            right, wrong = right + bool(hits), wrong + (not hits)
    assert right > 3 * wrong, (right, wrong)
    assert right > large / 2, (right, large)


def is_inside(point, box):
    return all(start <= at <= start + side for at, start, side in zip(point, box[:2], box[2:], strict=True))


def test_weights_by_name_or_path(programs, tmp_path, monkeypatch):
    calls, _ = programs
    monkeypatch.setattr(choices, "local_path", lambda name: name)  # as if they were downloaded
    Path("detector.safetensors").touch()
    for number, (weights, flag) in enumerate(
        (("efficientnet-lite0", "backbone_init"), ("detector.safetensors", "pretrained_ckpt"))
    ):
        quickstart(config(tmp_path / str(number), model_name="efficientdet-lite0", weights=weights))
        assert calls[-3][1][flag] == weights


def test_the_model_of_the_weights(tmp_path, monkeypatch):
    """Without --model_name it is the one of the checkpoint."""
    chosen = []
    monkeypatch.setattr(quick_start, "quickstart", chosen.append)
    store_miniature(tmp_path)
    options = {"images": str(tmp_path), "output_dir": str(tmp_path / "out")}
    for weights in (str(tmp_path / "ckpt"), NO_WEIGHTS):
        quick_start.run_quickstart(QuickstartOptions(**options, weights=weights))
    assert [config.model_name for config in chosen] == ["efficientdet-d0", "efficientdet-lite0"]
    monkeypatch.setattr(quick_start, "existing_checkpoint", lambda weights, flag: "/downloaded/4.pth")
    quick_start.run_quickstart(QuickstartOptions(**options, weights="efficientnet-lite0"))
    assert chosen[-1].weights == "efficientnet-lite0"  # a name tells that it is a backbone, a path does not


def test_a_size_at_which_objects_match_no_anchor_is_not_trained(programs, tmp_path, monkeypatch, capsys):
    calls, _ = programs
    asked = []

    def first_usable(number):
        def smallest(images, hparams, sizes, *, fixed):
            asked.append((hparams.anchor_scale, sizes, sorted(fixed)))
            return sizes[number] if number is not None else None

        return smallest

    monkeypatch.setattr(choices, "typical_side", lambda sizes: 640)
    monkeypatch.setattr(chosen_settings, "smallest_usable_size", first_usable(4))
    wanted = {"minutes": 0.5, "model_name": "retinanet-resnet18"}
    quickstart(config(tmp_path / "out", **wanted, hparams="anchor_scale=2.0"))
    printed = capsys.readouterr().out
    assert "that a good AP needs at 256 pixels, which need about --minutes=" in printed
    assert re.search(r"\nnot usable yet: the detector was trained for 0 of the \d+ steps", printed)
    assert "chose input size 256 pixels (longer side): the smallest at which objects match anchors" in printed
    assert (asked[0][0], asked[0][1][:2], asked[0][2]) == (2.0, ["128x128", "160x160"], ["anchor_scale"])

    del calls[:]
    monkeypatch.setattr(chosen_settings, "smallest_usable_size", first_usable(None))
    with pytest.raises(InputError, match=r"match no anchor at any input up to 640x\d+ pixels.*--hparams=image_size="):
        quickstart(config(tmp_path / "none", **wanted))
    assert [module for module, _ in calls] == ["dataset.create_tfrecord", "doctor"]


def test_other_families(programs, tmp_path, monkeypatch, capsys):
    calls, _ = programs
    quickstart(config(tmp_path / "masks", model_name="mask-rcnn-resnet18"))
    assert calls[0][1]["include_masks"] is True
    training = next(settings for module, settings in calls if module == "train")
    recipe = family_of("mask-rcnn-resnet18").quickstart
    assert "trainable_backbone_stages=5,is_training_bn=True" in training["hparams"]
    assert training["lr"] == recipe.random.rate.of(4)
    printed = capsys.readouterr().out
    assert "mask-rcnn-resnet18 learns masks and needs outlines in the labels" in printed
    assert "mask AP 0.250, AP50 0.625" in printed

    del calls[:]
    (tmp_path / "weights.pth").write_bytes(b"PK\x03\x04")
    for module in (choices, chosen_settings):  # as if it were downloaded
        monkeypatch.setattr(module, "local_path", lambda name: str(tmp_path / "weights.pth"))
    quickstart(config(tmp_path / "boxes", model_name="retinanet-resnet50", weights=None))
    assert "include_masks" not in calls[0][1]
    assert calls[2][1]["hparams"].startswith("image_size=96x64,resize=stretch")
    training = next(settings for module, settings in calls if module == "train")
    # the data check gets the weights too, which determine the anchors
    assert [settings.get("pretrained_ckpt") for _, settings in calls[:3]] == [
        None,
        *["retinanet_resnet50_fpn_coco"] * 2,
    ]
    assert "is_training_bn" not in training["hparams"]

    del calls[:]
    quickstart(config(tmp_path / "backbone", model_name="ssd300-resnet34", weights=None))
    training = next(settings for module, settings in calls if module == "train")
    assert training["backbone_init"] == "resnet34-333f7ec4.pth"
    assert training["lr"] == family_of("ssd300-resnet34").quickstart.start("backbone").rate.of(4)


def test_a_zip_is_unpacked_once(programs, tmp_path, monkeypatch):
    calls, _ = programs
    with zipfile.ZipFile(tmp_path / "cells.zip", "w") as archive:
        archive.writestr("cells\\one.jpg", b"image")  # as some Windows programs write it
        archive.writestr("__MACOSX/cells/._one.jpg", b"none")
    for _ in range(2):
        quickstart(config(tmp_path / "out", images=str(tmp_path / "cells.zip")))
    assert calls[0][1]["images"] == str(tmp_path / "out" / "images")
    images = tmp_path / "out" / "images"
    assert sorted(str(path.relative_to(images)) for path in images.rglob("*")) == [MARKER, "cells", "cells/one.jpg"]
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes((tmp_path / "cells.zip").read_bytes().replace(b"image", b"other"))
    with pytest.raises(InputError, match=r"damaged.zip: cannot be unpacked into .*Bad CRC"):
        quickstart(config(tmp_path / "other", images=str(damaged)))
    assert not (tmp_path / "other" / "images").exists()


def test_names_with_blanks_and_brackets(programs, tmp_path, capsys):
    calls, _ = programs
    quickstart(config(tmp_path / "run [1]"))
    assert calls[-1][1]["val_file_pattern"] == f"{tmp_path}/run [[]1]/records/val-*"
    assert f"python serve.py --model='{tmp_path}/run [1]/exported/detector.onnx'" in capsys.readouterr().out


def test_settings_of_the_conversion_may_be_corrected(programs, tmp_path):
    """An archive is unpacked before the conversion; a corrected one is unpacked again."""
    calls, fails = programs
    wanted = {"images": str(tmp_path / "cells.zip"), "format": "yolo"}
    fails.add("dataset.create_tfrecord")
    for content in (b"wrong", b"right"):
        with zipfile.ZipFile(tmp_path / "cells.zip", "w") as archive:
            archive.writestr("one.txt", content)
        with pytest.raises(SystemExit):
            quickstart(config(tmp_path / "out", **wanted, max_bad_fraction=0.1))
        assert (tmp_path / "out" / "images" / "one.txt").read_bytes() == content
    fails.clear()
    wanted |= {"max_bad_fraction": 0.2, "val_fraction": 0.0}
    quickstart(config(tmp_path / "out", **wanted))
    conversion = calls[0][1]
    assert (conversion["format"], conversion["max_bad_fraction"], conversion["val_fraction"]) == ("yolo", 0.2, 0.0)
    with pytest.raises(InputError, match=r"was started with val_fraction 0\.0, not 0\.1"):
        quickstart(config(tmp_path / "out", **wanted | {"val_fraction": 0.1}))


def test_images_and_labels_that_change_after_the_conversion(programs, tmp_path):
    """Until the first model is exported they must stay; test_rounds.py has what follows then."""
    calls, fails = programs
    photos, out = tmp_path / "photos", tmp_path / "photos" / "out"  # the output is in the folder of the images
    labels = photos / "one.txt"
    (photos / "one.jpg").write_bytes(b"image")
    labels.write_text("0 0.5 0.5 0.1 0.1")
    fails.add("export")
    with pytest.raises(SystemExit):
        quickstart(config(out))
    (photos / "labels.cache").write_text("of another program")
    fails.clear()
    del calls[:]
    quickstart(config(out, minutes=40.0))
    assert [module for module, _ in calls] == ["train", "export", "eval"]
    fails.add("export")
    with pytest.raises(SystemExit):
        quickstart(config(out, minutes=50.0))
    labels.write_text("0 0.5 0.5 0.2 0.2")
    with pytest.raises(InputError, match=r"images or labels changed after their conversion; .*another --output_dir"):
        quickstart(config(out, minutes=50.0))
    labels.write_text("0 0.5 0.5 0.1 0.1")
    (photos / "two.jpg").write_bytes(b"image")
    with pytest.raises(InputError, match="images or labels changed"):
        quickstart(config(out, minutes=50.0))


def test_a_correction_of_an_unpacked_file_survives_and_is_used(programs, tmp_path, capsys):
    _, fails = programs
    fails.add("dataset.create_tfrecord")
    with zipfile.ZipFile(tmp_path / "cells.zip", "w") as archive:
        archive.writestr("one.txt", "wrong")
        archive.writestr("two.txt", "right")
    wanted = {"images": str(tmp_path / "cells.zip")}
    with pytest.raises(SystemExit):
        quickstart(config(tmp_path / "out", **wanted))
    label = tmp_path / "out" / "images" / "one.txt"
    label.write_text("corrected")
    for _ in range(2):
        with pytest.raises(SystemExit):
            quickstart(config(tmp_path / "out", **wanted))
        assert label.read_text() == "corrected"
    with zipfile.ZipFile(tmp_path / "cells.zip", "a") as archive:
        archive.writestr("three.txt", "new")
    with pytest.raises(InputError, match=r"out/images/one\.txt: changed after .*cells\.zip was unpacked"):
        quickstart(config(tmp_path / "out", **wanted))
    assert label.read_text() == "corrected"

    fails.clear()
    (tmp_path / "out" / "images").rename(tmp_path / "mine")  # as the message advises
    quickstart(config(tmp_path / "out", **wanted))
    assert sorted(path.name for path in (tmp_path / "out" / "images").glob("*.txt")) == [
        "one.txt", "three.txt", "two.txt"
    ]  # fmt: skip
    label.write_text("corrected again")
    with pytest.raises(InputError, match=r"changed after their conversion; .* quickstart.py .*/out/images --out"):
        quickstart(config(tmp_path / "out", **wanted))
    assert label.read_text() == "corrected again"


@pytest.mark.parametrize(
    "name", ["images", "records", "doctor", "model", "evaluation", "exported", "metrics.json", "result.html"]
)
def test_files_of_the_user_in_the_output_folder_stay(name, programs, tmp_path):
    calls, _ = programs
    with zipfile.ZipFile(tmp_path / "cells.zip", "w") as archive:
        archive.writestr("one.txt", "label")
    path = tmp_path / "out" / name
    path.parent.mkdir()
    if path.suffix:
        path.write_text("of the user")
    else:
        path.mkdir()
        (path / "file").write_text("of the user")
    with pytest.raises(InputError, match=f"out/{name}: exists and was not written by this program"):
        quickstart(config(tmp_path / "out", images=str(tmp_path / "cells.zip")))
    assert [path.name for path in (tmp_path / "out" / name).glob("*")] == ([] if path.suffix else ["file"])
    assert not calls


def test_a_second_quick_start_in_the_folder_is_refused(programs, tmp_path, monkeypatch):
    run, refusals = steps.run_program, []

    def run_twice(module, settings):
        with pytest.raises(InputError) as caught:
            quickstart(config(tmp_path / "out"))
        refusals.append(str(caught.value))
        run(module, settings)

    for module in (steps, chosen_settings):
        monkeypatch.setattr(module, "run_program", run_twice)
    quickstart(config(tmp_path / "out"))
    assert len(refusals) == 5  # convert, doctor, train, export, eval
    expected = rf"{tmp_path}/out: another quick start \(process {os.getpid()} on .*another --output_dir"
    assert all(re.match(expected, text) for text in refusals)


def test_other_wishes_and_broken_notes_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    notes = tmp_path / "quickstart.json"
    quickstart_of = {"version": 2, "asked": {"minutes": 10}, "done": {"convert": None}, "seconds": {}}
    notes.write_text(json.dumps(quickstart_of))
    with pytest.raises(InputError, match=r"quickstart.json: was started with .*another --output_dir"):
        quickstart(config(tmp_path))
    for text in ("{", "[]", "{}", '{"version": 2, "asked": 3, "done": 4}', json.dumps(quickstart_of | {"version": 1})):
        notes.write_text(text)
        with pytest.raises(InputError, match="not a state file of this quick start"):
            quickstart(config(tmp_path))


def test_a_program_that_fails_ends_with_its_code(capfd):
    with pytest.raises(SystemExit) as caught:
        run_program("dataset.create_tfrecord", {"images": "/nowhere", "val_fraction": None})
    assert caught.value.code == 2
    told = capfd.readouterr()
    assert "$ python " in told.out
    assert "--images=/nowhere: no such folder" in told.err
    assert told.err.endswith("quickstart: dataset.create_tfrecord exited with status 2\n")


def test_the_console_shows_a_part_of_what_programs_print(tmp_path, monkeypatch, capfd):
    long = f"warning: {'b' * 300}"
    lines = ["epoch 2: AP 0.5", "loss 1.5", "warning: few images", long, "train: epoch 1/2 step 3/9 ETA 0:10"]
    (tmp_path / "talking.py").write_text(f"print(*{lines}, 'tail', sep=chr(10), end='')")
    monkeypatch.setattr(programs_module, "_FIRST_PROGRESS_SECONDS", 0.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    log = tmp_path / "log"
    with output_to(log):
        for _ in range(2):
            run_program("talking", {"flag": "a" * 500})
    shown = [lines[0], lines[2], f"{long[:240]} ..", lines[4]]
    console = capfd.readouterr().out.splitlines()
    assert console == [f"$ python {console[0].split()[2]} ..", *shown] * 2
    assert log.read_text().count("\n".join([*lines, "tail"])) == 2
    assert log.read_text().count("a" * 500) == 2
    with output_to(log), pytest.raises(SystemExit):
        run_program("dataset.create_tfrecord", {"images": "/nowhere", "val_fraction": None})
    told = capfd.readouterr()
    assert "create_tfrecord.py: error: --images=/nowhere: no such folder" in told.err
    assert told.err.endswith(f"quickstart: dataset.create_tfrecord exited with status 2 ({log})\n")


def test_a_program_has_its_own_flags_and_those_of_absl(tmp_path):
    """A SavedModel is written only where absl knows its verbosity."""
    defining = (
        "from absl import flags, logging\nfrom quickstart import define_flags\n"
        "define_flags()\nflags.DEFINE_bool('of_a_script', True, '')\n"
    )
    (tmp_path / "own.py").write_text(f"{defining}print('verbosity', logging.get_verbosity())")
    starting = f"{defining}from efficientdet.quickstart.programs import run_program\nrun_program('own', {{}})"
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}
    ended = subprocess.run(
        [sys.executable, "-c", starting], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "\nverbosity " in ended.stdout, ended.stderr


def test_a_signal_is_handed_on(tmp_path):
    (tmp_path / "listening.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('saved').touch(), sys.exit(143)))\n"
        "pathlib.Path('ready').touch()\ntime.sleep(60)\n"
    )
    starter = start_program_in(tmp_path)
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(timeout=30) == 143
    assert (tmp_path / "saved").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_program_ends_with_a_quick_start_that_is_killed_and_is_waited_for(tmp_path, capsys):
    (tmp_path / "listening.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), pathlib.Path('saved').touch(), sys.exit(143)))\n"
        "pathlib.Path('ready').touch()\ntime.sleep(60)\n"
    )
    starter = start_program_in(tmp_path, locking=tmp_path / "out")
    starter.kill()
    starter.wait()
    with sole_quickstart(tmp_path / "out"):
        assert (tmp_path / "saved").exists()
    expected = f"waiting for the programs of a quick start that was killed (process {starter.pid} on "
    assert capsys.readouterr().out.count(expected) == 1


def start_program_in(folder, *, locking=None):
    """A process that runs listening.py as a quick start does; returns when that is ready."""
    starting = (
        "import contextlib, pathlib\nfrom efficientdet.quickstart.output_folder import sole_quickstart\n"
        "from efficientdet.quickstart.programs import run_program\n"
        f"with {f'sole_quickstart(pathlib.{locking!r})' if locking else 'contextlib.nullcontext()'}:\n"
        "    run_program('listening', {})"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", starting], cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""}
    )
    while not (folder / "ready").exists():
        assert starter.poll() is None
        time.sleep(0.01)
    return starter


def test_the_folder_may_be_the_first_argument():
    ended = subprocess.run(
        [sys.executable, ROOT / "quickstart.py", "/nowhere"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("quickstart.py: error: --images=/nowhere: no such folder")


def _aerial(side=3000, small=30, count=40):
    """One square image with small objects."""
    starts = np.linspace(0, side - small, count)
    boxes = np.stack([starts, starts, starts + small, starts + small], axis=1)
    return replace(
        healthy(1, size=(side, side)),
        owners=np.zeros(count, np.int32),
        boxes=np.float32(boxes),
        classes=np.zeros(count, np.int32),
    )


def test_tiles_where_objects_are_too_small_in_every_input_that_fits(capsys):
    """Of 3000 pixels 30 are 5 in an input of 512; in tiles of 480, sixteen times as large, they are 16 of 256."""
    images = _aerial()
    limits = budget(16000, object_share=choices.object_share(images))
    assert tile_settings(images, 512, limits, image_ms=20) == {"tile_size": 480}
    line = capsys.readouterr().out
    assert "tiles of 480x480 pixels of the images: the median object of the smallest class has 30, in an input" in line
    assert "an image has 64 tiles, detection takes about 1280 ms" in line  # eight rows and columns, 384 apart
    shown = shown_images(images, {"tile_size": 480})
    assert choices.object_share(shown.images) == pytest.approx(1 / 16)
    assert (shown.largest, shown.per_epoch) == (960, 41)  # one more than objects


def test_no_tiles_where_objects_are_large_enough_or_tiles_hardly_smaller():
    large = _aerial(small=200)
    assert tile_settings(large, 512, budget(16000, object_share=200 / 3000), image_ms=20) == {}
    near = _aerial(side=640, small=40)
    assert tile_settings(near, 512, budget(60, object_share=40 / 640), image_ms=20) == {}
    assert shown_images(near, {}).largest == 640
