import dataclasses
import json
import math
import os
import pickle
import re

import numpy as np
import pytest
import yaml
from oracles import TESTDATA
from text_tables import rows

from dataset.class_names import ClassNames
from efficientdet.checkpoints.description import description_of
from efficientdet.configuration.model_config import parse_overrides
from efficientdet.families.efficientdet.build import network_config
from efficientdet.families.efficientdet.hyperparameters import (
    ACTIVATIONS,
    REMOVED,
    EfficientDetHyperparameters,
    normalized_aspect_ratios,
)
from efficientdet.families.efficientdet.presets import BACKBONES
from efficientdet.families.hyperparameters import height_and_width, stated_classes, with_overrides
from efficientdet.families.preset_values import NmsConfigs, suppression_config
from efficientdet.families.registry import hyperparameters_of, model_names
from model import bifpn
from object_detection.geometry import box_geometry
from object_detection.suppression import tensor_suppression as suppression
from program_support.checked_fields import plain_types
from program_support.errors import InputError


def test_keys_of_the_reference_are_taken_or_have_a_reason():
    keys = """name act_type image_size target_size input_rand_hflip jitter_min jitter_max num_classes label_map
        skip_crowd_during_training max_instances_per_image regenerate_source_id min_level max_level num_scales
        aspect_ratios anchor_scale is_training_bn momentum optimizer learning_rate lr_warmup_init lr_warmup_epoch
        clip_gradients_norm num_epochs data_format label_smoothing alpha gamma delta box_loss_weight iou_loss_type
        iou_loss_weight weight_decay box_class_repeats fpn_cell_repeats fpn_num_filters separable_conv
        apply_bn_for_resampling conv_after_downsample conv_bn_act_pattern drop_remainder fpn_name fpn_weight_method
        fpn_config survival_prob img_summary_steps lr_decay_method moving_average_decay ckpt_var_scope skip_mismatch
        backbone_name backbone_config var_freeze_expr use_keras_model dataset_type positives_momentum grad_checkpoint
        nms_configs loss_scale heads seg_num_classes backbone_init mixed_precision mixed_precision_on_inputs
        sample_image shuffle_buffer"""
    ours = {field.name for field in dataclasses.fields(EfficientDetHyperparameters)}
    assert set(keys.split()) - ours - set(REMOVED) == set()
    assert {"method", "iou_thresh", "score_thresh", "sigma", "max_nms_inputs", "max_output_size"} <= {
        field.name for field in dataclasses.fields(NmsConfigs)
    }
    assert not ours & set(REMOVED)


@pytest.mark.parametrize(
    ("model", "published", "trained"),
    [
        ("efficientdet-d0", 0, {"label_assignment": "atss", "class_loss_type": "varifocal", "box_loss_type": "ciou"}),
        ("ssd300-resnet34", 0.05, {"label_assignment": "iou", "box_loss_type": "smooth_l1", "box_loss_weight": None}),
    ],
)
def test_checkpoints_of_removed_hyperparameters_are_read(model, published, trained):
    expected = hyperparameters_of(model, {})
    assert hyperparameters_of(model, {"hue": published}) == expected
    stored = {**expected.to_dict(), "hue": 0.1, "mosaic_probability": 0.5, **trained}
    description = description_of({"model_name": model, "hparams": stored, "categories": [], "weights": "raw"})
    assert hyperparameters_of(model, description.hparams) == expected
    with pytest.raises(InputError, match=r"^hparam hue has been removed: .*color jitter"):
        hyperparameters_of(model, {"hue": 0.1})


@pytest.mark.parametrize(
    ("name", "backbone", "size", "filters", "cells", "depth"),
    rows(r"""
efficientdet-d0 | efficientnet-b0 | 512 | 64 | 3 | 3
efficientdet-d1 | efficientnet-b1 | 640 | 88 | 4 | 3
efficientdet-d2 | efficientnet-b2 | 768 | 112 | 5 | 3
efficientdet-d3 | efficientnet-b3 | 896 | 160 | 6 | 4
efficientdet-d4 | efficientnet-b4 | 1024 | 224 | 7 | 4
efficientdet-d5 | efficientnet-b5 | 1280 | 288 | 7 | 4
efficientdet-d6 | efficientnet-b6 | 1280 | 384 | 8 | 5
efficientdet-d7 | efficientnet-b6 | 1536 | 384 | 8 | 5
efficientdet-d7x | efficientnet-b7 | 1536 | 384 | 8 | 5
efficientdet-lite0 | efficientnet-lite0 | 320 | 64 | 3 | 3
efficientdet-lite1 | efficientnet-lite1 | 384 | 88 | 4 | 3
efficientdet-lite2 | efficientnet-lite2 | 448 | 112 | 5 | 3
efficientdet-lite3 | efficientnet-lite3 | 512 | 160 | 6 | 4
efficientdet-lite3x | efficientnet-lite3 | 640 | 200 | 6 | 4
efficientdet-lite4 | efficientnet-lite4 | 640 | 224 | 7 | 4
"""),
)
def test_published_models(name, backbone, size, filters, cells, depth):
    found = hyperparameters_of(name, {})
    assert (
        found.name,
        found.backbone_name,
        found.image_size,
        found.fpn_num_filters,
        found.fpn_cell_repeats,
        found.box_class_repeats,
    ) == (name, backbone, size, filters, cells, depth)


