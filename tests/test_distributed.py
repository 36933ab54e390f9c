"""Horovod for real: two processes over Gloo on this machine."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import numpy as np
import pytest
import tensorflow as tf
from drawn_records import draw_records
from jax_process import environment_of_processes
from tiny_records import example

from dataset.class_names import ClassNames
from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from efficientdet.devices.distributed import World, average_over_ranks, is_batch_statistic, join_world, launched_by
from program_support.errors import InputError

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("miniature_training.py")
REPOSITORY = PROGRAM.parents[1]
LAUNCHER = [sys.executable, str(REPOSITORY / "scripts" / "horovodrun.py"), "--gloo"]
HAS_HOROVOD = importlib.util.find_spec("horovod") is not None
needs_horovod = pytest.mark.skipif(
    not HAS_HOROVOD and not os.environ.get("CI"), reason="Horovod is not installed: bash scripts/install_horovod.sh"
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 16, "val": 1})


def arguments_of(drawn, model_dir, **settings):
    """Settings of miniature_training.py."""
    categories = list(zip(drawn.class_names.category_ids, drawn.class_names.names, strict=True))
    return {
        "model_dir": str(model_dir),
        "records": list(drawn.records("train")),
        "categories": categories,
        **settings,
    }


def command(drawn, model_dir, **settings):
    return [sys.executable, str(PROGRAM), json.dumps(arguments_of(drawn, model_dir, **settings))]


def environment(**more):
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }


def launched(count, program):
    """The command line of so many ranks of a program, [sys.executable, script, argument, ...], each in a fork."""
    return [*LAUNCHER, "-np", str(count), forked_programs.python(), *map(str, program[1:])]


def run_ranks(count, drawn, model_dir, *, timeout=240, env=(), **settings):
    """(completed process, seconds) of a training by so many ranks; 1 without any launcher."""
    Path(model_dir).mkdir(exist_ok=True)
    program, start = command(drawn, model_dir, **settings), time.monotonic()
    if count == 1:
        done = forked_programs.run(program, env=environment(**dict(env)), timeout=timeout)
    else:
        done = subprocess.run(
            launched(count, program), capture_output=True, text=True, timeout=timeout, env=environment(**dict(env))
        )
    return done, time.monotonic() - start


def succeeded(done):
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


# --- who started this process


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, ("", 1)),
        ({"HOROVOD_SIZE": "1"}, ("", 1)),
        ({"HOROVOD_SIZE": "8", "HOROVOD_RANK": "3"}, ("horovodrun", 8)),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ("mpirun", 4)),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, ("", 1)),  # inside an sbatch file
        ({"SLURM_NTASKS": "16", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16"}, ("srun", 16)),
    ],
)
def test_launchers(variables, wanted):
    assert launched_by(variables) == wanted


def test_alone_nothing_is_imported():
    code = (
        "import sys; from efficientdet.devices.distributed import join_world; world = join_world(); "
        "assert world.size == 1 and world.is_first; assert not any('horovod' in name for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, env=environment())


def test_several_without_horovod_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(
        InputError, match=r"srun started 2 processes, but Horovod cannot be imported.*install_horovod.sh"
    ):
        join_world({"SLURM_STEP_NUM_TASKS": "2"})


def test_alone_sums_are_the_values_themselves():
    array = np.float32([1, 2])
    assert World().sum([array])[0] is array
    assert World().gather(7) == [7]
    np.testing.assert_array_equal(average_over_ranks(World(), [array])[0], array)


def test_batch_statistics_by_name():
    assert is_batch_statistic("class_net/class-0-bn-3/moving_variance")
    assert not is_batch_statistic("class_net/class-0-bn-3/gamma")


# --- two ranks


@needs_horovod
def test_two_ranks_equal_one_with_twice_the_batch(drawn, tmp_path):
    """With targets from outputs, whose counts are sums over the ranks, and joined statistics, running ones included."""
    hparams = {"label_assignment": "task_aligned", "class_loss_type": "quality_focal", "box_loss_type": "giou"}
    steps = {"num_examples_per_epoch": 48, "stop_epoch": 1, "hparams": {**hparams, "num_epochs": 2}}
    succeeded(run_ranks(1, drawn, tmp_path / "one", batch_size=8, **steps)[0])
    succeeded(run_ranks(2, drawn, tmp_path / "two", batch_size=4, bn_group=2, **steps)[0])
    one, two = (read_arrays(str(tmp_path / name / "ckpt-final")) for name in ("one", "two"))
    assert one["global_step"] == two["global_step"] == 6
    names = [name for name in one if not name.startswith(("run/", "global_step"))]
    assert any(map(is_batch_statistic, names))
    difference = max(np.abs(one[name] - two[name]).max() for name in names)
    print(f"two ranks against one after 6 steps: largest difference {difference:.1e}")
    assert difference < 1e-4  # 4e-3 where each looks at its own images
    assert max(np.abs(one[name]).max() for name in names) > 0.1


@needs_horovod
def test_groups_of_ranks(tmp_path):
    """Of four processes, the neighbors' means and their slopes."""
    (tmp_path / "groups.py").write_text("""
import tensorflow as tf
from efficientdet.devices.distributed import join_world
world = join_world(group_size=2)
own = tf.constant([float(world.rank), 1.0])
@tf.function(autograph=False)
def both(own):
    with tf.GradientTape() as tape:
        tape.watch(own)
        mean = world.mean_of_group(own)
        loss = (1.0 + world.rank) * mean[0]
    return mean, tape.gradient(loss, own)
mean, slope = both(own)
assert mean.numpy().tolist() == [[0.5, 1.0], [0.5, 1.0], [2.5, 1.0], [2.5, 1.0]][world.rank], mean
assert slope.numpy().tolist() == [[1.5, 0.0], [1.5, 0.0], [3.5, 0.0], [3.5, 0.0]][world.rank], slope
world.barrier()  # Horovod ends for all where one process ends
""")
    subprocess.run(launched(4, [sys.executable, tmp_path / "groups.py"]), check=True, env=environment(), timeout=240)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "--bn_group=4: expected 1 or a divisor of the number of processes, 1"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, "--bn_group=4: expected 1 or a divisor of the number of processes, 6"),
    ],
)
def test_groups_that_do_not_divide_the_ranks_are_refused(variables, message):
    with pytest.raises(InputError, match=message):
        join_world(variables, group_size=4)


