"""get_coco.sh against a make-believe site: a `curl` that copies, and archives of a few bytes."""

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "get_coco.sh"
FAKE_CURL = """#!/bin/bash
# curl ... --continue-at - --output FILE URL, appending what FILE lacks as curl does
while [[ $# -gt 0 ]]; do case $1 in --output) out=$2; shift ;; http*) url=$1 ;; esac; shift; done
source=$SITE/${url#http://images.cocodataset.org/}
echo "$url" >> "$SITE/log"
[[ -f $source ]] || exit 22
have=$([[ -f $out ]] && stat -c %s "$out" || echo 0)
tail -c +$((have + 1)) "$source" >> "$out"
"""
FAKE_PYTHON = """#!/bin/bash
printf '%s\\n' "$*" >> "$SITE/python.log"
for flag; do case $flag in --output_file_prefix=*) touch "${flag#*=}.report.json" ;; esac; done
"""
ARCHIVES = {
    "annotations/annotations_trainval2017": "annotations/instances_val2017.json",
    "zips/val2017": "val2017/a.jpg",
    "zips/train2017": "train2017/b.jpg",
}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    for archive, member in ARCHIVES.items():
        path = folder / f"{archive}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(member, archive)
    for name, text in (("curl", FAKE_CURL), ("python", FAKE_PYTHON)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder


def call(site, *arguments, **changes):
    def md5(archive):
        return hashlib.md5((site / f"{archive}.zip").read_bytes()).hexdigest()

    environment = {
        **os.environ,
        "PATH": f"{site.parent / 'bin'}:{os.environ['PATH']}",
        "SITE": str(site),
        "PYTHON": str(site.parent / "bin" / "python"),
        "COCO_TRAIN_MD5": md5("zips/train2017"),
        "COCO_VAL_MD5": md5("zips/val2017"),
        "COCO_ANNOTATIONS_MD5": md5("annotations/annotations_trainval2017"),
        **changes,
    }
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], env=environment, cwd=site.parent, capture_output=True, text=True, timeout=60
    )


def downloads(site):
    log = site / "log"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(("settings", "masks"), [({}, False), ({"COCO_MASKS": "1"}, True)])
def test_masks_are_converted_where_asked_for(site, settings, masks):
    assert call(site, "out", **settings).returncode == 0
    commands = (site / "python.log").read_text().splitlines()
    assert [("--include_masks" in command.split()) for command in commands] == [masks, masks]


def test_downloads_unpacks_and_converts_instances(site):
    done = call(site, "coco")
    assert done.returncode == 0, done.stderr
    folder = site.parent / "coco"
    assert all((folder / member).exists() for member in ARCHIVES.values())
    val, train = (site / "python.log").read_text().splitlines()
    assert f"--object_annotations_file={folder}/annotations/instances_val2017.json" in val
    assert f"--image_dir={folder}/val2017 " in val
    assert val.endswith(f"--output_file_prefix={folder}/val --num_shards=32")
    assert f"--object_annotations_file={folder}/annotations/instances_train2017.json" in train
    assert train.endswith(f"--output_file_prefix={folder}/train --num_shards=256")


def test_second_call_does_nothing_again(site):
    call(site, "coco")
    before = (site / "python.log").read_text()
    done = call(site, "coco")
    assert done.returncode == 0
    assert len(downloads(site)) == 3
    assert (site / "python.log").read_text() == before
    assert done.stdout.count("already") == 5


def test_interrupted_download_continues(site):
    part = site.parent / "coco" / "val2017.zip.part"
    part.parent.mkdir()
    part.write_bytes((site / "zips" / "val2017.zip").read_bytes()[:30])
    assert call(site, "coco").returncode == 0
    assert (site.parent / "coco" / "val2017" / "a.jpg").read_text() == "zips/val2017"


def test_part_that_is_whole_is_not_asked_for_again(site):
    part = site.parent / "coco" / "val2017.zip.part"
    part.parent.mkdir()
    part.write_bytes((site / "zips" / "val2017.zip").read_bytes())
    assert call(site, "coco").returncode == 0
    assert not [url for url in downloads(site) if url.endswith("/val2017.zip")]


def test_wrong_md5_is_deleted_and_told(site):
    done = call(site, "coco", COCO_VAL_MD5="0" * 32)
    assert done.returncode == 2
    assert "MD5 mismatch in the download; expected 0000" in done.stderr
    assert not list((site.parent / "coco").glob("val2017*"))
    assert not (site / "python.log").exists()


def test_published_md5_are_the_default(site):
    done = call(site, "coco", COCO_ANNOTATIONS_MD5="")
    assert "MD5 mismatch in the download; expected f4bbac642086de4f52a3fdda2de5fa2c" in done.stderr


def test_failed_download(site):
    done = call(site, "coco", SITE=str(site.parent))
    assert done.returncode == 2
    assert "download failed; run this again" in done.stderr


@pytest.mark.skipif(
    os.access("/workspace", os.W_OK), reason="here the default folder is the image's own, /workspace/coco"
)
def test_without_a_folder_as_the_references_first_command(site):
    done = call(site)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[0].removeprefix("COCO 2017: output folder "))
    assert folder == site.parent / "coco"
    assert (folder / "val2017" / "a.jpg").exists()


@pytest.mark.parametrize(("arguments", "code"), [(["a", "b"], 2), (["--folder=a"], 2), (["--help"], 0)])
def test_usage(site, arguments, code):
    done = call(site, *arguments)
    assert done.returncode == code
    assert (done.stderr or done.stdout).startswith("usage: bash dataset/get_coco.sh [FOLDER]")
    assert downloads(site) == []