def test_mean_and_deviation_are_one_number_or_three():
    found = with_overrides(EfficientDetHyperparameters(), parse_overrides("mean_rgb=127,stddev_rgb=58.4*57*57.4"))
    assert (found.mean_rgb, found.stddev_rgb) == ((127.0, 127.0, 127.0), (58.4, 57.0, 57.4))


@pytest.mark.parametrize("model_name", model_names())
def test_hyperparameters_carry_their_family(model_name):
    """Also as a copy and after a pickle; it is no key of theirs."""
    hparams = hyperparameters_of(model_name, {"num_epochs": 7})
    for found in (hparams, dataclasses.replace(hparams, num_epochs=9), pickle.loads(pickle.dumps(hparams))):
        assert model_name in found.family.presets
        assert type(found) is found.family.hyperparameters
    assert "family" not in hparams.to_dict()
    assert hyperparameters_of(model_name, hparams.to_dict()) == hparams


def test_parses_the_reference_syntax():
    assert parse_overrides("a=1,b.c=2.5, x=1*2*3 ,s=abc,t=True,n=None,e=1e-4,size=1920x1280") == {
        "a": 1,
        "b.c": 2.5,
        "x": (1, 2, 3),
        "s": "abc",
        "t": True,
        "n": None,
        "e": 1e-4,
        "size": "1920x1280",
    }
    assert parse_overrides("") == {}


def test_overrides_take_effect_in_both_levels():
    found = with_overrides(
        EfficientDetHyperparameters(),
        parse_overrides(
            "momentum=0.93,moving_average_decay=0,nms_configs.method=hard,nms_configs.iou_thresh=0.6,aspect_ratios=1.0*2.0*0.5"
        ),
    )
    assert (found.momentum, found.moving_average_decay) == (0.93, 0)
    assert isinstance(found.moving_average_decay, float)  # a whole number is fine where a fraction is meant
    assert (found.nms_configs.method, found.nms_configs.iou_thresh, found.nms_configs.max_output_size) == (
        "hard",
        0.6,
        100,
    )
    assert found.aspect_ratios == (1.0, 2.0, 0.5)


def test_json_and_back():
    given = hyperparameters_of("efficientdet-d7x", {"nms_configs.sigma": 0.3, "image_size": (640, 512)})
    stored = json.loads(json.dumps(given.to_dict()))
    again = hyperparameters_of("efficientdet-d0", stored)
    assert again.nms_configs == given.nms_configs
    assert height_and_width(again.image_size) == (640, 512)
    assert again.to_dict() == {**given.to_dict(), "aspect_ratios": again.aspect_ratios, "model_name": "efficientdet-d0"}
    assert normalized_aspect_ratios(again.aspect_ratios) == normalized_aspect_ratios(given.aspect_ratios)


