"""Aliases and removed flags of NVIDIA's and google/automl's programs, with the reason of each removal.

The programs of google/automl are its Keras programs (tf2/train.py, eval.py, inspector.py) and main.py for training.
"""

from typing import NamedTuple

from program_support.errors import InputError


class Gone(NamedTuple):
    """Reason why a flag was removed, and its values that are accepted because they have no effect."""

    reason: str
    passes: tuple[str, ...] = ()
    boolean: bool = False


_SWITCHED_OFF = ("False",)
_TPU = Gone("TPUs are not served, only GPUs and CPUs")
_TFLITE = Gone("export.py --formats=litert,litert-int8 writes .tflite files")
_RECORDS_FOR_TFLITE = Gone("it served TFLite; export.py --int8_images=FILES has that now")

_CLUSTER = Gone("one machine detected as fast; each of several machines takes a part of the images", ("local",))
_COUNTS = Gone("supervision's LineZone and PolygonZone count the tracks of load_detector(..).track(..)")
_MISS_RATE = Gone("no user asked for thresholds with a guaranteed miss rate; the best F1 is stored")
_THRESHOLD = Gone("the thresholds with the best F1 are used; --min_score_thresh sets another", ("f1",))
_IMAGES = dict.fromkeys(
    ("annotations", "format", "images", "max_bad_fraction"),
    Gone("dataset/create_tfrecord.py --images=FOLDER converts labeled images; --val_file_pattern takes the records"),
)
_EXPORTS = Gone("export.py --output_dir=FOLDER --formats=.. writes such files")

ALIASES = {
    "train": {
        "backbone_ckpt": "backbone_init",
        "ckpt": "pretrained_ckpt",
        "save_checkpoints_steps": "checkpoint_steps",
        "tf_random_seed": "seed",
        "train_batch_size": "batch_size",
        "train_file_pattern": "training_file_pattern",
        "validation_file_pattern": "val_file_pattern",
    },
    "evaluate": {"ckpt": "ckpt_path", "model": "ckpt_path", "model_dir": "ckpt_path"},
    "infer": {"ckpt_path": "model_dir"},
    "inspector": {"model_dir": "ckpt_path"},
}

