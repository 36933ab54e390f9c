"""Removed keys of NVIDIA's and google/automl's configurations, with reasons and values that have no effect."""

from efficientdet.families.removed_hyperparameters import Removed

_NOTHING_DONE = "it never did anything"
_PIXELS = tuple(255 * value for value in (0.485, 0.456, 0.406)), tuple(255 * value for value in (0.229, 0.224, 0.225))

REMOVED = {
    "autoaugment_policy": Removed("images are flipped, scaled and cropped, nothing else"),
    "backbone_config": Removed("the backbones are those of keras.applications"),
    "backbone_init": Removed("use --backbone_init"),
    "ckpt_var_scope": Removed("checkpoints hold one model"),
    "data_format": Removed("images are always channels last; XLA chooses its own layout", ("channels_last", None)),
    "dataset_type": Removed("records are TFRecords"),
    "drop_remainder": Removed("every training batch is full, the last evaluation batch is filled up", (True,)),
    "fpn_config": Removed("the pyramid is the BiFPN"),
    "fpn_name": Removed("the pyramid is the BiFPN", (None, "bifpn", "bifpn_dyn")),
    "grad_checkpoint": Removed(_NOTHING_DONE, (False, None)),
    "grid_mask": Removed("images are flipped, scaled and cropped, nothing else", (False, None)),
    "heads": Removed("there is no segmentation head", (("object_detection",), "object_detection", None)),
    "img_summary_steps": Removed(_NOTHING_DONE),
    "label_map": Removed("class names travel with the records"),
    "map_freq": Removed("use --eval_period", (5, None)),
    "mean_rgb": Removed("images are normalized with ImageNet's mean and deviation", (_PIXELS[0], None)),
    "mixed_precision": Removed("use --precision", (False, None)),
    "mixed_precision_on_inputs": Removed(_NOTHING_DONE, (False, None)),
    "model_optimizations": Removed("there is no pruning", ({}, None)),
    "nms_configs.pyfunc": Removed("there is one suppression, on the device", (True, False, None)),
    "poly_lr_power": Removed("no schedule is a polynomial", (0.9, None)),
    "positives_momentum": Removed("positives are counted in the batch"),
    "regenerate_source_id": Removed("a record without a number gets one from its bytes anyway", (False, None)),
    "sample_image": Removed("use infer.py"),
    "save_freq": Removed("use --checkpoint_period and --checkpoint_steps", ("epoch", None)),
    "scale_range": Removed("images are normalized with ImageNet's mean and deviation", (False, None)),
    "seg_num_classes": Removed("there is no segmentation head", (3, None)),
    "shuffle_buffer": Removed("every epoch is a permutation of all records", (5000, None)),
    "skip_crowd_during_training": Removed("use train_on_crowds", (True,)),
    "skip_mismatch": Removed("a mismatch is an error; heads of other classes start again", (True, None)),
    "stddev_rgb": Removed("images are normalized with ImageNet's mean and deviation", (_PIXELS[1], None)),
    "strategy": Removed("several devices are Horovod's"),
    "target_size": Removed("the scale jitter is relative to image_size"),
    "tflite_max_detections": Removed("a .tflite of export.py has nms_configs.max_output_size detections", (100, None)),
    "use_keras_model": Removed("there is no other", (True,)),
    "verbose": Removed("progress is shown where someone looks", (1, None)),
}
