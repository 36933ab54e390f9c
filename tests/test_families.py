"""Families of other packages go through the real programs: trained, killed, resumed, evaluated, exported."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from drawn_records import draw_records
from standins import STANDINS, environment
from test_distributed import launched, needs_horovod

from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from object_detection.coco.results import TESTDEV_FILE_NAME

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
FEWER_CLASSES = 4
EPOCHS, STEPS_AN_EPOCH = 25, 4
EXACT = "is_training_bn=False"  # statistics of a batch differ with its size


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(
        tmp_path_factory.mktemp("drawn"), images={"train": 4 * STEPS_AN_EPOCH, "val": 4}, with_masks=True
    )


@pytest.fixture(scope="module", params=STANDINS)
def model_name(request):
    return request.param


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return {**environment(tmp_path_factory.mktemp("site")), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def command(script, **flags):
    return [sys.executable, str(ROOT / script), *(f"--{name}={value}" for name, value in flags.items())]


def call(env, script, *, ranks=1, **flags):
    """What a program says on stdout."""
    program = command(script, **flags)
    if ranks > 1:
        done = subprocess.run(launched(ranks, program), env=env, cwd="/", capture_output=True, text=True, timeout=240)
    else:
        done = forked_programs.run(program, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def training(drawn, model_name, model_dir, **changes):
    """Flags of a training of so many short epochs, the same bits each time."""
    return {
        "model_name": model_name,
        "training_file_pattern": f"{drawn.folder}/train-*.tfrecord",
        "model_dir": model_dir,
        "training_mode": "train300",
        "batch_size": 4,
        "num_epochs": EPOCHS,
        "lr": 0.02,
        "checkpoint_period": EPOCHS,
        "checkpoint_steps": 10,
        "precision": "float32",
        "use_xla": False,
        "deterministic": True,
        "loggers": "json",
        **changes,
    }


@pytest.fixture(scope="module")
def trained(drawn, model_name, env, tmp_path_factory):
    """Folder of a training without accidents, evaluated at its end."""
    folder = tmp_path_factory.mktemp(model_name) / "model"
    call(env, "train.py", **training(drawn, model_name, folder))
    return folder


def losses_in(model_dir):
    """The loss of each epoch, regularization included."""
    lines = [json.loads(line.removeprefix("DLLL ")) for line in (model_dir / "time_log.txt").read_text().splitlines()]
    return [line["data"]["train/loss"] for line in lines if "train/loss" in line.get("data", {})]


def test_it_learns(trained, model_name):
    losses = losses_in(trained)
    assert len(losses) == EPOCHS
    print(f"{model_name}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert read_arrays(str(trained / "ckpt-final"))["global_step"] == EPOCHS * STEPS_AN_EPOCH
    assert read_description(str(trained / "ckpt-final")).model_name == model_name


@pytest.mark.parametrize(
    "model_name", ["standin-two-stage"], indirect=True, scope="module"
)  # its steps draw regions at random
def test_killed_and_resumed_it_ends_at_the_same_bits(drawn, model_name, env, trained, tmp_path):
    flags, log = training(drawn, model_name, tmp_path / "model"), tmp_path / "log"
    process = forked_programs.start(command("train.py", **flags), env=env, output=log)
    deadline = time.monotonic() + 120
    while (
        not (tmp_path / "model" / "ckpt-10.index").exists() and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, log.read_text()[-3000:]
    assert not (tmp_path / "model" / "ckpt-final.index").exists()
    assert "resumes from" in call(env, "train.py", **flags)
    once, twice = (read_arrays(str(folder / "ckpt-final")) for folder in (trained, tmp_path / "model"))
    assert once.keys() == twice.keys()
    different = [name for name in once if not np.array_equal(once[name], twice[name]) and not name.startswith("run/")]
    assert not different


def test_it_is_evaluated_drawn_and_exported(drawn, env, trained, tmp_path):
    records, weights = f"{drawn.folder}/val-*.tfrecord", {"ckpt_path": trained}
    found = {}
    for runtime in ("keras", "onnxruntime"):
        call(
            env,
            "eval.py",
            **weights,
            val_file_pattern=records,
            batch_size=4,
            runtime=runtime,
            use_xla=False,
            precision="float32",
            output_json=tmp_path / f"{runtime}.json",
            testdev_dir=tmp_path / runtime,
        )
        entries = json.loads((tmp_path / runtime / TESTDEV_FILE_NAME).read_text())
        found[runtime] = np.array(
            [[entry["image_id"], entry["category_id"], entry["score"], *entry["bbox"]] for entry in entries]
        )
    ours, theirs = (json.loads((tmp_path / f"{runtime}.json").read_text()) for runtime in found)
    for by_class in ("class_ap", "class_objects", *({"mask_numbers", "mask_class_ap"} & {*ours})):
        assert ours.pop(by_class) == pytest.approx(theirs.pop(by_class), abs=1e-6)
    of_theirs = theirs.pop("intervals")
    for values, ends in ours.pop("intervals").items():
        assert ends.keys() == of_theirs[values].keys()
        np.testing.assert_allclose([*ends.values()], [*of_theirs[values].values()], atol=1e-6)
    thresholds = [numbers.pop("score_thresholds") for numbers in (ours, theirs)]
    assert thresholds[0].get("overall") == pytest.approx(
        thresholds[1].get("overall"), abs=2e-4
    )  # stored with 4 decimals
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert ours["images"] == 4
    assert len(found["keras"]) == ours["detections"] > 4
    np.testing.assert_array_equal(found["keras"][:, :2], found["onnxruntime"][:, :2])
    np.testing.assert_allclose(found["keras"][:, 2:], found["onnxruntime"][:, 2:], rtol=1e-3, atol=0.02)
    told = call(
        env,
        "inspector.py",
        mode="export",
        **weights,
        saved_model_dir=tmp_path / "saved",
        precision="float32",
        use_xla=False,
    )
    assert told.count("detections agree") == 1
    call(
        env,
        "infer.py",
        model_dir=trained,
        image_path=drawn.folder / "val",
        output_dir=tmp_path / "drawn",
        min_score_thresh=0.01,
    )
    assert len(json.loads((tmp_path / "drawn" / "detections.json").read_text())) > 0
    assert len(list((tmp_path / "drawn").glob("*.jpg"))) == 4


@pytest.mark.parametrize("model_name", ["standin-two-stage"], indirect=True, scope="module")
def test_other_classes_start_from_its_weights(drawn, model_name, env, trained, tmp_path):
    """All but the predictor of classes, which has another number of them."""
    coco = json.loads(Path(drawn.annotations("train")).read_text())
    coco["categories"] = coco["categories"][:FEWER_CLASSES]
    kept = {category["id"] for category in coco["categories"]}
    coco["annotations"] = [entry for entry in coco["annotations"] if entry["category_id"] in kept]
    (tmp_path / "fewer.json").write_text(json.dumps(coco))
    call(
        env,
        "dataset/create_coco_tfrecord.py",
        image_dir=drawn.folder / "train",
        num_shards=1,
        object_annotations_file=tmp_path / "fewer.json",
        output_file_prefix=tmp_path / "fewer",
        include_masks=True,
    )
    told = call(
        env,
        "train.py",
        **training(
            drawn,
            model_name,
            tmp_path / "model",
            num_epochs=1,
            training_file_pattern=f"{tmp_path}/fewer-*.tfrecord",
            pretrained_ckpt=trained,
        ),
    )
    assert "starts from scratch" in told  # a family without a class layout, as of an older package
    assert len(read_description(str(tmp_path / "model" / "ckpt-final")).categories) == FEWER_CLASSES
    source, fine = (read_arrays(str(folder / "ckpt-final")) for folder in (trained, tmp_path / "model"))
    assert any(source[name].shape != fine[name].shape for name in source if name in fine)


@needs_horovod
@pytest.mark.parametrize("model_name", ["standin-two-stage"], indirect=True, scope="module")
def test_two_ranks_equal_one_with_twice_the_batch(drawn, model_name, env, tmp_path):
    losses = {}
    for ranks in (1, 2):
        flags = training(
            drawn, model_name, tmp_path / str(ranks), batch_size=4 // ranks, num_epochs=3, hparams=EXACT, log_steps=1
        )
        call(env, "train.py", ranks=ranks, **flags)
        losses[ranks] = losses_in(tmp_path / str(ranks))
    assert len(losses[1]) == len(losses[2]) >= 3
    np.testing.assert_allclose(losses[2], losses[1], rtol=1e-5)
    one, two = (read_arrays(str(tmp_path / name / "ckpt-final")) for name in ("1", "2"))
    learnt = [name for name in one if not name.startswith(("run/", "global_step"))]
    assert max(np.abs(one[name] - two[name]).max() for name in learnt) < 1e-4
