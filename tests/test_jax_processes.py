"""Several processes under JAX: two with two devices each on this machine against one with four."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records

from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from efficientdet.devices import launchers
from efficientdet.devices.distributed import World
from efficientdet.devices.launchers import join_world, place_under_jax
from efficientdet.devices.rendezvous import meet, rank_on_host
from program_support.errors import InputError

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent
LINE = "2 processes, 4 devices, 8 images per step"


@pytest.fixture
def address():
    with socket.socket() as one:
        one.bind(("", 0))
        return f"localhost:{one.getsockname()[1]}"


# --- how processes find each other


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}, (3, "a:1")),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4"}, (None, "a:1")),
        ({"SLURM_STEP_NODELIST": "node[007-015],other"}, (1, "node007:61447")),
        ({"SLURM_STEP_NODELIST": "node[007,9]"}, (1, "node007:61447")),
        ({"SLURM_STEP_NODELIST": "gpu-1,gpu-2"}, (1, "gpu-1:61447")),
        ({"SLURM_STEP_NODELIST": "gpu-1", "JAX_COORDINATOR_ADDRESS": "a:1"}, (1, "a:1")),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (0, "localhost:61440")),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "15.0;tcp://10.96.0.1,10.1.0.1:39"},
            (0, "10.96.0.1:61440"),
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, (0, None)),
        ({}, (None, None)),
    ],
)
def test_number_and_address(variables, expected):
    """Of node lists as Slurm's manual shows them, and of the variables of Open MPI 4 and 5."""
    if "SLURM_STEP_NODELIST" in variables:
        variables |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": str(3 * 4096 + 7)}
    if "OMPI_COMM_WORLD_SIZE" in variables:
        variables |= {"OMPI_COMM_WORLD_RANK": "0"}
    assert place_under_jax(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
            "mpirun started 2 .* JAX_COORDINATOR_ADDRESS=host:port",
        ),
        ({"HOROVOD_SIZE": "2"}, "horovodrun started 2 processes under KERAS_BACKEND=jax: expected"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "a:1"}, "process 2 of 2 at a:1"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "a"},
            "at a: expected .* host:port",
        ),
    ],
)
def test_processes_without_a_place_are_refused(monkeypatch, variables, message):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(InputError, match=message):
        join_world(variables)


def test_groups_and_parts_of_the_state_follow_from_all_devices(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(launchers, "_join_jax", lambda *_, **__: World(rank=1, size=2, devices=2))
    world = join_world({"JAX_NUM_PROCESSES": "2"}, group_size=2, shard_state=True)
    assert (world.groups, world.state_parts) == (2, 4)
    with pytest.raises(InputError, match="--bn_group=3: expected 1 or a divisor of the number of devices, 4"):
        join_world({"JAX_NUM_PROCESSES": "2"}, group_size=3)


def test_jax_variables_need_the_jax_backend(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(InputError, match="JAX_NUM_PROCESSES=2: expected KERAS_BACKEND=jax"):
        join_world({"JAX_NUM_PROCESSES": "2"})


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_process_is_reported(monkeypatch, address, number):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(launchers, "ARRIVAL_SECONDS", 0.5)
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": str(number)}
    message = "waiting for process 1, 2 of 3 at .* ended after 0.5 s" if number == 0 else "no answer from process 0 at"
    with pytest.raises(InputError, match=message):
        join_world(variables)


def met(address, count, numbers, *, seconds):
    """What each of the processes gets, in threads of this one."""
    found = {}

    def one(number):
        try:
            found[number] = meet(address, count, number, name=f"host{number // 2}", seconds=seconds)
        except InputError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=one, args=[number]) for number in numbers]
    for thread in threads:
        thread.start()
    with socket.socket() as stranger:  # such as a health check
        if stranger.connect_ex(("localhost", int(address.rsplit(":", 1)[1]))) == 0:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for thread in threads:
        thread.join()
    return found


def test_all_processes_learn_the_hosts_of_all(address):
    hosts = ["host0", "host0", "host1"]
    assert met(address, 3, [2, 1, 0], seconds=30) == {0: hosts, 1: hosts, 2: hosts}
    assert [rank_on_host(hosts, number) for number in range(3)] == [(0, 2), (1, 2), (0, 1)]


