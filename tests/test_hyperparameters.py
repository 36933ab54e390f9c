import dataclasses
import json
import math
import re

import pytest

from efficientdet.hyperparameters import (
    GONE,
    Hyperparameters,
    NmsConfigs,
    height_and_width,
    hyperparameters_of,
    normalised_aspect_ratios,
    parse_overrides,
    with_overrides,
)
from efficientdet.presets import PRESETS
from object_detection.errors import InputError


def test_keys_of_the_reference_are_taken_or_have_a_reason():
    keys = """name act_type image_size target_size input_rand_hflip jitter_min jitter_max num_classes label_map
        skip_crowd_during_training max_instances_per_image regenerate_source_id min_level max_level num_scales aspect_ratios
        anchor_scale is_training_bn momentum optimizer learning_rate lr_warmup_init lr_warmup_epoch clip_gradients_norm
        num_epochs data_format label_smoothing alpha gamma delta box_loss_weight iou_loss_type iou_loss_weight weight_decay
        box_class_repeats fpn_cell_repeats fpn_num_filters separable_conv apply_bn_for_resampling conv_after_downsample
        conv_bn_act_pattern drop_remainder fpn_name fpn_weight_method fpn_config survival_prob img_summary_steps
        lr_decay_method moving_average_decay ckpt_var_scope skip_mismatch backbone_name backbone_config var_freeze_expr
        use_keras_model dataset_type positives_momentum grad_checkpoint nms_configs loss_scale heads seg_num_classes
        backbone_init mixed_precision mixed_precision_on_inputs sample_image shuffle_buffer"""
    ours = {field.name for field in dataclasses.fields(Hyperparameters)}
    assert set(keys.split()) - ours - set(GONE) == set()
    assert {"method", "iou_thresh", "score_thresh", "sigma", "max_nms_inputs", "max_output_size"} <= {
        field.name for field in dataclasses.fields(NmsConfigs)}
    assert not ours & set(GONE)


def test_defaults_of_the_reference():
    d0 = hyperparameters_of("efficientdet-d0", {})
    assert (d0.alpha, d0.gamma, d0.delta, d0.box_loss_weight, d0.weight_decay) == (0.25, 1.5, 0.1, 50.0, 4e-5)
    assert (d0.momentum, d0.clip_gradients_norm, d0.moving_average_decay, d0.num_epochs) == (0.9, 10.0, 0.9998, 300)
    assert (d0.jitter_min, d0.jitter_max, d0.max_instances_per_image, d0.anchor_scale) == (0.1, 2.0, 100, 4.0)


@pytest.mark.parametrize(("name", "backbone", "size", "filters", "cells", "depth"), [
    ("efficientdet-d0", "efficientnet-b0", 512, 64, 3, 3), ("efficientdet-d1", "efficientnet-b1", 640, 88, 4, 3),
    ("efficientdet-d2", "efficientnet-b2", 768, 112, 5, 3), ("efficientdet-d3", "efficientnet-b3", 896, 160, 6, 4),
    ("efficientdet-d4", "efficientnet-b4", 1024, 224, 7, 4), ("efficientdet-d5", "efficientnet-b5", 1280, 288, 7, 4),
    ("efficientdet-d6", "efficientnet-b6", 1280, 384, 8, 5), ("efficientdet-d7", "efficientnet-b6", 1536, 384, 8, 5),
    ("efficientdet-d7x", "efficientnet-b7", 1536, 384, 8, 5)])
def test_published_models(name, backbone, size, filters, cells, depth):
    found = hyperparameters_of(name, {})
    assert (found.name, found.backbone_name, found.image_size, found.fpn_num_filters, found.fpn_cell_repeats,
            found.box_class_repeats) == (name, backbone, size, filters, cells, depth)


def test_two_models_in_one_process_do_not_share_values():
    hyperparameters_of("efficientdet-d0", {"image_size": 64, "nms_configs.method": "hard"})
    again = hyperparameters_of("efficientdet-d0", {})
    assert (again.image_size, again.nms_configs.method) == (512, "gaussian")
    assert len(PRESETS) == 9


def test_parses_the_reference_syntax():
    assert parse_overrides("a=1,b.c=2.5, x=1*2*3 ,s=abc,t=True,n=None,e=1e-4,size=1920x1280") == {
        "a": 1, "b.c": 2.5, "x": (1, 2, 3), "s": "abc", "t": True, "n": None, "e": 1e-4, "size": "1920x1280"}
    assert parse_overrides("") == {}


