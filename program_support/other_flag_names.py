"""Flag names of other detection programs (ultralytics, torchvision's references, detectron2 and MMDetection).

Entry points answer such a name with the equivalent flag instead of ignoring it or guessing.
"""

from collections.abc import Collection, Container

from program_support.errors import nearest_name

# Name elsewhere -> names here; the first that a program has is suggested, with the text after "=".
_EQUIVALENTS = {
    "batch": ("batch_size", "max_batch"),
    "bs": ("batch_size", "max_batch"),
    "samples_per_gpu": ("batch_size",),
    "ims_per_batch": ("batch_size",),
    "epochs": ("num_epochs", "minutes"),
    "max_epochs": ("num_epochs", "minutes"),
    "n_epochs": ("num_epochs", "minutes"),
    "time": ("minutes", "max_minutes"),
    "save_period": ("checkpoint_period",),
    "val_interval": ("eval_period",),
    "imgsz": ("image_size", "hparams=image_size=N"),
    "img_size": ("image_size", "hparams=image_size=N"),
    "img": ("image_size", "hparams=image_size=N"),
    "input_size": ("image_size", "hparams=image_size=N"),
    "image_size": ("hparams=image_size=N",),
    "image_sizes": ("image_size", "hparams=image_size=N"),
    "lr0": ("lr", "hparams=learning_rate=N"),
    "learning_rate": ("lr", "hparams=learning_rate=N"),
    "base_lr": ("lr", "hparams=learning_rate=N"),
    "lr_warmup_epochs": ("warmup_epochs",),
    "momentum": ("hparams=momentum=N",),
    "weight_decay": ("hparams=weight_decay=N",),
    "optimizer": ("hparams=optimizer=NAME",),
    "opt": ("hparams=optimizer=NAME",),
    "freeze": ("hparams=var_freeze_expr=EXPRESSION",),
    "model": ("model_name",),
    "arch": ("model_name",),
    "cfg": ("model_name",),
    "config": ("model_name",),
    "config_file": ("model_name",),
    "weights": ("pretrained_ckpt", "ckpt_path", "model"),
    "pretrained": ("pretrained_ckpt", "weights"),
    "load_from": ("pretrained_ckpt",),
    "checkpoint": ("ckpt_path", "ckpt", "pretrained_ckpt", "model_dir", "model"),
    "weights_backbone": ("backbone_init",),
    "data": ("training_file_pattern", "val_file_pattern", "images", "records"),
    "data_path": ("training_file_pattern", "val_file_pattern", "images", "records"),
    "dataset": ("training_file_pattern", "val_file_pattern", "images", "records"),
    "source": ("image_path", "images"),
    "input": ("image_path", "images"),
    "labels": ("annotations",),
    "conf": ("min_score_thresh", "min_score"),
    "conf_thres": ("min_score_thresh", "min_score"),
    "confidence_threshold": ("min_score_thresh", "min_score"),
    "score_thr": ("min_score_thresh", "min_score"),
    "max_det": ("max_boxes_to_draw", "hparams=nms_configs.max_output_size=N"),
    "iou": ("hparams=nms_configs.iou_thresh=N",),
    "iou_thres": ("hparams=nms_configs.iou_thresh=N",),
    "project": ("model_dir", "output_dir"),
    "work_dir": ("model_dir", "output_dir"),
    "out_dir": ("model_dir", "output_dir"),
    "save_dir": ("model_dir", "output_dir"),
    "logdir": ("model_dir", "output_dir"),
    "output": ("model_dir", "output_dir"),
    "out": ("model_dir", "output_dir"),
    "name": ("model_dir", "output_dir"),
    "half": ("precision=mixed_float16",),
    "fp16": ("precision=mixed_float16",),
    "bf16": ("precision=mixed_bfloat16",),
    "include": ("formats",),
    "format": ("formats",),
    "save_crop": ("save_crops",),
    "save_txt": ("format=yolo",),
    "accumulate": ("accumulate_steps",),
    "val_data": ("val_file_pattern", "val_records"),
}
_NO_FLAG = {
    **dict.fromkeys(("device", "gpu", "gpus", "gpu_ids"), "set CUDA_VISIBLE_DEVICES=0 to select a GPU"),
    **dict.fromkeys(("workers", "num_workers"), "the input pipeline uses all CPU cores available to the process"),
}


def other_name_hint(name: str, flags: Container[str]) -> str | None:
    """Return a hint to one of the program's `flags` for a flag name of another program; None for an unknown name."""
    key = name.replace("-", "_").lower()
    for flag in (key, *_EQUIVALENTS.get(key, ())):
        if flag.split("=", 1)[0] in flags:
            return f"use --{flag}"
    return _NO_FLAG.get(key)


def unknown_name_hint(name: str, flags: Collection[str]) -> str:
    """Return a hint for an unknown name: the flag for another program's name, or the nearest of the `flags`, or ""."""
    nearest = nearest_name(name, flags)
    return other_name_hint(name, flags) or (f"the nearest is --{nearest}" if nearest else "")
