"""The entry points as a user calls them: every flag of the reference, and mistakes told before any slow import.

tensorflow, keras and jax are replaced by modules that fail, so a test that passes has imported none of them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataset.class_names import ClassNames

ROOT = Path(__file__).resolve().parent.parent
NAMES = ClassNames((1, 7), ("cat", "dog"))

# reference/efficientdet.md 1.1 to 1.4
REFERENCE_FLAGS = {
    "train": """training_mode training_file_pattern val_file_pattern val_json_file model_name model_dir batch_size
        eval_batch_size num_examples_per_epoch num_epochs benchmark benchmark_steps use_fake_data use_xla amp set_num_threads
        log_filename log_steps lr_tb enable_map_parallelization checkpoint_period pretrained_ckpt backbone_init hparams lr
        warmup_value warmup_epochs seed debug time_history validate testdev_dir eval_samples""",
    "eval": """eval_samples val_file_pattern val_json_file model_name ckpt_path batch_size only_this_epoch
        enable_map_parallelization amp hparams""",
    "infer": "image_path output_dir model_dir model_name hparams debug saved_model_dir",
    "inspector": """model_name mode trace_filename bm_runs tensorrt batch_size ckpt_path export_ckpt hparams amp use_xla
        input_image output_image_dir dllogger_path input_video output_video max_boxes_to_draw min_score_thresh nms_method
        saved_model_dir tflite_path debug""",
}
GONE = {"eval": {"only_this_epoch"}}  # never did anything there; README says so


@pytest.fixture(scope="module")
def poison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poison")
    for name in ("tensorflow", "keras", "jax"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def call(arguments, *, env, cwd="/"):
    return subprocess.run([sys.executable, *map(str, arguments)], env=env, cwd=cwd, capture_output=True, text=True, timeout=60)


def mistake(script, *arguments, env, cwd="/"):
    """The one line on stderr after `script.py: error: `."""
    done = call([ROOT / f"{script}.py", *arguments], env=env, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"{script}.py: error: ")
    return done.stderr.removeprefix(f"{script}.py: error: ").rstrip("\n")


@pytest.mark.parametrize("script", REFERENCE_FLAGS)
def test_flags_of_the_reference(script, poison):
    program = f"import json, {script} as s; s.define_flags(); print(json.dumps(list(s.flags.FLAGS)))"
    done = call(["-c", program], env=poison)
    assert done.returncode == 0, done.stderr
    ours = set(json.loads(done.stdout))
    wanted = set(REFERENCE_FLAGS[script].split())
    assert wanted - ours - GONE.get(script, set()) == set()
    assert not ours & GONE.get(script, set())
    assert {"precision", "hparams"} <= ours


def test_eval_answers_to_ckpt(poison):
    program = "import eval as s; s.define_flags(); s.flags.FLAGS(['x', '--ckpt=a']); print(s.flags.FLAGS.ckpt_path)"
    assert call(["-c", program], env=poison).stdout == "a\n"


@pytest.mark.parametrize("script", REFERENCE_FLAGS)
def test_help_says_every_flag(script, poison):
    done = call([ROOT / f"{script}.py", "--help"], env=poison)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"python {script}.py" in done.stdout.splitlines()[0]
    assert "--hparams" in done.stdout
    assert "Hyperparameters: key=value" in done.stdout


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
MISTAKES = [
    ("train", (*TRAIN, "--no_such_flag=1"), "no_such_flag"),
    ("train", (*TRAIN, "--learning_rate=1"), "learning_rate"),
    ("train", (*TRAIN, "--batch_size=many"), "--batch_size=many"),
    ("train", (*TRAIN, "--batch_size=0"), "--batch_size=0: wanted at least 1"),
    ("train", (*TRAIN, "stray"), "unexpected argument 'stray'"),
    ("train", (*TRAIN, "--training_mode=all"), "--training_mode=all"),
    ("train", (*TRAIN, "--model_name=efficientdet-d9"), "--model_name=efficientdet-d9: wanted one of efficientdet-d0"),
    ("train", (*TRAIN, "--hparams=learning_rat=0.1"), "learning_rat does not exist; the nearest is learning_rate"),
    ("train", (*TRAIN, "--hparams=nosuch.yaml"), "nosuch.yaml: cannot be read (No such file or directory)"),
    ("train", (*TRAIN, "--hparams=skip_mismatch=False"), "skip_mismatch is gone: a mismatch is an error"),
    ("train", (*TRAIN, "--batchsize=4"), "there is no flag --batchsize; the nearest is --batch_size"),
    ("train", (*TRAIN, "--hparams=num_classes=7"), "num_classes is 7; the data names 2 classes"),
    ("train", (*TRAIN, "--num_epochs=0"), "num_epochs is 0"),
    ("train", (*TRAIN, "--val_json_file=nosuch.json"), "--val_json_file=nosuch.json: there is no such file"),
    ("train", (*TRAIN, "--val_json_file=broken.json"), "broken.json: "),
    ("train", (*TRAIN, "--val_json_file=other.json"), "other.json: its categories (1 cow) are not the classes"),
    ("train", ("--val_file_pattern=val-*", "--model_dir=out"), "--training_file_pattern is missing"),
    ("train", TRAIN[:2], "--model_dir is missing"),
    ("train", (TRAIN[0], TRAIN[2]), "--val_file_pattern is missing"),
    ("train", ("--training_file_pattern=nosuch-*", *TRAIN[1:]), "nosuch-*: no file matches; the folder . holds"),
    ("train", ("--training_file_pattern=bare-*", *TRAIN[1:]), "no .classes.json beside the records"),
    ("train", (*TRAIN[:2], "--model_dir=a.jpg"), "--model_dir=a.jpg: cannot be made a folder"),
    ("train", (*TRAIN, "--precision=float64"), "float64"),
    ("eval", (*EVAL, "--no_such_flag=1"), "no_such_flag"),
    ("eval", (*EVAL, "--precision=float64"), "float64"),
    ("eval", (*EVAL, "--only_this_epoch=3"), "only_this_epoch"),
    ("eval", EVAL[:1], "--ckpt_path is missing"),
    ("eval", EVAL[1:], "--val_file_pattern is missing"),
    ("eval", (EVAL[0], "--ckpt=nosuch"), "nosuch: there is no checkpoint of that name (no nosuch.index) and no folder"),
    ("eval", (EVAL[0], "--ckpt=empty"), "empty: no checkpoint in this folder; it holds nothing"),
    ("eval", ("--val_file_pattern=nosuch-*", EVAL[1]), "no file matches"),
    ("eval", (*EVAL, "--val_json_file=nosuch.json"), "there is no such file"),
    ("eval", (*EVAL, "--val_json_file=other.json"), "are not the classes of the records"),
    ("eval", (*EVAL, "--hparams=nms_configs.methode=hard"), "the nearest is nms_configs.method"),
    ("eval", (*EVAL, "--weights=both"), "--weights=both"),
    ("infer", (*INFER, "--no_such_flag=1"), "no_such_flag"),
    ("infer", INFER[1:], "--image_path is missing"),
    ("infer", ("--image_path=nosuch.jpg", *INFER[1:]), "--image_path=nosuch.jpg: no such file"),
    ("infer", ("--image_path=*.png", *INFER[1:]), "--image_path=*.png: no such file"),
    ("infer", ("--image_path=empty", *INFER[1:]), "no image in this folder"),
    ("infer", (INFER[0], INFER[2]), "--model_dir is missing"),
    ("infer", (INFER[0], "--model_dir=nosuch", INFER[2]), "nosuch: there is no checkpoint"),
    ("infer", INFER[:2], "--output_dir is missing"),
    ("infer", (*INFER[:2], "--output_dir=a.jpg"), "cannot be made a folder"),
    ("infer", (INFER[0], "--saved_model_dir=empty", INFER[2]), "--saved_model_dir=empty: holds no saved_model.pb"),
    ("infer", (*INFER, "--model_name=d0"), "--model_name=d0"),
    ("inspector", ("--mode=infer",), "--mode=infer"),
    ("inspector", ("--tensorrt=FP16",), "ONNX"),
    ("inspector", ("--batch_size=0",), "--batch_size=0: wanted at least 1"),
    ("inspector", ("--hparams=qqq=1",), "hparam qqq does not exist"),
    ("inspector", ("--ckpt_path=nosuch",), "nosuch: there is no checkpoint"),
]


@pytest.mark.parametrize(("script", "arguments", "message"), MISTAKES)
def test_mistake_is_one_line_before_tensorflow(data, poison, script, arguments, message):
    assert message in mistake(script, *arguments, env=poison, cwd=data)


@pytest.mark.parametrize(("script", "arguments"), [("train", TRAIN), ("eval", EVAL), ("infer", INFER)])
def test_without_a_mistake_tensorflow_is_wanted(data, poison, script, arguments):
    # So that the tests above cannot pass by a tensorflow that is never imported.
    done = call([ROOT / f"{script}.py", *arguments], env=poison, cwd=data)
    assert done.returncode == 1
    assert "tensorflow was imported" in done.stderr


def test_error_of_ours_keeps_its_traceback_and_code(data, poison):
    program = ("import sys; from dataset.command_line import run\n"
               "def main(): raise KeyError('ours')\n"
               "run(main, ['x.py'])")
    done = call(["-c", program], env=poison)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