@needs_horovod
def test_ranks_end_bit_identical_evaluate_together_and_go_on_alone(drawn, tmp_path):
    settings = {
        "training_mode": "traineval",
        "val_records": list(drawn.records("val")),
        "batch_size": 2,
        "calibration_images": None,
    }
    done, _ = run_ranks(2, drawn, tmp_path / "two", stop_epoch=2, **settings)
    succeeded(done)
    digests = [(tmp_path / "two" / f"digest-{rank}.txt").read_text() for rank in (0, 1)]
    assert digests[0] == digests[1]
    assert done.stdout.count("csv format:") == 2  # only the first rank speaks; one of the two has no image to look at
    done, _ = run_ranks(1, drawn, tmp_path / "two", **settings)
    assert "32 images seen correspond to step 16" in succeeded(done).stdout
    assert "1 processes resume a training of 2" in done.stdout
    assert read_description(str(tmp_path / "two" / "ckpt-final")).run["images_seen"] == 48


@needs_horovod
def test_ranks_with_different_settings_are_refused(drawn, tmp_path):
    done, _ = run_ranks(2, drawn, tmp_path, differs=[1, "seed", 7])
    assert done.returncode != 0
    assert "the processes differ in --seed: expected the same command" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.glob("ckpt*"))


@pytest.mark.parametrize("launcher", [pytest.param("horovodrun", marks=needs_horovod), "jax"])
def test_processes_of_separate_interpreters_agree(tmp_path, launcher, request):
    """As a user starts them, each with its own hash seed, up to the point where the network would be built."""
    with tf.io.TFRecordWriter(f"{tmp_path}/train-0") as records:
        records.write(example(1, boxes=101))  # the data check suggests more slots
    ClassNames((1,), ("a",)).write(tmp_path / "train.classes.json")
    start = f"""
import pathlib, runpy, sys, time
from efficientdet.training import run
def stop(*_, world, **__):
    print("the processes agree", flush=True)
    first = pathlib.Path({str(tmp_path / "first")!r})
    while world.rank and not first.exists():  # the first process may still be reading what this one has sent
        time.sleep(0.1)
    first.touch()
    sys.exit(0)
run.starting_state = stop
runpy.run_path({str(REPOSITORY / "train.py")!r}, run_name="__main__")
"""
    arguments = [
        *("-c", start, "--model_name=efficientdet-lite0", "--pretrained_ckpt=efficientdet-lite0-starter", "--suggest"),
        *(f"--training_file_pattern={tmp_path}/train-0", f"--model_dir={tmp_path}/run", "--batch_size=2"),
        *("--training_mode=train300", "--override_checkpoint"),
        "--hparams=image_size=64,num_epochs=2,jitter_min=0.5,jitter_max=1.5,input_rand_hflip=false",
    ]
    if launcher == "jax":
        request.getfixturevalue("with_jax")
        variables = environment_of_processes(2, tmp_path)
        starts = [([sys.executable, *arguments], {**variables, "JAX_PROCESS_ID": str(number)}) for number in (0, 1)]
    else:
        starts = [([*LAUNCHER, "-np", "2", sys.executable, *arguments], {})]
    programs = [
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**variables)
        )
        for words, variables in starts
    ]
    outputs = [program.communicate(timeout=240)[0] for program in programs]
    assert "".join(outputs).count("the processes agree") == 2, outputs
    assert "--suggest sets" in outputs[0]


@needs_horovod
@pytest.mark.parametrize(
    ("accident", "step", "shown"),
    [
        (
            "raise",
            0,
            ", ended: exit code 1: RuntimeError: an accident for the test; the same command resumes a training",
        ),
        ("hang", 3, "in batches_until_the_accident"),  # the first step may take longer, to be compiled
    ],
)
def test_a_rank_that_fails_takes_the_job_down(drawn, tmp_path, accident, step, shown):
    done, seconds = run_ranks(
        2, drawn, tmp_path, accident=[1, step, accident], timeout=150, env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}
    )
    assert done.returncode != 0
    assert shown in done.stdout + done.stderr
    print(f"{accident}: the job ended after {seconds:.0f} s, start-up included")
