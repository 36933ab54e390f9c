"""Tasks and conversion on a real Ray cluster of two nodes."""

import hashlib
import os
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import forked_programs
import pytest
import ray_functions
from PIL import Image

from efficientdet.plugins.cluster import ray_cluster as cluster_module
from efficientdet.plugins.cluster.ray_cluster import ray_cluster
from program_support.engines import Finished
from program_support.errors import InputError

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402
from ray.job_config import JobConfig  # noqa: E402

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core on this machine."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("RAY_worker_niceness", "0")  # of 15, they would wait for other tests
        variables.setenv("RAY_USAGE_STATS_ENABLED", "0")
        variables.setenv("RAY_AUTH_MODE", "disabled")
        variables.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")  # for the functions that run there
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000})
        variables.setenv("RAY_ADDRESS", nodes.address)
        nodes.add_node(num_cpus=1, object_store_memory=80_000_000)
        yield nodes
        nodes.shutdown()


@pytest.fixture
def connected(cluster):
    with ray_cluster() as connection:
        yield connection


def results(finished):
    return {one.start: one.result for one in finished}


def test_every_task_ends_once(connected):
    assert results(connected.run(ray_functions.square, range(100))) == {number: number**2 for number in range(100)}
    assert re.match(r"ray: 100 tasks on (1 node|[23] nodes); \d+ CPU seconds in \d+ s$", connected.summary())


def test_a_node_is_lost(cluster, connected):
    node = cluster.add_node(num_cpus=2)
    finished = connected.run(ray_functions.slow_square, range(24))
    found = [next(finished) for _ in range(4)]
    cluster.remove_node(node, allow_graceful=False)
    found += finished
    assert results(found) == {number: number**2 for number in range(24)}
    assert len(found) == 24


def test_a_process_dies_once(connected, tmp_path):
    paths = [str(tmp_path / str(number)) for number in range(3)]
    assert results(connected.run(ray_functions.die_once, paths)) == {0: "0", 1: "1", 2: "2"}
    assert "3 repeated because a process or node died" in connected.summary()


def test_what_kills_every_process_is_found(connected):
    finished = {
        (done.start, done.stop): done for done in connected.run(ray_functions.die_with_threes, range(7), size=3)
    }
    assert sorted(finished) == [(0, 1), (1, 3), (3, 4), (4, 6), (6, 7)]
    died = {number: Finished(number, number + 1, None, "its process died") for number in (0, 3, 6)}
    assert {done.start: done for done in finished.values() if done.crash} == died


def test_results_that_do_not_fit_into_the_object_store(connected):
    found = results(connected.run(ray_functions.many_bytes, range(12)))
    assert {number: (len(value), value[0]) for number, value in found.items()} == {
        number: (20_000_000, number) for number in range(12)
    }


def test_a_refusal_is_the_users_line(connected):
    with pytest.raises(InputError, match=r"^3: expected another number$"):
        list(connected.run(ray_functions.refuse, range(5)))


def test_a_node_without_room_on_its_disk(connected):
    with pytest.raises(InputError, match=r"^the disk of a node is full: "):
        list(connected.run(ray_functions.fill_the_disk, [1]))


def test_another_installation_on_a_node_is_refused(connected, monkeypatch):
    monkeypatch.setattr(cluster_module, "installation", lambda: {"python": "2.7.18", "numpy": "1.0"})
    with pytest.raises(InputError, match=r"^node \S+ has another installation than this machine: python 3\.\S+, not 2"):
        list(connected.run(ray_functions.square, range(3)))


def test_no_cluster_answers(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
        with (
            pytest.raises(InputError, match=r"no Ray cluster answers \(Connection refused\); start one with"),
            ray_cluster(),
        ):
            pass
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(InputError, match="RAY_ADDRESS=ray://head:10001: expected HOST:PORT"), ray_cluster():
        pass


def test_another_server_listens(monkeypatch):
    monkeypatch.setattr(cluster_module, "_SECONDS_UNTIL_AN_ANSWER", 3)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.server_port}")
        with pytest.raises(InputError, match="no Ray cluster answers"), ray_cluster():
            pass
        server.shutdown()
        thread.join()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the package ray: pip install -e '\.\[ray\]'"), ray_cluster():
        pass


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve images with a box each in YOLO's format, one of them cut off."""
    place = tmp_path_factory.mktemp("photos")
    (place / "classes.txt").write_text("noise\n")
    for number in range(12):
        Image.effect_noise((40, 30), 60).save(place / f"{number}.png")
        (place / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (place / "7.png").write_bytes((place / "7.png").read_bytes()[:300])
    return place


def convert(photos, output, *flags):
    command = [sys.executable, "dataset/create_tfrecord.py", f"--images={photos}", f"--output_dir={output}"]
    command += ["--num_shards=3", "--max_bad_fraction=0.5", *flags]
    return forked_programs.run(command, env=os.environ, cwd=ROOT)


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_records_are_those_of_one_machine(cluster, photos, tmp_path):
    local, remote = convert(photos, tmp_path / "local"), convert(photos, tmp_path / "cluster", "--engine=ray")
    assert (local.returncode, remote.returncode) == (0, 0), remote.stderr
    assert digests(tmp_path / "cluster") == digests(tmp_path / "local")
    lines = [line for line in remote.stdout.splitlines() if not line.startswith("ray: ")]
    assert "\n".join(lines).replace("cluster/", "local/") == local.stdout.rstrip("\n")
    again = convert(photos, tmp_path / "cluster", "--engine=ray")
    assert "3 of 3 shards are complete and reused" in again.stdout


def test_images_that_kill_their_process_are_skipped_with_a_reason(cluster, photos, tmp_path, request):
    """The others are in the records, as if this one could not be decoded."""
    if not request.config.getoption("--endurance"):
        pytest.skip("needs --endurance: every death costs a start of TensorFlow")
    from dataset.create_tfrecord import ConvertOptions, convert_labels

    place = tmp_path / "photos"
    place.mkdir()
    for path in photos.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    (place / "4.png").write_bytes(ray_functions.FATAL)
    options = {"images": str(place), "num_shards": 3, "val_fraction": 0, "max_bad_fraction": 0.5}
    job = JobConfig(code_search_path=[str(ROOT)])
    ray.init(
        log_to_driver=False,
        job_config=job,
        runtime_env={"worker_process_setup_hook": ray_functions.die_of_fatal_images},
    )
    try:
        options |= {"output_dir": str(tmp_path / "a"), "engine": "ray"}
        skipped = convert_labels(ConvertOptions(**options), start=lambda: None)["train"].skipped
    finally:
        ray.shutdown()
    assert ("4.png", "ends the process that decodes it") in [(entry.file, entry.reason) for entry in skipped]
    assert len(skipped) == 2
    convert_labels(
        ConvertOptions(**options | {"output_dir": str(tmp_path / "b"), "engine": "local"}), start=lambda: None
    )
    records = {path.name: path.read_bytes() for path in (tmp_path / "b").glob("train-*")}
    assert len(records) == 3
    assert records == {path.name: path.read_bytes() for path in (tmp_path / "a").glob("train-*")}
    assert not [*(tmp_path / "a").glob("*.partial"), *(tmp_path / "a").glob(".*.partial")]
