"""Tasks of a cluster whose inputs are in a bucket: each machine has a cache of its own, and copies what it needs."""

import contextlib
import shutil

import pytest
from miniature import build_miniature
from s3_server import BUCKET, s3_server
from stored_miniature import store_miniature

import efficientdet
from efficientdet.checkpoints import restore
from efficientdet.prediction import annotate
from program_support.ray_tasks import Finished, RayCluster
from program_support.remote_files import cache_folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A checkpoint; its images and records are in the bucket, too."""
    folder = tmp_path_factory.mktemp("stored")
    images = store_miniature(folder)
    with pytest.MonkeyPatch.context() as patch, s3_server(patch) as system:
        for path in [*images, *(folder / "drawn").glob("val*")]:
            if path.is_file():
                system.put_file(str(path), f"{BUCKET}/photos/{path.name}")
        yield folder


@pytest.fixture(autouse=True)
def _nodes(monkeypatch, tmp_path):
    """Do tasks in this process, each on a machine of its own."""
    monkeypatch.setattr(restore, "build_detector", build_miniature)
    monkeypatch.setenv("EFFICIENTDET_REMOTE_CACHE", str(tmp_path / "cache"))

    def run(self, function, tasks, **settings):
        for number, task in enumerate(tasks):
            cache_folder().rename(tmp_path / "cache of the first machine")
            result = function(task)
            shutil.rmtree(cache_folder(), ignore_errors=True)
            (tmp_path / "cache of the first machine").rename(cache_folder())
            yield Finished(number, result)

    monkeypatch.setattr(RayCluster, "run", run)
    for module in (annotate,):
        monkeypatch.setattr(module, "ray_cluster", lambda **settings: contextlib.nullcontext(RayCluster()))


def test_images(stored, tmp_path):
    for engine in ("local", "ray"):
        photos = f"s3://{BUCKET}/photos/*.jpg"
        efficientdet.infer(photos, tmp_path / engine, model=str(stored / "ckpt"), engine=engine)
    files = {path.name for path in (tmp_path / "local").iterdir()}
    assert len([name for name in files if name.endswith(".jpg")]) == 3
    assert all((tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes() for name in files)