def test_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("image_size: 1920x1280\nnms_configs:\n  method: hard\n  sigma: null\naspect_ratios: [1.0, 2.0]\n")
    found = with_overrides(EfficientDetHyperparameters(), parse_overrides(str(path)))
    assert height_and_width(found.image_size) == (1280, 1920)
    assert (found.nms_configs.method, found.nms_configs.sigma, found.aspect_ratios) == ("hard", None, (1.0, 2.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not YAML"),
        ("- 1\n", "holds list"),
        ("", "holds NoneType"),
        (None, "cannot be read"),
        ("momentum: 0.9\nalpha: 1\nmomentum: 0.8\n", "gives a key twice: 'momentum'"),
        ("nms_configs: {method: hard, method: gaussian}\n", "gives a key twice: 'method'"),
        (
            "nms_configs: {method: hard}\nnms_configs.method: gaussian\n",
            "'nms_configs.method' more than once .'hard', 'gaussian'",
        ),
        ("a: !!python/name:os.system", "is not YAML"),
        ("a: &a [1]\nb: *a\n", "uses aliases"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("a: " + "1" * 5000, "is not YAML"),
        ("a: " + " " * 2**20, "at most 1048576"),
    ],
)
def test_bad_yaml(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        parse_overrides(str(path))
    assert str(path) in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ("pipe", "pipe.yaml"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InputError, match=f"--hparams={tmp_path / name}: cannot be read .it is a named pipe."):
            parse_overrides(str(tmp_path / name))


@pytest.mark.parametrize("reference", ["nvidia", "automl"])
def test_the_references_whole_default_configuration_is_taken(reference):
    """As its own `save_to_yaml` writes it, tuples included: it changes what it says, and nothing else."""
    path = TESTDATA / f"defaults_{reference}.yaml"
    given = yaml.safe_load(path.read_text().replace("!!python/tuple", ""))
    base = hyperparameters_of("efficientdet-d1", {"fpn_cell_repeats": 3})
    found = with_overrides(base, parse_overrides(str(path)))
    assert normalized_aspect_ratios(found.aspect_ratios) == pytest.approx(
        np.array(given["aspect_ratios"]) if reference == "nvidia" else np.array(base.aspect_ratios)
    )
    assert suppression_config(found.nms_configs) == suppression_config(base.nms_configs)
    # lr_warmup_init: NVIDIA's train.py says another one than its configuration, and that is what stands here
    told = {
        "num_classes",
        "aspect_ratios",
        "learning_rate",
        "lr_warmup_init",
        "act_type",
        "backbone_name",
        "nms_configs",
        "box_loss_weight",  # None selects the reference's 50
    }
    ours, theirs = found.to_dict(), base.to_dict()
    assert {key: ours[key] for key in ours if key not in told} == {key: theirs[key] for key in ours if key not in told}
    assert network_config(found, num_classes=3).bifpn == network_config(base, num_classes=3).bifpn
    assert (found.num_classes, found.learning_rate, found.backbone_name) == (
        given["num_classes"],
        0.08,
        given["backbone_name"],
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    rows(r"""
data_format=channels_first | XLA chooses its own layout
heads=object_detection*segmentation | no segmentation
fpn_config=mine | use fpn_name
mixed_precision=True | use --precision
grid_mask=True | flipping, scaling and cropping
drop_remainder=False | is full
label_map=voc | stored with the records
"""),
)
def test_a_gone_key_that_asks_for_something_is_refused_with_the_reason(text, reason):
    key, value = text.split("=")
    with pytest.raises(InputError, match=f"^hparam {key} has been removed: .*{reason}") as caught:
        with_overrides(EfficientDetHyperparameters(), parse_overrides(text))
    assert value.split("*")[0] in str(caught.value)


def test_a_gone_key_that_asks_for_nothing_is_passed_over():
    text = "data_format=channels_last,heads=object_detection,skip_mismatch=True,fpn_name=bifpn_dyn"
    assert with_overrides(EfficientDetHyperparameters(), parse_overrides(text)) == EfficientDetHyperparameters()


def test_a_name_is_a_label_and_no_model():
    found = with_overrides(hyperparameters_of("efficientdet-d2", {}), parse_overrides("name=mine"))
    assert (found.name, found.model_name, found.image_size) == ("mine", "efficientdet-d2", 768)
    again = hyperparameters_of("efficientdet-d2", json.loads(json.dumps(found.to_dict())))
    assert (again.name, again.model_name) == ("mine", "efficientdet-d2")


def test_yaml_text_is_read_as_the_reference_reads_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "weight_decay: 4e-5\nmomentum: '0.8'\nsurvival_prob: None\nname: mine\n"
    )  # YAML takes 4e-5 for text
    assert parse_overrides(str(path)) == {"weight_decay": 4e-5, "momentum": 0.8, "survival_prob": None, "name": "mine"}
    path.write_text("1: 2\n")
    with pytest.raises(InputError, match="hparam 1 does not exist"):
        with_overrides(EfficientDetHyperparameters(), parse_overrides(str(path)))


THREE = ClassNames((1, 2, 9), ("cat", "dog", "cow"))


@pytest.mark.parametrize(
    ("count", "said"), [(None, False), (3, False), (4, True), (9, True), (10, True), (90, True), (91, True)]
)
def test_the_references_numbers_of_classes_are_taken_and_said(count, said):
    line = stated_classes(count, THREE)
    assert bool(line) == said
    assert not said or (f"num_classes={count} " in line and "the 3 classes" in line)


@pytest.mark.parametrize("count", [1, 2, 5, 11, 80])
def test_another_number_of_classes_is_refused(count):
    with pytest.raises(
        InputError, match=f"num_classes is {count}; the data has 3 classes .cat, dog, cow.: leave it out"
    ):
        stated_classes(count, THREE)


NAN = float("nan")
FREE = {"model_name", "var_freeze_expr", "nms_configs"}  # text that is checked elsewhere
IMPOSSIBLE = {  # further values that no training, or no network, can be made with; of numbers -1e9 and NaN
    "name": [" "],
    "min_level": [0, 7],
    "max_level": [1, 3],
    "survival_prob": [0.0],
    "mean_rgb": [256, NAN, (127.0, 127.0), ("127",) * 3],
    "stddev_rgb": [0.0, (58.4, 57.1, 0)],
    "tile_size": ["31", "512x16", 512.0, True, None],
    "jitter_min": [3.0],
    "first_lr_drop_epoch": [251.0],
    "image_size": [31, "512", "512x16", (512, 512, 3), (512, 300.5), 512.0, True, None],
    "aspect_ratios": [(), 1.0, (1.0, -2.0), (NAN,), ((1.0, 0.0),), ((1.0,),)],
}


def keys():
    """Every key, and the types of its values."""
    owners = {"": EfficientDetHyperparameters, "nms_configs.": NmsConfigs}
    return {
        prefix + field.name: plain_types(field.type)
        for prefix, owner in owners.items()
        for field in dataclasses.fields(owner)
        if field.name not in FREE
    }


def impossible_values():
    for key, kinds in keys().items():
        yield from ((key, value) for value in IMPOSSIBLE.get(key, ()))
        yield from ((key, value) for value in (-1e9, NAN) if float in kinds and key != "black_level")
        yield from ((key, value) for value in (-1000,) if int in kinds)
        yield from ((key, value) for value in ("no such",) if str in kinds and key != "name")


def test_impossible_values_are_refused():
    """One line with the key and the value; of every key but switches."""
    refused = set()
    for key, value in impossible_values():
        with pytest.raises(InputError, match=r"^hparam .*expected") as caught:
            with_overrides(EfficientDetHyperparameters(), {key: value})
        message = str(caught.value)
        assert f"{key.removeprefix('nms_configs.')} " in message
        assert str(value) in message
        assert "\n" not in message
        refused.add(key)
    assert refused == {key for key, kinds in keys().items() if kinds != (bool,)} - {"black_level"}


def test_the_names_are_those_that_the_parts_know():
    for names, key in (
        (bifpn.WEIGHT_METHODS, "fpn_weight_method"),
        (box_geometry.IOU_KINDS, "iou_loss_type"),
        (suppression.METHODS, "nms_configs.method"),
        (BACKBONES, "backbone_name"),
        (tuple(ACTIVATIONS), "act_type"),
    ):
        with pytest.raises(InputError, match=f"expected one of {', '.join(names)}$"):
            with_overrides(EfficientDetHyperparameters(), {key: "no such name"})
        for name in names:
            with_overrides(EfficientDetHyperparameters(), {key: name})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat=1", "learning_rat does not exist; the nearest is learning_rate"),
        ("nms_configs.methode=hard", "nearest is nms_configs.method"),
        ("qqqqq=1", "qqqqq does not exist$"),
        ("model_name=efficientdet-d1", "use the flag --model_name"),
        ("nms_configs=hard", r"expected its keys, as in nms_configs\.method=gaussian$"),
        ("momentum={[]:1}", "expected float"),
        ("momentum", "no.yaml|cannot be read"),
        ("momentum=", "expected comma-separated key=value"),
        (f"momentum={'9' * 400}", r"momentum is 9+\.\.\.9+; expected float$"),
        ("name=" + "x" * 1000 + ",momentum=", r"--hparams: 'momentum=' in 'name=x{50,60}\.\.\.x+,momentum='; expected"),
        ("momentum=0.9,alpha=1,momentum=0.8", "'momentum' more than once .0.9, 0.8."),
        ("momentum=high", "momentum is 'high'; expected float"),
        ("momentum=True", "momentum is True; expected float"),
        ("num_epochs=1.5", "num_epochs is 1.5; expected int"),
    ],
)
def test_wrong_override(text, message):
    with pytest.raises(InputError, match=message):
        with_overrides(EfficientDetHyperparameters(), parse_overrides(text))


def test_unknown_model_names_the_known_ones():
    with pytest.raises(InputError, match=re.escape("--model_name=efficientdet-d9: expected one of efficientdet-d0, ")):
        hyperparameters_of("efficientdet-d9", {})


def test_aspect_ratios():
    assert normalized_aspect_ratios((4.0, 1)) == ((2.0, 0.5), (1.0, 1.0))
    assert normalized_aspect_ratios([[1.4, 0.7]]) == ((1.4, 0.7),)
    first, second, third = normalized_aspect_ratios(EfficientDetHyperparameters().aspect_ratios)
    assert math.isclose(second[0] * second[1], 1.0)
    assert third == second[::-1]
    assert first == (1.0, 1.0)
