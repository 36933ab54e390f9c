"""eval.py and infer.py on a real Ray cluster of two nodes: the files and numbers of one machine."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import ray_functions
from drawn_records import draw_records
from miniature import build_miniature, miniature_detector

import efficientdet
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from model.detection_model import named_variables
from program_support.errors import InputError
from program_support.ray_tasks import Finished, RayCluster

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402
from ray.job_config import JobConfig  # noqa: E402

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two nodes of one core on this machine, whose processes build the miniature, as this one does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", build_miniature)
        patch.setenv("RAY_worker_niceness", "0")  # of 15, they would wait for other tests
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
        node = {"num_cpus": 1, "object_store_memory": 80_000_000}
        nodes = Cluster(initialize_head=True, head_node_args=node)
        nodes.add_node(**node)
        ray.init(
            nodes.address,
            log_to_driver=False,
            job_config=JobConfig(code_search_path=[str(ROOT)]),
            runtime_env={"worker_process_setup_hook": ray_functions.build_miniatures},
        )
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 21}, side=80)


@pytest.fixture(scope="module")
def checkpoint(drawn, tmp_path_factory):
    prefix = str(tmp_path_factory.mktemp("checkpoint") / "ckpt")
    network = miniature_detector(len(drawn.class_names)).network
    write_arrays(
        prefix,
        {name: np.asarray(variable) for name, variable in named_variables(network).items()},
        Description(
            model_name="efficientdet-d0",
            hparams={"image_size": 64},
            categories=drawn.class_names.to_categories(),
            weights="raw",
        ),
    )
    return prefix


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"batch_size": 1, "hparams": "tile_size=48"}])
def test_evaluation_is_that_of_one_machine(drawn, checkpoint, tmp_path, capsys, settings):
    results, printed = [], []
    for engine in ("local", "ray"):
        out = tmp_path / engine
        results.append(
            efficientdet.evaluate(
                checkpoint,
                drawn.folder / "val-*",
                testdev_dir=out,
                output_json=out / "measures.json",
                report=out,
                eval_samples=20,
                engine=engine,
                **settings,
            )
        )
        printed.append(capsys.readouterr().out.replace(str(out), "OUT"))
    assert results[1].detections == results[0].detections > 20
    assert digests(tmp_path / "ray") == digests(tmp_path / "local")
    lines = [line for line in printed[1].splitlines() if not line.startswith("ray: ")]
    assert lines == printed[0].splitlines()
    assert "ray: " in printed[1]


def test_records_that_end_every_process(drawn, checkpoint, monkeypatch):
    ran = RayCluster.run

    def run(self, function, tasks, **settings):
        finished = ran(self, function, tasks, **settings)
        return finished if len(tasks) == 1 else iter([Finished(1, None, "its process died")])

    monkeypatch.setattr(RayCluster, "run", run)
    with pytest.raises(InputError, match=r"tfrecord: no detection is possible in the 8 records from byte \d+ on: each"):
        efficientdet.evaluate(checkpoint, drawn.folder / "val-*", batch_size=1, engine="ray")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": "photos"}, "engine=ray: evaluates a checkpoint on records, without --images"),
        ({"results": "a.json"}, "engine=ray: evaluates a checkpoint on records, without --results"),
        ({"ckpt_path": "a.onnx"}, "engine=ray: expected a checkpoint; a.onnx is an exported file"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "engine=ray: expected a single process; mpirun started 2"),
    ],
)
def test_what_a_cluster_does_not_evaluate(checkpoint, monkeypatch, settings, message):
    if "OMPI_COMM_WORLD_SIZE" in settings:
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", settings.pop("OMPI_COMM_WORLD_SIZE"))
    with pytest.raises(InputError, match=f"^{message}"):
        efficientdet.evaluate(**{"ckpt_path": checkpoint, "engine": "ray", **settings})
