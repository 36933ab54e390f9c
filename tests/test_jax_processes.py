"""Several processes under JAX: two with two devices each on this machine against one with four."""

import json
import random
import re
import socket
import threading
from unittest import mock

import numpy as np
import pytest
from drawn_records import draw_records
from jax_process import run_processes

from efficientdet.checkpoints.checkpoint import read_arrays
from efficientdet.devices.distributed import World, join_world
from efficientdet.plugins.jax_processes import launch
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.errors import InputError

jax_world = pytest.importorskip("efficientdet.plugins.jax_processes.jax_world")
pytestmark = pytest.mark.slow

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
    assert launch.place_under_jax(variables) == expected


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
            "at a: expected host:port",
        ),
    ],
)
def test_processes_without_a_place_are_refused(monkeypatch, variables, message):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(InputError, match=message):
        join_world(variables)


def test_groups_follow_from_all_devices(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(launch, "join", lambda *_, **__: World(rank=1, size=2, devices=2))
    world = join_world({"JAX_NUM_PROCESSES": "2"}, group_size=2)
    assert world.groups == 2
    with pytest.raises(InputError, match="--bn_group=3: expected 1 or a divisor of the number of devices, 4"):
        join_world({"JAX_NUM_PROCESSES": "2"}, group_size=3)


def test_jax_variables_need_the_jax_backend(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    with pytest.raises(InputError, match="JAX_NUM_PROCESSES=2: expected KERAS_BACKEND=jax"):
        join_world({"JAX_NUM_PROCESSES": "2"})


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_process_is_reported(monkeypatch, address, number):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(launch, "ARRIVAL_SECONDS", 0.5)
    variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": str(number)}
    message = "waiting for process 1, 2 of 3 at .* ended after 0.5 s" if number == 0 else "no answer from process 0 at"
    with pytest.raises(InputError, match=message):
        join_world(variables)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_lost_connection_is_one_line_with_its_cause(monkeypatch, kind):
    """JAX raises JaxRuntimeError in a step; the cause is what the other process said, else what the library says."""
    exits, told = [], []
    monkeypatch.setattr(jax_world.atexit, "register", lambda *given: exits.append(given))
    for ended, shown in (
        (None, r"process 1 of 2 lost the connection to another one \(UNKNOWN: Gloo AllGather failed: closed by peer\)"),
        ("process 0 of 2, on a, ended: killed", "process 0 of 2, on a, ended: killed"),
    ):
        others = mock.Mock(**{"reason_of_lost_connection.return_value": ended, "leave.side_effect": told.append})
        world = jax_world._JaxWorld(rank=1, size=2, peers=others, values=None)
        with pytest.raises(InputError, match=shown), world:
            raise kind("UNKNOWN: Gloo AllGather failed:\nclosed by peer")
    assert exits == [(jax_world.exit_at_once, 2)] * 2
    assert told == [f"{kind.__name__}: UNKNOWN: Gloo AllGather failed: closed by peer"] * 2


class Store:
    """JAX's key-value store, for threads in the place of processes."""

    def __init__(self):
        self.content, self.changed = {}, threading.Condition()

    def key_value_set_bytes(self, key, value):
        with self.changed:
            self.content[key] = value
            self.changed.notify_all()

    def key_value_delete(self, key):
        del self.content[key]

    def blocking_key_value_get_bytes(self, key, milliseconds):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.content, milliseconds / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")
            return self.content[key]


def exchanging(work, *, ended=None):
    """Return what `work` of each of two processes returns or raises, and the content of the store."""
    store, found = Store(), {}

    def one(number):
        others = mock.Mock(number=number, count=2, names=["a", "b"], ended=ended)
        others.raise_if_ended.side_effect = InputError(ended) if ended else None
        try:
            found[number] = work(jax_world.HostValues(store, others), number)
        except InputError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=one, args=[number]) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, store.content


def test_values_are_exchanged_in_order_and_then_forgotten():
    def work(values, number):
        return [values.gather({"round": each, "number": number}, seconds=30) for each in range(3)]

    found, content = exchanging(work)
    assert found[0] == found[1] == [[{"round": each, "number": number} for number in (0, 1)] for each in range(3)]
    assert len(content) == 2


def test_the_first_process_s_arrays_reach_all_in_parts(monkeypatch):
    monkeypatch.setattr(jax_world, "_PART", 5)
    arrays = [[np.float32([[1, 2], [3, 4]]) + number, np.int64(7 * number), np.float32([])] for number in (0, 1)]
    found, _ = exchanging(lambda values, number: values.broadcast(arrays[number], seconds=30))
    for received in found.values():
        for one, other in zip(received, arrays[0], strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


def test_equal_arrays_are_not_sent():
    array = np.zeros(1000, np.float32)
    found, content = exchanging(lambda values, _: values.broadcast([array], seconds=30))
    assert found[0][0] is array
    assert sum(map(len, content.values())) < 1000


def test_a_process_that_hangs_or_ended_is_named():
    def work(values, number):
        return number or values.gather(0, seconds=0.1)

    assert exchanging(work)[0][0].startswith("process 0 of 2 waited too long for process 1, on b, which hangs")
    assert exchanging(work, ended="process 1 of 2, on b, ended: killed")[0][0].endswith("ended: killed")


# --- two processes: trainings and evaluations


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of an undisturbed training, one that was stopped, killed and restarted, and one of a single process.

    All have statistics of groups, accumulated parts of a batch and calibrations.
    """
    folder = tmp_path_factory.mktemp("processes")
    drawn = draw_records(folder, images={"train": 15, "val": 5})
    settings = {
        "records": list(drawn.records("train")),
        "val_records": list(drawn.records("val")),
        "categories": list(zip(drawn.class_names.category_ids, drawn.class_names.names, strict=True)),
        "training_mode": "traineval",
        "batch_size": 1,
        "accumulate_steps": 2,
        "bn_group": 2,
        "calibration_images": 8,
        "deterministic": True,
        "stop_epoch": 2,
        "checkpoint_steps": 1,
    }
    undisturbed, disturbed = ({**settings, "model_dir": str(folder / name)} for name in ("undisturbed", "disturbed"))
    half = {
        **settings,
        "model_dir": str(folder / "one"),
        "resume": str(folder / "undisturbed" / "ckpt-2"),
        "training_mode": "train300",
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
            {**disturbed, "accident": [1, 1, "stop"]},
            {**disturbed, "accident": [1, moment, "kill"]},
        ],
        folder,
    )
    second = run_processes(
        2, [disturbed], folder, [*evaluation, f"--output_json={folder}/two.json", f"--testdev_dir={folder}/two"]
    )
    alone = run_processes(
        1,
        [half],
        folder,
        [*evaluation, f"--output_json={folder}/one.json", f"--testdev_dir={folder}/one_alone"],
    )
    return folder, first, second, alone


def numbers(folder):
    return json.loads((folder / "metrics-final.json").read_text())


def test_stop_kill_and_restart_change_no_bit(trained):
    """SIGTERM to the second process stops both after the same step; SIGKILL ends both; the restart resumes."""
    folder, first, second, _ = trained
    (code, output), (killed, other) = first
    assert killed == -9
    assert code == 2, output[-2000:]
    assert re.search(r"error: process 1 of 2, on .*, ended: killed, or its machine is not reachable; the same", output)
    assert output.count("ended with 143") == other.count("ended with 143") == 1
    assert output.count(LINE) == 3
    assert [code for code, _ in second] == [0, 0], second[0][1][-3000:]
    assert "resumes from" in second[0][1]
    assert "Traceback" not in other
    arrays = [read_arrays(str(folder / name / "ckpt-final")) for name in ("undisturbed", "disturbed")]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)
    assert numbers(folder / "undisturbed") == numbers(folder / "disturbed")


def test_processes_end_with_the_same_bits(trained):
    folder, *_ = trained
    digests = [(folder / "disturbed" / f"digest-{rank}.txt").read_text() for rank in (0, 1)]
    assert digests[0] == digests[1]


def test_one_process_continues_a_training_of_two(trained):
    """Half of the training in two processes, half in one: the same images, and the same sums but for their order."""
    folder, _, _, [(code, output)] = trained
    assert code == 0, output[-3000:]
    assert "resumes from" in output
    assert "resume a training of" not in output  # with other batch statistics
    one, two = (read_arrays(str(folder / name / "ckpt-final")) for name in ("one", "undisturbed"))
    assert one.keys() == two.keys()
    assert one["global_step"] == 4
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_evaluation_over_processes_has_the_same_bits(trained):
    """Five images, so that one process has three and the other two."""
    folder, _, [(_, first), (_, second)], [(_, alone)] = trained
    one, two = (json.loads((folder / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one == two == numbers(folder / "undisturbed")
    alone_found, found = (
        sorted(map(json.dumps, json.loads((folder / name / TESTDEV_FILE_NAME).read_text())))
        for name in ("one_alone", "two")
    )
    assert alone_found == found != []
    printed = [output[output.rindex("5 images, ") :].splitlines()[:13] for output in (first, alone)]
    assert printed[0] == printed[1]
    assert "5 images, " not in second
