"""Removed keys of NVIDIA's and google/automl's configurations, with reasons and values that have no effect."""

from efficientdet.families.removed_hyperparameters import Removed

_NOTHING_DONE = "it had no effect"

REMOVED = {
    "autoaugment_policy": Removed("the augmentation is flipping, scaling and cropping"),
    "backbone_config": Removed("the backbones are those of keras.applications"),
    "backbone_init": Removed("use --backbone_init"),
    "ckpt_var_scope": Removed("checkpoints hold one model"),
    "data_format": Removed("images are always channels last; XLA chooses its own layout", ("channels_last", None)),
    "dataset_type": Removed("records are TFRecords"),
    "drop_remainder": Removed("every training batch is full, the last evaluation batch is filled up", (True,)),
    "fpn_config": Removed("use fpn_name"),
    "grad_checkpoint": Removed(_NOTHING_DONE, (False, None)),
    "grid_mask": Removed("the augmentation is flipping, scaling and cropping", (False, None)),
    "heads": Removed("there is no segmentation head", (("object_detection",), "object_detection", None)),
    "img_summary_steps": Removed(_NOTHING_DONE),
    "label_map": Removed("class names are stored with the records; --class_names names those of a checkpoint"),
    "map_freq": Removed("use --eval_period", (5, None)),
    "mixed_precision": Removed("use --precision", (False, None)),
    "mixed_precision_on_inputs": Removed(_NOTHING_DONE, (False, None)),
    "model_optimizations": Removed("there is no pruning", ({}, None)),
    "nms_configs.pyfunc": Removed("suppression always runs on the device", (True, False, None)),
    "poly_lr_power": Removed("no schedule is a polynomial", (0.9, None)),
    "positives_momentum": Removed("positives are counted in the batch"),
    "regenerate_source_id": Removed("a record without an image id always gets one from its content", (False, None)),
    "sample_image": Removed("use infer.py"),
    "save_freq": Removed("use --checkpoint_period and --checkpoint_steps", ("epoch", None)),
    "scale_range": Removed("use mean_rgb=127.5 and stddev_rgb=127.5", (False, None)),
    "seg_num_classes": Removed("there is no segmentation head", (3, None)),
    "shuffle_buffer": Removed("every epoch is a permutation of all records", (5000, None)),
    "skip_crowd_during_training": Removed("use train_on_crowds", (True,)),
    "skip_mismatch": Removed(
        "a mismatch is an error; if the classes differ, the class predictor is reinitialized", (True, None)
    ),
    "strategy": Removed("use JAX or Horovod for several devices"),
    "target_size": Removed("the scale jitter is relative to image_size"),
    "tflite_max_detections": Removed("a .tflite of export.py has nms_configs.max_output_size detections", (100, None)),
    "use_keras_model": Removed("all models are Keras models", (True,)),
    "verbose": Removed("progress is a bar on a terminal and lines in a log", (1, None)),
}