GONE = {
    "train": {
        "balance": Gone("no measurement showed a gain of repeating images of rare classes", ("none",)),
        "balance_threshold": Gone("--balance was removed"),
        "cache": Gone("decoded images are not kept in memory; smaller stored images decode faster", ("none",)),
        "eval_after_training": Gone(
            "--training_mode=traineval and train evaluate at the end", _SWITCHED_OFF, boolean=True
        ),
        "eval_master": _TPU,
        "eval_name": Gone("it named a job of a TPU cluster; --model_dir names a run"),
        "eval_timeout": Gone("train.py evaluates while it trains; eval.py evaluates one checkpoint"),
        "gcp_project": _TPU,
        "hub_module_url": Gone("--pretrained_ckpt=FOLDER takes the model's checkpoint"),
        "input_partition_dims": _TPU,
        "iterations_per_loop": _TPU,
        "min_eval_interval": Gone("train.py evaluates while it trains, every --eval_period epochs"),
        "mlperf_cache_cleared": Gone("--mlperf_submission=cache_clear=True has it", _SWITCHED_OFF, boolean=True),
        **dict.fromkeys(
            (
                "mlperf_division",
                "mlperf_organization",
                "mlperf_platform",
                "mlperf_ruleset",
                "mlperf_status",
            ),
            Gone("--mlperf_submission=KEY=VALUE,.. has it, such as submission_org=NAME"),
        ),
        "num_cores": _TPU,
        "num_cores_per_replica": _TPU,
        "on_nan": Gone("a NaN or infinite loss ends a training; the command resumes, with a lower --lr", ("stop",)),
        "profile": Gone(
            "the log has the seconds of each part of a training; inspector.py --trace_filename=FOLDER writes a "
            "trace of inference",
            _SWITCHED_OFF,
            boolean=True,
        ),
        "run_epoch_in_child_process": Gone("a training is one process", ("True", "False"), boolean=True),
        "shard_optimizer_state": Gone(
            "each device holds the optimizer's state: nothing was measured on several devices",
            _SWITCHED_OFF,
            boolean=True,
        ),
        "steps_per_execution": Gone("a step is one compiled program and reports after each", ("1",)),
        "strategy": Gone(
            "a process trains on one GPU; for several: python scripts/horovodrun.py -np N python train.py ..."
        ),
        "tpu": _TPU,
        "tpu_zone": _TPU,
        "use_spatial_partition": Gone(_TPU.reason, _SWITCHED_OFF, boolean=True),
    },
    "doctor": dict.fromkeys(
        ("annotations", "format", "images", "val_annotations"),
        Gone("it checks records; dataset/create_tfrecord.py --images=FOLDER converts labeled images"),
    ),
    "compare": _IMAGES,
    "evaluate": {
        **_IMAGES,
        "confidence": _MISS_RATE,
        "engine": _CLUSTER,
        "gcp_project": _TPU,
        "miss_rate": _MISS_RATE,
        "only_this_epoch": Gone(
            "it had no effect; --ckpt=PREFIX names the checkpoint, such as ema_weights/emackpt-300"
        ),
        "tpu": _TPU,
        "tpu_zone": _TPU,
    },
    "export": {"push_to": Gone("hf upload USER/NAME FOLDER publishes a folder"), "threshold": _THRESHOLD},
    "infer": {
        "apply_exif_orientation": Gone(
            "images are rotated by their EXIF orientation, as in all programs", ("True",), True
        ),
        "count_line": _COUNTS,
        "engine": _CLUSTER,
        "save_crops": Gone("load_detector(..).predict(..) in Python has crop()", _SWITCHED_OFF, boolean=True),
        "threshold": _THRESHOLD,
        "webhook": Gone("--json_lines=- writes each frame for a program that posts it; --mqtt publishes changes"),
        "zone": _COUNTS,
    },
    "quickstart": {
        "folds": Gone("a cross-validation by the quick start was removed; train.py trains on any records"),
    },
    "inspector": {
        "debug": Gone(
            "it had no effect here; infer.py --debug and train.py --debug run step by step",
            _SWITCHED_OFF,
            boolean=True,
        ),
        "file_pattern": _RECORDS_FOR_TFLITE,
        "formats": _EXPORTS,
        "num_calibration_steps": _RECORDS_FOR_TFLITE,
        "only_network": Gone(
            "export.py --formats=onnx-raw exports the network alone, --mode=benchmark times it beside the whole",
            _SWITCHED_OFF,
            boolean=True,
        ),
        "onnx_path": _EXPORTS,
        "output_dir": _EXPORTS,
        "output_image_dir": Gone("infer.py --image_path=FILE --output_dir=FOLDER draws into images"),
        "tensorrt": Gone(
            "TensorFlow no longer contains TensorRT; export.py --formats=onnx,onnx-raw writes ONNX for it"
        ),
        "tflite": _TFLITE,
        "tflite_path": _TFLITE,
        "threshold": _THRESHOLD,
    },
    "serve": {
        "threshold": Gone("the thresholds with the best F1 are used; --min_score sets another", ("f1",)),
    },
    "next_images": {
        "strategy": Gone("doubt or novelty alone had no measured gain over their product", ("expected_gain",)),
    },
}

_TRAINING_MODE_OF = {"train": "train300", "traineval": "traineval", "train_and_eval": "traineval"}
AUTOML_MODES = (*_TRAINING_MODE_OF, "eval")


def training_mode(chosen: str | None, mode: str | None) -> str:
    """Return --training_mode, or its equivalent of google/automl's --mode.

    Raises:
        InputError: for another mode.
    """
    if mode is None:
        return chosen or "traineval"
    if chosen:
        raise InputError(f"--mode={mode} and --training_mode={chosen} are both given; expected only one of them")
    if mode not in _TRAINING_MODE_OF:
        raise InputError(f"--mode={mode}: train.py trains; python eval.py --ckpt=FOLDER evaluates")
    return _TRAINING_MODE_OF[mode]