def test_those_that_came_are_told_who_did_not(address):
    found = met(address, 3, [0, 2], seconds=2)
    assert found[0] == found[2] == f"waiting for process 1 of 3 at {address} ended after 2 s"


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_lost_connection_is_one_line(monkeypatch, kind):
    """JAX raises JaxRuntimeError in a step and ValueError while values are gathered."""
    jax_processes = pytest.importorskip("efficientdet.devices.jax_processes")
    exits = []
    monkeypatch.setattr(jax_processes.atexit, "register", lambda *given: exits.append(given))
    lost = pytest.raises(InputError, match="process 1 of 2 lost the connection to another one")
    with lost, jax_processes._JaxWorld(rank=1, size=2):
        raise kind("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
    assert exits == [(jax_processes._exit_at_once, 2)]


# --- two processes: trainings and evaluations, two minutes on one core


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of an undisturbed training, one that was stopped, killed and restarted, and one of a single process."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("processes")
    drawn = draw_records(folder, images={"train": 15, "val": 5})
    settings = {
        "records": list(drawn.records("train")),
        "val_records": list(drawn.records("val")),
        "categories": list(zip(drawn.class_names.category_ids, drawn.class_names.names, strict=True)),
        "training_mode": "traineval",
        "batch_size": 2,
        "deterministic": True,
        "stop_epoch": 2,
        "checkpoint_steps": 1,
        "suggest": False,
    }
    undisturbed, disturbed = ({**settings, "model_dir": str(folder / name)} for name in ("undisturbed", "disturbed"))
    half = {
        **settings,
        "model_dir": str(folder / "one"),
        "resume": str(folder / "undisturbed" / "ckpt-2"),
        "training_mode": "train300",
    }
    options = {
        **settings,
        "training_mode": "train300",
        "batch_size": 1,
        "accumulate_steps": 2,
        "bn_group": 2,
        "shard_optimizer_state": True,
        "on_nan": "rollback",
        "poisoned": 2,
    }
    evaluation = [
        "eval",
        f"--ckpt_path={folder}/undisturbed/ckpt-final",
        f"--val_file_pattern={folder}/val-*.tfrecord",
        "--batch_size=4",
        "--precision=float32",
    ]
    moment = random.choice([1, 2])
    print(f"killed with batch {moment} after the restart")
    first = run_processes(
        2,
        [
            undisturbed,
            {**options, "model_dir": str(folder / "options_of_two")},
            {**disturbed, "accident": [1, 1, "stop"]},
            {**disturbed, "accident": [1, moment, "kill"]},
        ],
        folder,
    )
    second = run_processes(2, [disturbed], folder, [*evaluation, f"--output_json={folder}/two.json"])
    alone = run_processes(
        1,
        [half, {**options, "model_dir": str(folder / "options_of_one")}],
        folder,
        [*evaluation, f"--output_json={folder}/one.json"],
    )
    return folder, first, second, alone


def run_processes(count, trainings, folder, *programs):
    """(exit code, output) of each process; four devices in all."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // count} --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
    }
    command = [sys.executable, str(TESTS / "jax_trainings.py"), json.dumps(trainings), json.dumps(programs)]
    processes = []
    for number in range(count):
        with (folder / f"output-{number}").open("w") as output:
            processes.append(
                subprocess.Popen(
                    command, stdout=output, stderr=output, env={**environment, "JAX_PROCESS_ID": str(number)}
                )
            )
    codes = []
    try:
        for process in processes:
            codes.append(process.wait(timeout=1200))
    finally:
        for process in processes:
            process.kill()
    return [(code, (folder / f"output-{number}").read_text()) for number, code in enumerate(codes)]


def numbers(folder):
    return json.loads((folder / "metrics-final.json").read_text())


def test_stop_kill_and_restart_change_no_bit(trained):
    """SIGTERM to the second process stops both after the same step; SIGKILL ends both; the restart resumes."""
    folder, first, second, _ = trained
    (code, output), (killed, other) = first
    assert killed == -9
    assert code == 2, output[-2000:]
    assert "process 0 of 2 lost the connection to another one" in output
    assert output.count("ended with 143") == other.count("ended with 143") == 1
    assert output.count(LINE) == 4
    assert [code for code, _ in second] == [0, 0], second[0][1][-3000:]
    assert "resumes from" in second[0][1]
    assert "Traceback" not in other
    arrays = [read_arrays(str(folder / name / "ckpt-final")) for name in ("undisturbed", "disturbed")]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    assert numbers(folder / "undisturbed") == numbers(folder / "disturbed")


@pytest.mark.parametrize("name", ["disturbed", "options_of_two"])
def test_processes_end_with_the_same_bits(trained, name):
    folder, *_ = trained
    digests = [(folder / name / f"digest-{rank}.txt").read_text() for rank in (0, 1)]
    assert digests[0] == digests[1]


def test_one_process_continues_a_training_of_two(trained):
    """Half of the training in two processes, half in one: the same images, and the same sums but for their order."""
    folder, _, _, [(code, output)] = trained
    assert code == 0, output[-3000:]
    assert "resumes from" in output
    assert "resume a training of" not in output  # with other batch statistics
    assert_same_weights(folder / "one", folder / "undisturbed")


def test_two_processes_train_as_one_with_all_options(trained):
    """Statistics of groups, accumulated parts of a batch, sharded optimizer state, and a rollback."""
    folder, first, *_ = trained
    assert_same_weights(folder / "options_of_one", folder / "options_of_two")
    for name in ("options_of_one", "options_of_two"):
        progress = read_description(str(folder / name / "ckpt-final")).run
        assert (progress["rollbacks"], progress["rate_factor"]) == (1, 0.5)
    assert first[0][1].count("rollback 1 of 3: restored step 2") == 1


def assert_same_weights(*folders):
    one, two = (read_arrays(str(folder / "ckpt-final")) for folder in folders)
    assert one.keys() == two.keys()
    assert one["global_step"] == 4
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_evaluation_over_processes_has_the_same_bits(trained):
    """Five images, so that one process has three and the other two."""
    folder, _, [(_, first), (_, second)], [(_, alone)] = trained
    one, two = (json.loads((folder / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one == two == numbers(folder / "undisturbed")
    assert one["AP"] > 0
    printed = [output[output.rindex("5 images, ") :].splitlines()[:13] for output in (first, alone)]
    assert printed[0] == printed[1]
    assert "5 images, " not in second
