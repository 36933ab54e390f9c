"""infer.py on a real Ray cluster of two nodes: the files and numbers of one machine."""

import hashlib
from pathlib import Path

import pytest
import ray_functions
from drawn_records import draw_records
from miniature import build_miniature
from stored_miniature import store_weights

import efficientdet
from efficientdet.checkpoints import restore
from efficientdet.plugins.cluster.ray_cluster import RayCluster
from program_support.engines import Finished
from program_support.errors import InputError

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
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 9, "val": 21}, side=80)


@pytest.fixture(scope="module")
def checkpoint(drawn, tmp_path_factory):
    prefix = str(tmp_path_factory.mktemp("checkpoint") / "ckpt")
    store_weights(prefix, drawn.class_names)
    return prefix


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def photos(drawn, tmp_path_factory):
    """Twenty images, and one that is cut off."""
    place = tmp_path_factory.mktemp("photos")
    for number, path in enumerate(sorted((drawn.folder / "val").glob("*.jpg"))[:20]):
        (place / f"{number:02}.jpg").write_bytes(path.read_bytes())
    (place / "04-cut.jpg").write_bytes((place / "04.jpg").read_bytes()[:700])
    return place


def infer(photos, output, checkpoint, **settings):
    settings = {"min_score_thresh": 0.01, "batch_size": 3, **settings}
    efficientdet.infer(photos, output, model=checkpoint, json_lines=output / "lines.jsonl", **settings)


def test_annotated_images_are_those_of_one_machine(photos, checkpoint, tmp_path, capsys):
    settings = {"format": "coco,yolo,csv,label_studio"}
    refusals, printed = [], []
    for engine in ("local", "ray"):
        with pytest.raises(InputError) as refused:
            infer(photos, tmp_path / engine, checkpoint, engine=engine, **settings)
        refusals.append(str(refused.value))
        printed.append(capsys.readouterr().out.replace(str(tmp_path / engine), "OUT"))
    assert refusals[1] == refusals[0]
    assert refusals[0].startswith(f"1 of 21 images could not be decoded; the first: {photos / '04-cut.jpg'}")
    files = digests(tmp_path / "local")
    assert digests(tmp_path / "ray") == files
    assert [line for line in printed[1].splitlines() if not line.startswith("ray: ")] == printed[0].splitlines()


@pytest.fixture
def started(monkeypatch):
    """Do parts in this process; return the number of images in each. Image 07 ends its process."""
    sizes, fatal = [], "07.jpg"

    def run(self, function, items, *, size=1, **settings):
        for start in range(0, len(items), size):
            part = items[start : start + size]
            sizes.append(len(part))
            if not any(image.path.endswith(fatal) for image in part):
                yield Finished(start, start + len(part), function(part))
                continue
            for number, image in enumerate(part, start):
                died = image.path.endswith(fatal)
                result = None if died else function([image])
                yield Finished(number, number + 1, result, "its process died" if died else "")

    monkeypatch.setattr(RayCluster, "run", run)
    monkeypatch.setattr(RayCluster, "results", lambda self, function, items, **settings: [*map(function, items)])
    return sizes


def test_an_image_that_ends_every_process_is_skipped(started, photos, checkpoint, tmp_path, capsys):
    with pytest.raises(InputError, match=r"^2 of 21 images could not be decoded"):
        infer(photos, tmp_path / "ray", checkpoint, engine="ray")
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped: ")]
    assert skipped[1:] == [f"skipped: {photos / '07.jpg'}: ends the process that decodes it"]
    copies = {path.stem for path in (tmp_path / "ray").glob("*.jpg")}
    assert copies == {f"{number:02}" for number in range(20)} - {"07"}


def test_an_interrupted_run_is_continued(started, photos, checkpoint, tmp_path, monkeypatch, capsys):
    output, settings = tmp_path / "ray", {"engine": "ray"}
    run = RayCluster.run

    def interrupted(self, function, items, **settings):
        yield next(run(self, function, items, **settings))
        raise KeyboardInterrupt

    few = tmp_path / "few"
    few.mkdir()
    for path in photos.iterdir():
        if path.name not in {"04-cut.jpg", "07.jpg"}:
            (few / path.name).write_bytes(path.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(RayCluster, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            infer(few, output, checkpoint, **settings)
    [journal] = output.glob(".images*")
    with journal.open("a") as file:
        file.write("[1, [")
    half = journal.read_bytes()
    started.clear()
    infer(few, output, checkpoint, **settings)
    assert "18 of 19 images are done and reused\n" in capsys.readouterr().out
    assert started == [1]
    infer(few, tmp_path / "local", checkpoint)
    assert digests(output) == digests(tmp_path / "local")
    for change, expected in (({"min_score_thresh": 0.02}, [18, 1]), ({}, [2])):
        journal.write_bytes(half)
        started.clear()
        if not change:
            (output / "03.jpg").unlink()
        infer(few, output, checkpoint, **settings, **change)
        assert started == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_path": "rtsp://camera/1"}, "engine=ray: detects in images only; --image_path has rtsp://camera/1"),
        ({"image_path": "{folder}/a.mp4"}, r"engine=ray: detects in images only; --image_path has .*a\.mp4$"),
        ({"saved_model_dir": "exported"}, "engine=ray: detects without --saved_model_dir"),
        ({"debug": True}, "engine=ray: detects without --debug"),
    ],
)
def test_what_a_cluster_does_not_annotate(photos, checkpoint, tmp_path, settings, message):
    (tmp_path / "a.mp4").touch()
    settings = {key: str(value).format(folder=tmp_path) for key, value in settings.items()}
    with pytest.raises(InputError, match=f"^{message}"):
        efficientdet.infer(**{"image_path": photos, "model": checkpoint, "engine": "ray", **settings})
