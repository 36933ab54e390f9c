"""Removed keys of NVIDIA's and google/automl's configurations, with reasons and values that have no effect."""

from efficientdet.families.removed_hyperparameters import Gone

_NOTHING_DONE = "it never did anything"
_PIXELS = tuple(255 * value for value in (0.485, 0.456, 0.406)), tuple(255 * value for value in (0.229, 0.224, 0.225))

GONE = {
    "autoaugment_policy": Gone("images are flipped, scaled and cropped, nothing else"),
    "backbone_config": Gone("the backbones are those of keras.applications"),
    "backbone_init": Gone("use --backbone_init"),
    "ckpt_var_scope": Gone("checkpoints hold one model"),
    "data_format": Gone("images are always channels last; XLA chooses its own layout", ("channels_last", None)),
    "dataset_type": Gone("records are TFRecords"),
    "drop_remainder": Gone("every training batch is full, the last evaluation batch is filled up", (True,)),
    "fpn_config": Gone("the pyramid is the BiFPN"),
    "fpn_name": Gone("the pyramid is the BiFPN", (None, "bifpn", "bifpn_dyn")),
    "grad_checkpoint": Gone(_NOTHING_DONE, (False, None)),
    "grid_mask": Gone("images are flipped, scaled and cropped, nothing else", (False, None)),
    "heads": Gone("there is no segmentation head", (("object_detection",), "object_detection", None)),
    "img_summary_steps": Gone(_NOTHING_DONE),
    "label_map": Gone("class names travel with the records"),
    "map_freq": Gone("use --eval_period", (5, None)),
    "mean_rgb": Gone("images are normalized with ImageNet's mean and deviation", (_PIXELS[0], None)),
    "mixed_precision": Gone("use --precision", (False, None)),
    "mixed_precision_on_inputs": Gone(_NOTHING_DONE, (False, None)),
    "model_optimizations": Gone("there is no pruning", ({}, None)),
    "nms_configs.pyfunc": Gone("there is one suppression, on the device", (True, False, None)),
    "poly_lr_power": Gone("no schedule is a polynomial", (0.9, None)),
    "positives_momentum": Gone("positives are counted in the batch"),
    "regenerate_source_id": Gone("a record without a number gets one from its bytes anyway", (False, None)),
    "sample_image": Gone("use infer.py"),
    "save_freq": Gone("use --checkpoint_period and --checkpoint_steps", ("epoch", None)),
    "scale_range": Gone("images are normalized with ImageNet's mean and deviation", (False, None)),
    "seg_num_classes": Gone("there is no segmentation head", (3, None)),
    "shuffle_buffer": Gone("every epoch is a permutation of all records", (5000, None)),
    "skip_crowd_during_training": Gone("use train_on_crowds", (True,)),
    "skip_mismatch": Gone("a mismatch is an error; heads of other classes start again", (True, None)),
    "stddev_rgb": Gone("images are normalized with ImageNet's mean and deviation", (_PIXELS[1], None)),
    "strategy": Gone("several devices are Horovod's"),
    "target_size": Gone("the scale jitter is relative to image_size"),
    "tflite_max_detections": Gone("a .tflite of export.py has nms_configs.max_output_size detections", (100, None)),
    "use_keras_model": Gone("there is no other", (True,)),
    "verbose": Gone("progress is shown where someone looks", (1, None)),
}
