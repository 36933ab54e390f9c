"""The entry points as a user calls them: every flag of the reference, and mistakes told before any slow import."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import outcomes
from text_tables import rows

from dataset.class_names import ClassNames
from efficientdet.options.removed_flags import ALIASES, GONE, training_mode

ROOT = Path(__file__).resolve().parent.parent
NAMES = ClassNames((1, 7), ("cat", "dog"))

# reference/efficientdet.md 1.1 to 1.4
REFERENCE_FLAGS = {
    "train": """training_mode training_file_pattern val_file_pattern val_json_file model_name model_dir batch_size
        eval_batch_size num_examples_per_epoch num_epochs benchmark benchmark_steps use_fake_data use_xla amp
        set_num_threads log_filename log_steps lr_tb enable_map_parallelization checkpoint_period pretrained_ckpt
        backbone_init hparams lr warmup_value warmup_epochs seed debug
        time_history validate testdev_dir eval_samples""",
    "eval": """eval_samples val_file_pattern val_json_file model_name ckpt_path batch_size only_this_epoch
        enable_map_parallelization amp hparams""",
    "infer": "image_path output_dir model_dir model_name hparams debug saved_model_dir",
    "inspector": """model_name mode trace_filename bm_runs tensorrt batch_size ckpt_path export_ckpt hparams amp
        use_xla input_image output_image_dir dllogger_path input_video output_video max_boxes_to_draw min_score_thresh
        nms_method saved_model_dir tflite_path debug""",
}
# google/automl efficientdet/tf2/{train,eval,infer,inspector}.py, and main.py for training
AUTOML_FLAGS = {
    "train": """tpu gcp_project tpu_zone eval_master eval_name strategy num_cores use_fake_data use_xla model_dir
        pretrained_ckpt hparams batch_size eval_samples steps_per_execution train_file_pattern val_file_pattern
        val_json_file mode hub_module_url num_examples_per_epoch num_epochs model_name debug tf_random_seed profile
        backbone_ckpt ckpt use_spatial_partition num_cores_per_replica input_partition_dims train_batch_size
        eval_batch_size iterations_per_loop save_checkpoints_steps training_file_pattern validation_file_pattern
        testdev_dir eval_after_training min_eval_interval eval_timeout run_epoch_in_child_process""",
    "eval": """tpu gcp_project tpu_zone eval_samples val_file_pattern val_json_file model_name model_dir batch_size
        hparams""",
    "infer": "image_path output_dir model_dir model_name hparams debug saved_model_dir",
    "inspector": """model_name mode trace_filename bm_runs tensorrt batch_size image_size model_dir export_ckpt hparams
        input_image output_image_dir input_video output_video saved_model_dir tflite file_pattern num_calibration_steps
        debug use_xla only_network""",
}
PROGRAMS = (*REFERENCE_FLAGS, "serve")


@pytest.fixture(scope="module")
def flags_of():
    """For each program every flag: its type, its help, and whether it is another's alias."""
    program = """if True:
        import json, sys
        from absl import flags
        kept, found = set(flags.FLAGS), {}
        for script in sys.argv[1:]:
            __import__(script).define_flags()
            found[script] = {name: [flags.FLAGS[name].flag_type(), flags.FLAGS[name].help]
                             for name in set(flags.FLAGS) - kept}
            for name in found[script]:
                delattr(flags.FLAGS, name)
        print(json.dumps(found))"""
    done = call(["-c", program, *PROGRAMS], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def call(arguments, *, env=None, cwd="/"):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=env, cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("script", REFERENCE_FLAGS)
def test_flags_of_the_references(script, flags_of):
    ours = set(flags_of[script])
    assert set(REFERENCE_FLAGS[script].split()) - ours == set()
    assert set(AUTOML_FLAGS[script].split()) - ours == set()
    assert {"precision", "hparams"} <= ours
    key = "evaluate" if script == "eval" else script
    assert {*ALIASES[key], *GONE[key]} <= ours


@pytest.mark.parametrize("script", PROGRAMS)
def test_help_says_every_flag(script, data):
    done = call([ROOT / f"{script}.py", "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python {script}.py" in done.stdout.splitlines()[0]
    assert "--hparams" in done.stdout
    assert "Hyperparameters: key=value" in done.stdout


def test_removed_flags_are_in_the_full_help_only(tmp_path):
    short, full = (
        outcome["stdout"] for outcome in outcomes([["train", "--help"], ["train", "--helpfull"]], cwd=tmp_path)
    )
    assert ("Removed:" in short, full.count("Removed:")) == (False, len(GONE["train"]))
    assert short.endswith(f"{len(GONE['train'])} removed flags are not listed; --helpfull lists them.\n")
    assert "--backbone_ckpt" in short  # an alias is no removed flag


@pytest.mark.parametrize("script", ["train.py", "dataset/create_tfrecord.py"])
def test_help_ends_quietly_where_no_one_reads_it(script):
    """As `--help | head -1` does, whose reader is gone before all is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, ROOT / script, "--help"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert done.stderr == b""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Records that are never opened, class names, jsons, an image, a checkpoint that is never opened."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "val"):
        (folder / f"{split}-00000-of-00001.tfrecord").touch()
        NAMES.write(folder / f"{split}.classes.json")
    (folder / "bare-00000-of-00001.tfrecord").touch()
    for name, categories in (("same", NAMES.to_categories()), ("other", [{"id": 1, "name": "cow"}])):
        (folder / f"{name}.json").write_text(json.dumps({"categories": categories, "images": [], "annotations": []}))
    (folder / "broken.json").write_text("{")
    (folder / "a.jpg").touch()
    (folder / "ckpt.index").touch()
    (folder / "empty").mkdir()
    return folder


TRAIN = ("--training_file_pattern=train-*", "--val_file_pattern=val-*", "--model_dir=out")
EVAL = ("--val_file_pattern=val-*", "--ckpt=ckpt")
INFER = ("--image_path=a.jpg", "--model_dir=ckpt", "--output_dir=out")
EXPORT = ("--ckpt=ckpt", "--output_dir=out")
SERVE = ("--model=ckpt", "--port=0")


def arguments_of(line):
    """Return the script and its arguments; a name in capitals is replaced by the required arguments above."""
    script, *words = shlex.split(line)
    return script, tuple(word for part in words for word in REQUIRED.get(part, (part,)))


REQUIRED = {"TRAIN": TRAIN, "EVAL": EVAL, "INFER": INFER, "EXPORT": EXPORT, "SERVE": SERVE}
REQUIRED |= {"RECORDS": TRAIN[:2], "TRAIN_REST": TRAIN[1:]}
MISTAKES = [
    (*arguments_of(line), message)
    for line, message in rows("""
train TRAIN --no_such_flag=1 | no_such_flag
train TRAIN --learning_rate=1 | learning_rate
train TRAIN --batch_size=many | --batch_size=many
train TRAIN --batch_size=0 | --batch_size=0: expected at least 1
train TRAIN stray | unexpected argument 'stray'
train TRAIN --training_mode=all | --training_mode=all
train TRAIN --model_name=efficientdet-d9 | --model_name=efficientdet-d9: expected one of efficientdet-d0
train TRAIN --hparams=learning_rat=0.1 | learning_rat does not exist; the nearest is learning_rate
train TRAIN --hparams=nosuch.yaml | nosuch.yaml: cannot be read (No such file or directory)
train TRAIN --hparams=skip_mismatch=False | skip_mismatch has been removed: a mismatch is an error
train TRAIN --hparams=hue=0.1 | hue has been removed: color jitter gained nothing
train TRAIN --epochs=3 | unknown flag --epochs; use --num_epochs
train TRAIN --batch 16 | unknown flag --batch; use --batch_size
train TRAIN --imgsz=640 | unknown flag --imgsz; use --hparams=image_size=N
train TRAIN --batch-size=4 | use --batch_size
train TRAIN --device=0 | set CUDA_VISIBLE_DEVICES=0 to select a GPU
eval EVAL --batch=4 | use --batch_size
infer INFER --conf=0.3 | use --min_score_thresh
inspector --imgsz=640 | use --image_size
export --imgsz=640 | unknown flag --imgsz; use --hparams=image_size=N
quickstart --epochs=3 | use --minutes
serve SERVE --conf=0.3 | use --min_score
doctor --imgsz=640 | use --image_size
dataset.create_tfrecord --source=photos | use --images
train TRAIN --batchsize=4 | unknown flag --batchsize; the nearest is --batch_size
train TRAIN --hparams=num_classes=5 | num_classes is 5; the data has 2 classes
train TRAIN --num_epochs=0 | --num_epochs=0: expected at least 1
train TRAIN --val_json_file=nosuch.json | --val_json_file=nosuch.json: there is no such file
train TRAIN --val_json_file=broken.json | broken.json:
train TRAIN --val_json_file=other.json | other.json: its categories (1 cow) are not the classes
train --val_file_pattern=val-* --model_dir=out | --training_file_pattern is missing
train --training_file_pattern=train-* --val_file_pattern=val-* | --model_dir is missing
train --training_file_pattern=train-* --model_dir=out --target_ap=0.3 | --target_ap needs --val_file_pattern
train --training_file_pattern=nosuch-* TRAIN_REST | nosuch-*: no file matches; the folder . holds
train --training_file_pattern=bare-* TRAIN_REST | names no classes; expected bare.classes.json
train RECORDS --model_dir=a.jpg | --model_dir=a.jpg: cannot create this folder
train TRAIN --precision=float64 | float64
train TRAIN --hparams=learning_rate=0 | hparam learning_rate is 0.0; expected a finite number above 0
train TRAIN --hparams=lr_warmup_epoch=-1 | hparam lr_warmup_epoch is -1.0; expected a finite number, at least 0
train TRAIN --lr=1 --lr_per_64=1 | --lr and --lr_per_64 are both given
train TRAIN --loggers=tensorboard,paper | --loggers names 'paper'
train TRAIN --pretrained_ckpt=nosuch | --pretrained_ckpt=nosuch: there is no checkpoint of that name
train TRAIN --backbone_init=empty | --backbone_init=empty: no checkpoint in this folder
train TRAIN --backbone_init=nosuch.h5 | --backbone_init=nosuch.h5: there is no checkpoint of that name
train TRAIN --resume=nosuch | --resume=nosuch: there is no checkpoint of that name
train RECORDS --model_dir=/proc | --model_dir=/proc: cannot write into this folder
train TRAIN --testdev_dir=a.jpg | --testdev_dir=a.jpg: cannot create this folder
train TRAIN --mlperf_log=a.jpg/log | --mlperf_log=a.jpg: cannot create this folder
train TRAIN --mode=eval | --mode=eval: train.py trains; python eval.py
train TRAIN --mode=train --training_mode=train | --mode=train and --training_mode=train are both given
train TRAIN --strategy=gpus | --strategy=gpus: has been removed: a process trains on one GPU; for several:
train TRAIN --steps_per_execution=4 | --steps_per_execution=4: has been removed:
train TRAIN --profile | has been removed: the log has the seconds
train --val_file_pattern=val-* --model_dir=out --train_file_pattern=nosuch-* | nosuch-*: no file matches
eval EVAL --no_such_flag=1 | no_such_flag
eval EVAL --precision=float64 | float64
eval EVAL --only_this_epoch=3 | --only_this_epoch=3: has been removed: it had no effect; --ckpt=PREFIX
eval EVAL --output_json=empty | --output_json=empty: is a folder; expected a file name
eval EVAL --output_json=a.jpg/numbers.json | --output_json=a.jpg: cannot create this folder
eval EVAL --testdev_dir=/proc | --testdev_dir=/proc: cannot write into this folder
eval EVAL --report=a.jpg | --report=a.jpg: cannot create this folder
eval EVAL --report= | --report is missing
eval EVAL --report=/proc | --report=/proc: cannot write into this folder
eval --val_file_pattern=val-* | --ckpt_path is missing
eval --ckpt=ckpt | --val_file_pattern is missing
eval --val_file_pattern=val-* --ckpt=nosuch | --ckpt=nosuch: there is no checkpoint of that name (no nosuch.index)
eval --val_file_pattern=val-* --model_dir=empty | --model_dir=empty: no checkpoint in this folder; it holds nothing
eval --val_file_pattern=nosuch-* --ckpt=ckpt | no file matches
eval EVAL --val_json_file=nosuch.json | there is no such file
eval EVAL --val_json_file=other.json | are not the classes of the records
eval EVAL --hparams=nms_configs.methode=hard | the nearest is nms_configs.method
eval EVAL --weights=both | --weights=both
infer INFER --no_such_flag=1 | no_such_flag
infer --model_dir=ckpt --output_dir=out | --image_path is missing
infer --image_path=nosuch.jpg --model_dir=ckpt --output_dir=out | --image_path=nosuch.jpg: no such file
infer --image_path=*.png --model_dir=ckpt --output_dir=out | --image_path=*.png: no such file
infer --image_path=empty --model_dir=ckpt --output_dir=out | no image in this folder
infer --image_path=a.jpg --output_dir=out | --model_dir is missing
infer --image_path=a.jpg --model_dir=nosuch --output_dir=out | nosuch: there is no checkpoint
infer --image_path=a.jpg --ckpt_path=nosuch | --ckpt_path=nosuch: there is no checkpoint
infer --image_path=a.jpg --model_dir=ckpt --output_dir= | --output_dir is missing
infer --image_path=a.jpg --model_dir=ckpt --output_dir=a.jpg | cannot create this folder
infer --image_path=a.jpg --saved_model_dir=empty --output_dir=out | --saved_model_dir=empty: holds no saved_model.pb
infer INFER --model_name=d0 | --model_name=d0
infer INFER --tile=8 | --tile=8: expected a side such as 512
infer INFER --tile=0x0 | --tile=0x0: expected a side such as 512
infer INFER --overlap=0.1 | --overlap and --tile_whole need --tile
infer INFER --save=clips | --save=clips: value should be one of <video|events|none>
infer INFER --event_seconds=3 | --event_seconds needs --save=events
infer INFER --max_offline_seconds=60 | --max_offline_seconds needs a camera or stream
infer INFER --format=xml | --format=xml: 'xml' is unknown; expected any of coco, yolo, csv
infer INFER --track | --track needs a video, camera or stream as --image_path, not only images
infer INFER --count_line=0,0,1,1 | --count_line=0,0,1,1: has been removed: supervision's LineZone
infer INFER --format=coco,mot | --format=coco,mot: 'mot' is unknown; expected any of coco, yolo, csv, label_studio
infer INFER --image_path=7 | --image_path=7: is a camera, not a file; expected a single camera
infer INFER --saved_model_dir=/proc | --saved_model_dir=/proc: cannot write into this folder
inspector --mode=infer | --mode=infer: python infer.py
inspector --only_network | has been removed: export.py --formats=onnx-raw exports the network alone
inspector --mode=export --onnx_path=a.onnx | has been removed: export.py --output_dir=FOLDER --formats=
inspector --tflite=INT8 | --tflite=INT8: has been removed: export.py --formats=litert,litert-int8 writes
inspector --output_json=/proc/x/y | --output_json=/proc/x: cannot create this folder
inspector --trace_filename=a.jpg | --trace_filename=a.jpg: cannot create this folder
inspector --mode=dry --export_ckpt=a.jpg/ckpt | --export_ckpt=a.jpg: cannot create this folder
inspector --tensorrt=FP16 | --tensorrt=FP16: has been removed: TensorFlow no longer contains TensorRT; export.py
inspector --tflite_path=a.tflite | --tflite_path=a.tflite: has been removed: export.py --formats=litert,litert-int8
inspector --output_image_dir=out | --output_image_dir=out: has been removed: infer.py --image_path=FILE
inspector --debug | has been removed: it had no effect here; infer.py --debug
inspector --mode=serve | --mode=serve: value should be one of <dry|export|benchmark|video|infer>
inspector --nms_method=soft | --nms_method=soft
inspector --input_image=nosuch.jpg | --input_image=nosuch.jpg: there is no such file
inspector --saved_model_dir=. | --saved_model_dir=.: holds no saved_model.pb
inspector --mode=dry --export_ckpt=. | --export_ckpt=.: is a folder; expected a prefix
inspector --mode=export | --saved_model_dir is missing
inspector --mode=export --runtime=openvino | --runtime=openvino cannot be combined with --mode=export
inspector --runtime=openvino --precision=mixed_bfloat16 | --runtime=openvino computes in float32
inspector --int8_images=*.jpg | --int8_images needs --runtime=openvino; --runtime is keras
inspector --runtime=openvino --int8_images=nosuch.jpg | --int8_images=nosuch.jpg: no such file
inspector --mode=video --output_video=a.mp4 | --input_video is missing
inspector --mode=video --input_video=nosuch.mp4 --output_video=a.mp4 | --input_video=nosuch.mp4: there is no such
inspector --mode=video --input_video=a.jpg | --output_video is missing
inspector --mode=video --input_video=a.jpg --output_video=a.avi | expected a file name that ends in .mp4
quickstart | expected a folder or zip archive of labeled images: python quickstart.py photos.zip
quickstart --model_name=ssd300-resnet34 stray | unexpected argument 'stray'
quickstart --images=empty --model_name=ssd300-resnet35 | the nearest is ssd300-resnet34
quickstart --images=empty --formats=tflight | --formats=tflight: expected some of onnx
quickstart --images=empty --format=tflight | --format=tflight: expected one of auto, coco
quickstart --images=empty --minutes=0 | --minutes=0.0: expected at least 0.1
quickstart --images=empty --minutes=inf | --minutes=inf: expected at least 0.1
quickstart --images=empty --weights=/nowhere | --weights=/nowhere
doctor | --records is missing
doctor --images=photos | --images=photos: has been removed: it checks records; dataset/create_tfrecord.py
train TRAIN --eval_epochs=40,x | --eval_epochs=40,x: expected integers such as 40,50,55
train TRAIN --eval_epochs=40,-1 | --eval_epochs=40,-1: expected at least 1
train TRAIN --mlperf_submission=shut | --mlperf_submission=shut: expected KEY=VALUE, KEY one of submission_benchmark
inspector --batch_size=0 | --batch_size=0: expected at least 1
inspector --hparams=qqq=1 | hparam qqq does not exist
inspector --ckpt_path=nosuch | nosuch: there is no checkpoint
export EXPORT --formats=onnx-int8 | --int8_images is missing: int8 formats need training images
export EXPORT --formats=onnx --int8_images=a.jpg | --int8_images is for int8 formats
export EXPORT --formats=tflite | did you mean litert?
export EXPORT --formats=onnx_int8 | did you mean onnx-int8?
export EXPORT --formats=onnx-int8 --int8_images=same.json | same.json: is a COCO json; expected images
eval --val_file_pattern=val-* --ckpt=a.onnx --weights=averaged | a.onnx: is evaluated as it is, without --weights
infer --image_path=a.jpg --model=a.onnx --noamp | --model=a.onnx: an exported file runs without --amp
infer INFER --model=ckpt | --model=ckpt and --model_dir=ckpt: expected only one of them
infer --image_path=a.jpg --model=nosuch | --model=nosuch: there is no checkpoint
serve | --model is missing
serve SERVE --train_dir=runs | --train_dir is for --label_studio, whose annotations it trains on
serve SERVE --label_studio=http://localhost:8080 | --label_studio needs the environment variable LABEL_STUDIO_API_KEY
serve --model=nosuch --port=0 | nosuch: there is no checkpoint
serve --model=nosuch.onnx --port=0 | nosuch.onnx: cannot be read (No such file or directory)
serve SERVE --runtime=tensorrt | --runtime=tensorrt
serve SERVE --hparams=image_siz=64 | image_siz does not exist; the nearest is image_size
serve SERVE --host=203.0.113.7 | --host=203.0.113.7 --port=0: cannot listen on this address (Cannot assign requested
serve SERVE --host=a..b | --host=a..b --port=0: cannot listen on this address (
""")
]
# Each flag of a number, with what it must refuse; what it takes at its ends follows.
WRONG_NUMBERS = rows("""
train TRAIN --accumulate_steps | 0
train TRAIN --batch_size | -1
train TRAIN --bn_group | 0
train TRAIN --benchmark_steps | 0
train TRAIN --calibration_images | -1
train TRAIN --checkpoint_period | 0
train TRAIN --num_devices | 0
train TRAIN --checkpoint_steps | -1
train TRAIN --eval_batch_size | 0
train TRAIN --eval_from | -1
train TRAIN --eval_period | 0
train TRAIN --eval_samples | -1
train TRAIN --log_steps | 0
train TRAIN --max_minutes | 0 -1 nan inf
train TRAIN --lr | 0 -1 nan inf -inf
train TRAIN --lr_per_64 | 0 nan inf
train TRAIN --num_epochs | -1
train TRAIN --max_bad_fraction | -1 1.5 nan
train TRAIN --num_examples_per_epoch | 0 -5
train TRAIN --patience | -1
train TRAIN --seed | -1 4294967296
train TRAIN --stop_epoch | -3
train TRAIN --target_ap | 2 -0.1 nan
train TRAIN --warmup_epochs | nan -1 inf
train TRAIN --warmup_value | nan -1 inf
eval EVAL --batch_size | 0 99999999999999999999
eval EVAL --eval_samples | -1
eval EVAL --bootstrap | -1
infer INFER --batch_size | 0
infer INFER --min_score_thresh | nan -1 2
infer INFER --max_boxes_to_draw | -1 0
infer INFER --overlap | -0.1 1.0 nan
infer INFER --event_seconds | -1 nan
infer INFER --max_offline_seconds | -1 nan
inspector --batch_size | 0
inspector --bm_runs | 0 -1
inspector --bm_warm_up_runs | 0
inspector --min_score_thresh | nan
inspector --max_boxes_to_draw | 0
inspector --image_size | 0
serve SERVE --max_batch | 0
serve SERVE --max_pixels | 0 178956971
serve SERVE --max_queue | 0
serve SERVE --max_request_bytes | 0
serve SERVE --min_score | nan -1 2
serve SERVE --port | -1 65536
serve SERVE --request_timeout_s | nan 0 inf
serve SERVE --train_after | 0
serve SERVE --train_minutes | 0 nan
""")
MISTAKES += [
    (*arguments_of(f"{flag}={value}"), f"{flag.split()[-1]}=")
    for flag, values in WRONG_NUMBERS
    for value in str(values).split()
]


@pytest.mark.parametrize("script", ["train", "eval", "infer", "inspector", "serve"])
def test_every_flag_of_a_number_refuses_some(script, flags_of):
    numbers = {
        name
        for name, (kind, help_text) in flags_of[script].items()
        if kind in ("int", "float") and not help_text.startswith("Alias for")
    }
    tested = [line.split() for line, _ in WRONG_NUMBERS]
    assert numbers == {words[-1].removeprefix("--") for words in tested if words[0] == script}


RIGHT = [
    arguments_of(line)
    for line in r"""
train TRAIN
eval EVAL
infer INFER
inspector
serve SERVE
train TRAIN --eval_samples=0 --target_ap=1 --max_bad_fraction=0 --warmup_epochs=0 --warmup_value=0\
    --stop_epoch=0 --patience=0 --checkpoint_steps=0 --eval_from=0 --seed=0 --batch_size=1 --calibration_images=0\
    --lr=1e-9
train --train_file_pattern=train-* --validation_file_pattern=val-* --model_dir=out --mode=train_and_eval\
    --train_batch_size=2 --save_checkpoints_steps=5 --tf_random_seed=1 --strategy= --noprofile\
    --steps_per_execution=1 --run_epoch_in_child_process --ckpt=ckpt --backbone_ckpt=ckpt
train TRAIN --mode=train --resume=ckpt --mlperf_log=out/new/log --testdev_dir=out/new/testdev\
    --eval_epochs=40,50,55 --mlperf_submission=submission_division=closed,submission_org=we,cache_clear=True
eval --val_file_pattern=val-* --model_dir=ckpt --output_json=out/new/numbers.json
infer --image_path=a.jpg --ckpt_path=ckpt --output_dir=out --min_score_thresh=1 --tile=64x32 --overlap=0.9\
    --notile_whole --format=coco,csv --nosave_crops
inspector --model_dir=ckpt --image_size=64 --tensorrt= --nodebug
""".replace("\\\n", "")
    .strip()
    .splitlines()
]


@pytest.fixture(scope="module")
def outcome(data):
    """Of every case, by script and arguments."""
    cases = [(script, *arguments) for script, arguments, *_ in MISTAKES + RIGHT]
    return dict(zip(cases, outcomes(cases, cwd=data), strict=True))


@pytest.mark.parametrize(("script", "arguments", "message"), MISTAKES)
def test_mistake_is_one_line_before_tensorflow(outcome, script, arguments, message):
    found = outcome[(script, *arguments)]
    assert found["wanted"] is None
    assert found["code"] == 2
    assert found["stdout"] == ""
    assert found["stderr"].startswith(f"{script}.py: error: ")
    assert found["stderr"].count("\n") == 1, found["stderr"]
    assert message in found["stderr"]


@pytest.mark.parametrize(("script", "arguments"), RIGHT)
def test_without_a_mistake_tensorflow_is_wanted(outcome, script, arguments):
    # So that the tests above cannot pass by a tensorflow that is never imported.
    assert outcome[(script, *arguments)] == {"code": 0, "stdout": "", "stderr": "", "wanted": "tensorflow"}


def test_ranges_of_8_bits_come_from_training_images(data):
    """From the records beside those that AP is measured on; these only by the user's wish, and with a warning."""
    measured = (*EXPORT, "--formats=onnx-int8", "--val_file_pattern=val-*")
    found = outcomes(
        [
            ("export", *measured),
            ("export", *measured, "--int8_images=val-*.tfrecord"),
            ("export", *measured, "--int8_images=train-*.tfrecord"),
            ("export", *measured, "--int8_images=train-*"),
        ],
        cwd=data,
    )
    assert [outcome["wanted"] for outcome in found] == ["tensorflow"] * 4
    assert [outcome["stdout"].split(":")[0] for outcome in found] == ["int8 calibration", "warning", "", ""]
    assert found[0]["stdout"] == "int8 calibration: train-00000-of-00001.tfrecord\n"


def test_mistake_in_a_process_of_its_own(data):
    done = call([ROOT / "eval.py", *EVAL, "--batch_size=0"], cwd=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "eval.py: error: flag --batch_size=0: expected at least 1\n"


def test_what_the_modes_of_automl_mean():
    assert [training_mode(None, mode) for mode in ("train", "traineval")] == ["train300", "traineval"]


def test_error_of_ours_keeps_its_traceback_and_code(data):
    """The process ends although a pipeline that runs Python is in the middle of its work: seen to wait forever."""
    program = (
        "import time, tensorflow as tf; from program_support.command_line import run\n"
        "def slow(number): time.sleep(0.01); return number\n"
        "def numbers():\n"
        "    yield from tf.data.Dataset.range(999).map(lambda n: tf.numpy_function(slow, [n], tf.int64)).prefetch(9)\n"
        "def main():\n"
        "    source = numbers()\n"
        "    for _ in source: raise KeyError('ours')\n"
        "run(main, ['x.py'])"
    )
    done = call(["-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=data)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_names_of_files_that_utf8_cannot_hold_are_printed():
    program = (
        "from program_support.command_line import run\n"
        "run(lambda: print('left out:', b'\\xff.jpg'.decode(errors='surrogateescape')), ['x.py'])"
    )
    done = call(["-c", program], env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8:strict"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "left out: \\udcff.jpg\n", "")


def test_each_line_is_printed_at_once():
    """The end of the process without cleanup loses what Python still keeps."""
    program = (
        "import os; from program_support.command_line import run\n"
        "def main(): print('event'); os._exit(0)\n"
        "run(main, ['x.py'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    assert call(["-c", program], env={**environment, "PYTHONPATH": str(ROOT)}).stdout == "event\n"


def test_a_training_continues_without_a_reader_of_its_output(tmp_path):
    """With `tee` or the launcher killed, all steps since the last checkpoint were lost, also at a stop request."""
    program = (
        "import pathlib, sys; from program_support.command_line import run\n"
        "def main():\n"
        "    print('begins'); sys.stdin.read()\n"
        "    print('step'); print('step', file=sys.stderr, end='', flush=True); pathlib.Path('saved').touch()\n"
        "run(main, ['x.py'], ends_at_once=True, needs_reader=False)"
    )
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, **streams) as process:
        process.stdout.readline()
        process.stdout.close()
        process.stderr.close()
        process.stdin.close()
        assert process.wait(60) == 0
    assert (tmp_path / "saved").exists()
    assert "needs_reader=False" in (ROOT / "train.py").read_text()
