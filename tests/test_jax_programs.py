"""train.py, eval.py and infer.py under JAX: the losses, numbers and detections that they have under TensorFlow."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from drawn_records import draw_records
from jax_process import TESTS, compiled_quickly, run_script
from miniature import miniature_detector

from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.families.registry import hyperparameters_of
from model.detection_model import named_variables

pytestmark = pytest.mark.slow

STEPS, BATCH = 10, 4


def call(backend, *programs, cache):
    environment = {**compiled_quickly(1, cache), "KERAS_BACKEND": backend}
    run_script(TESTS / "miniature_programs.py", json.dumps(programs), **environment)


def start(folder, drawn):
    """A checkpoint from which both begin: the backends draw other random weights from the same seed."""
    arrays = {
        name: np.asarray(variable)
        for name, variable in named_variables(miniature_detector(len(drawn.class_names)).network).items()
    }
    hparams = hyperparameters_of("efficientdet-d0", {"image_size": 64})
    write_arrays(
        str(folder / "start"),
        arrays,
        Description(
            model_name="efficientdet-d0",
            hparams=hparams.to_dict(),
            categories=drawn.class_names.to_categories(),
            weights="raw",
        ),
    )
    return f"{folder}/start"


@pytest.fixture(scope="module")
def both(tmp_path_factory, with_jax):
    """Folder of a training under each backend, with numbers.json and detections of JAX's checkpoint beside."""
    folder = tmp_path_factory.mktemp("both")
    drawn = draw_records(folder / "drawn", images={"train": STEPS * BATCH, "val": 6})
    checkpoint = start(folder, drawn)
    validation, common = f"--val_file_pattern={folder}/drawn/val-*.tfrecord", ("--precision=float32", "--use_xla=false")
    for backend in ("jax", "tensorflow"):
        model_dir = folder / backend
        call(
            backend,
            [
                "train",
                f"--training_file_pattern={folder}/drawn/train-*.tfrecord",
                validation,
                f"--model_dir={model_dir}",
                f"--pretrained_ckpt={checkpoint}",
                f"--batch_size={BATCH}",
                f"--eval_batch_size={BATCH}",
                f"--num_examples_per_epoch={BATCH}",  # an epoch is a step, as curves have a point for each epoch
                f"--num_epochs={STEPS}",
                f"--checkpoint_period={STEPS}",
                "--lr=0.01",
                "--loggers=json",
                "--hparams=image_size=64",
                "--calibration_images=0",
                *common,
            ],
            [
                "eval",
                f"--ckpt={folder}/jax/ckpt-final",
                validation,
                f"--batch_size={BATCH}",
                f"--output_json={model_dir}/numbers.json",
                *common,
            ],
            [
                "infer",
                f"--model_dir={folder}/jax/ckpt-final",
                f"--image_path={folder}/drawn/val",
                "--batch_size=2",
                f"--output_dir={model_dir}/out",
                "--min_score_thresh=0.01",
                *common,
            ],
            cache=folder / "cache",
        )
    return folder / "jax", folder / "tensorflow"


def losses(folder):
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {point["step"]: point["train/loss"] for point in points if "train/loss" in point}


def facts(folder):
    lines = [json.loads(line.removeprefix("DLLL ")) for line in (folder / "time_log.txt").read_text().splitlines()]
    return next(line["data"] for line in lines if "backend" in line.get("data", {}))


def test_each_ran_on_its_backend(both):
    assert [facts(folder)["backend"] for folder in both] == ["jax", "tensorflow"]


def test_the_first_ten_losses_are_the_same(both):
    jax, tensorflow = map(losses, both)
    assert list(jax) == list(range(1, STEPS + 1)) == list(tensorflow)
    print("step  JAX  TensorFlow\n" + "\n".join(f"{step}  {jax[step]:.6f}  {tensorflow[step]:.6f}" for step in jax))
    np.testing.assert_allclose(list(jax.values()), list(tensorflow.values()), rtol=1e-4)
    assert len({round(loss, 3) for loss in jax.values()}) == STEPS  # none of them stands still


def test_eval_finds_the_same_in_the_same_checkpoint(both):
    jax, tensorflow = (json.loads((folder / "numbers.json").read_text()) for folder in both)
    trained = json.loads((both[0] / "metrics-final.json").read_text())
    assert jax["images"] == 6
    assert jax["detections"] == tensorflow["detections"] == trained["detections"] > 0
    for name in ("AP", "AP50", "ARmax100"):
        assert jax[name] == pytest.approx(tensorflow[name], abs=1e-3)
        assert jax[name] == pytest.approx(trained[name], abs=1e-3)


def test_infer_finds_the_same_in_the_same_checkpoint(both):
    jax, tensorflow = (json.loads((folder / "out" / "detections.json").read_text()) for folder in both)
    assert len(jax) == len(tensorflow) > 0
    for file in {found["file_name"] for found in jax}:
        ours, others = (
            np.array([[*found["bbox"], found["score"]] for found in detections if found["file_name"] == file])
            for detections in (jax, tensorflow)
        )
        np.testing.assert_allclose(ours[0], others[0], rtol=1e-3, atol=0.02)  # the best; bbox to 0.01 pixels
        np.testing.assert_allclose(ours[:, 4], others[:, 4], atol=2e-3)
        assert (both[0] / "out" / file).is_file()


def test_a_training_compiles_each_program_once_and_its_step_has_few_kernels(tmp_path, with_jax):
    environment = compiled_quickly(1)
    environment["XLA_FLAGS"] += f" --xla_dump_to={tmp_path}/hlo --xla_dump_hlo_module_re=jit__step"
    run_script(TESTS / "compilations.py", tmp_path, **environment)
    [program] = tmp_path.glob("hlo/*step.cpu_after_optimizations.txt")
    entry = program.read_text().split("\nENTRY")[1]
    operations = Counter(re.findall(r"^  .*? = .*? ([a-z-]+)\(", entry, re.MULTILINE))
    for name in ("parameter", "constant", "bitcast", "tuple", "get-tuple-element"):  # they take no time
        operations.pop(name, None)
    assert 400 < operations.total() < 530, operations  # 506 when this was written