def test_overrides_take_effect_in_both_levels():
    found = with_overrides(Hyperparameters(), parse_overrides(
        "momentum=0.93,moving_average_decay=0,nms_configs.method=hard,nms_configs.iou_thresh=0.6,aspect_ratios=1.0*2.0*0.5"))
    assert (found.momentum, found.moving_average_decay) == (0.93, 0)
    assert isinstance(found.moving_average_decay, float)  # a whole number is fine where a fraction is meant
    assert (found.nms_configs.method, found.nms_configs.iou_thresh, found.nms_configs.max_output_size) == ("hard", 0.6, 100)
    assert found.aspect_ratios == (1.0, 2.0, 0.5)


def test_json_and_back():
    given = hyperparameters_of("efficientdet-d7x", {"nms_configs.sigma": 0.3, "image_size": (640, 512)})
    stored = json.loads(json.dumps(given.to_dict()))
    again = hyperparameters_of("efficientdet-d0", stored)
    assert again.nms_configs == given.nms_configs
    assert height_and_width(again.image_size) == (640, 512)
    assert again.to_dict() == {**given.to_dict(), "aspect_ratios": again.aspect_ratios}
    assert normalised_aspect_ratios(again.aspect_ratios) == normalised_aspect_ratios(given.aspect_ratios)


def test_yaml_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("image_size: 1920x1280\nnms_configs:\n  method: hard\n  sigma: null\naspect_ratios: [1.0, 2.0]\n")
    found = with_overrides(Hyperparameters(), parse_overrides(str(path)))
    assert height_and_width(found.image_size) == (1280, 1920)
    assert (found.nms_configs.method, found.nms_configs.sigma, found.aspect_ratios) == ("hard", None, (1.0, 2.0))


@pytest.mark.parametrize(("content", "message"), [
    ("a: [", "is not YAML"), ("- 1\n", "holds list"), ("", "holds NoneType"), (None, "cannot be read")])
def test_bad_yaml(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        parse_overrides(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ("learning_rat=1", "learning_rat does not exist; the nearest is learning_rate"),
    ("nms_configs.methode=hard", "nearest is nms_configs.method"),
    ("qqqqq=1", "qqqqq does not exist$"),
    ("nms_configs.pyfunc=True", "is gone: there is one suppression"),
    ("skip_mismatch=True", "is gone"),
    ("momentum", "no.yaml|cannot be read"),
    ("momentum=", "wanted key=value"),
    ("momentum=0.9,alpha", "'alpha' in"),
    ("momentum=high", "momentum is 'high'; wanted float"),
    ("momentum=True", "momentum is True; wanted float"),
    ("num_epochs=1.5", "num_epochs is 1.5; wanted int"),
    ("num_epochs=0", "wanted at least 1"),
    ("momentum=None", "momentum is None"),
    ("optimizer=adam", "wanted sgd"),
    ("act_type=gelu", "wanted one of silu"),
    ("moving_average_decay=1", "moving_average_decay is 1"),
    ("image_size=0", "image_size is 0"),
    ("image_size=abc", "image_size is 'abc'"),
    ("aspect_ratios=1*0", "aspect_ratios"),
    ("aspect_ratios=a*b", "aspect_ratios"),
])
def test_wrong_override(text, message):
    with pytest.raises(InputError, match=message):
        with_overrides(Hyperparameters(), parse_overrides(text))


def test_unknown_model_names_the_known_ones():
    with pytest.raises(InputError, match=re.escape("--model_name=efficientdet-d9: wanted one of efficientdet-d0, ")):
        hyperparameters_of("efficientdet-d9", {})


def test_image_sizes():
    assert height_and_width(512) == (512, 512)
    assert height_and_width("1920x1280") == (1280, 1920)  # width x height, as the reference writes it
    assert height_and_width((1280, 1920)) == (1280, 1920)


def test_aspect_ratios():
    assert normalised_aspect_ratios((4.0, 1)) == ((2.0, 0.5), (1.0, 1.0))
    assert normalised_aspect_ratios([[1.4, 0.7]]) == ((1.4, 0.7),)
    first, second, third = normalised_aspect_ratios(Hyperparameters().aspect_ratios)
    assert math.isclose(second[0] * second[1], 1.0)
    assert third == second[::-1]
    assert first == (1.0, 1.0)
