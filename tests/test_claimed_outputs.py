"""Files of the user in the places of outputs: every program refuses to replace them, and leaves them as they are."""

import json
import os
import shutil
import zipfile

import pytest
from drawn_records import draw_records
from miniature import build_miniature
from stored_miniature import store_weights

import efficientdet
from efficientdet.checkpoints import restore
from efficientdet.exports.formats import export_formats
from efficientdet.operations.choose_images import choose_images
from efficientdet.operations.inspect_model import inspect
from efficientdet.options.export import InspectOptions
from efficientdet.options.next_images import NextImagesOptions
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import MARKER, claim_folder, claimed_outputs, remove_outputs, unpacked_archive
from program_support.errors import InputError

OWN = "a user's work"


def write(folder, text="output", name="labels/1.txt"):
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(text)
    (folder / name).write_text(text)


def run(folder, text="output", *, name="labels/1.txt"):
    """Write a file, and another one in a folder, as a program does."""
    with claimed_outputs(folder / "report.html", folder / "labels", None):
        write(folder, text, name)


def change(path):
    """Replace the content, and keep size and time."""
    status = path.stat()
    path.write_text("changed"[: status.st_size].ljust(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_outputs_are_replaced_also_after_a_copy_of_the_folder(tmp_path):
    for text in ("first", "second"):
        run(tmp_path / "out", text)
    shutil.copytree(tmp_path / "out", tmp_path / "copy", copy_function=shutil.copyfile)
    (tmp_path / "copy" / "notes.txt").write_text(OWN)
    (tmp_path / "copy" / "labels" / "1.txt").unlink()
    run(tmp_path / "copy", "third")
    assert (tmp_path / "copy" / "labels" / "1.txt").read_text() == "third"
    assert (tmp_path / "copy" / "notes.txt").read_text() == OWN


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("report.html", lambda path: path.write_text(OWN), "was changed after this program wrote it"),
        ("labels/1.txt", change, "was changed after this program wrote it"),
        ("labels/2.txt", lambda path: path.write_text(OWN), "exists and was not written by this program"),
        ("labels/deeper/1.txt", lambda path: path.write_text(OWN), "exists and was not written by this program"),
        ("report.html", lambda path: [path.unlink(), path.symlink_to("labels/1.txt")], "was changed after"),
    ],
)
def test_a_change_of_the_user_is_named(tmp_path, name, damage, message):
    run(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    damage(tmp_path / name)
    before = (tmp_path / name).read_text()
    with pytest.raises(InputError, match=f"{name}: {message}"):
        run(tmp_path, "later")
    assert (tmp_path / name).read_text() == before
    assert "later" not in {path.read_text() for path in tmp_path.rglob("*.*")}


def test_a_killed_program_continues_and_a_failed_one_too(tmp_path):
    pid = os.fork()
    if not pid:
        with claimed_outputs(tmp_path / "report.html", tmp_path / "labels"):
            write(tmp_path)
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    run(tmp_path)
    with pytest.raises(FileNotFoundError):
        run(tmp_path, "another", name="absent/1.txt")
    run(tmp_path)


def test_only_outputs_are_removed(tmp_path):
    run(tmp_path)
    (tmp_path / "labels" / ".own").write_text(OWN)
    remove_outputs(tmp_path, ["report.html", "labels", "absent"])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and "efficientdet" not in path.name] == [".own"]


def test_folders_of_versions_without_digests(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError), claimed_outputs(tmp_path / "report.html"):
        pass
    (tmp_path / ".outputs_of_efficientdet.json").write_text(json.dumps({"outputs": ["report.html"]}))
    with claimed_outputs(tmp_path / "report.html"):
        pass
    with claimed_outputs(tmp_path / "labels", adopts=True):
        pass


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def zipped(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return str(path)


def test_a_new_or_empty_folder_is_claimed_and_another_refused(tmp_path):
    for _ in range(2):
        assert claim_folder(tmp_path / "below" / "new") == tmp_path / "below" / "new"
    (tmp_path / "empty").mkdir()
    claim_folder(tmp_path / "empty")
    assert names(tmp_path / "below") == ["new", f"new/{MARKER}"]
    assert names(tmp_path / "empty") == [MARKER]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("full", "file", "link"):
        with pytest.raises(InputError, match=f"{name}: exists and was not written by this program"):
            claim_folder(tmp_path / name)
    assert names(tmp_path / "full") == ["file"]


def test_a_folder_is_kept_until_the_archive_changes(tmp_path):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    (folder / "one").write_text("corrected")
    unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="first")
    assert (folder / "one").read_text() == "corrected"
    assert names(folder) == [MARKER, "one", "two"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "one").write_text("corrected"), "images/one: changed after"),
        (lambda folder: (folder / "one").unlink(), "images/one: removed after"),
        (lambda folder: (folder / "new").touch(), "images/new: added after"),
    ],
)
def test_an_unpacked_folder_that_was_changed_is_not_replaced(change, message, tmp_path):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    change(folder)
    before = names(folder)
    with pytest.raises(InputError, match=message):
        unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="second")
    assert names(folder) == before


def test_an_unchanged_folder_is_replaced_with_its_archive(tmp_path, monkeypatch):
    folder = tmp_path / "images"
    unpacked_archive(zipped(tmp_path / "a.zip", one="1", two="2"), folder, fingerprint="first")
    (tmp_path / "damaged.zip").write_bytes((tmp_path / "a.zip").read_bytes().replace(b"1PK", b"2PK"))
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked_archive(str(tmp_path / "damaged.zip"), folder, fingerprint="damaged")
    assert names(folder) == [MARKER, "one", "two"]
    unpacked_archive(zipped(tmp_path / "a.zip", three="3"), folder, fingerprint="second")
    assert names(folder) == [MARKER, "three"]
    assert sorted(os.listdir(tmp_path)) == ["a.zip", "damaged.zip", "images"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored")
    drawn = draw_records(folder / "drawn", images={"train": 3, "val": 3}, side=80)
    store_weights(str(folder / "ckpt"), drawn.class_names)
    (folder / "results.json").write_text("[]")
    return folder


def _train(place, out):
    records = {"val_file_pattern": place / "drawn" / "val-*", "testdev_dir": str(out)}
    efficientdet.train(place / "drawn" / "train-*", model_dir=out, num_epochs=1, batch_size=1, **records)


def _evaluate(place, out):
    folders = {name: str(out) for name in ("report", "suspects", "testdev_dir")}
    results, records = str(place / "results.json"), place / "drawn" / "val-*"
    efficientdet.evaluate(None, records, results=results, output_json=str(out / "photo.jpg"), **folders)


def _compare(place, out):
    efficientdet.compare([place / "results.json"] * 2, place / "drawn" / "val-*", output_dir=out)


def _examine(place, out):
    efficientdet.examine(place / "drawn" / "train-*", output_dir=out)


def _export(place, out):
    efficientdet.export(
        place / "ckpt", out, formats=[name for name, one in export_formats().items() if not one.calibrates]
    )


def _infer(place, out):
    images = str(place / "drawn" / "val")
    formats = ("coco", "yolo", "csv", "label_studio")
    efficientdet.infer(images, out, model=place / "ckpt", format=formats, json_lines=str(out / "lines.jsonl"))


def _next_images(place, out):
    images = (str(place / "drawn" / "val"),)
    choose_images(NextImagesOptions(model=str(place / "ckpt"), images=images, output_dir=str(out), count=1))


def _inspect(place, out):
    inspect(InspectOptions(mode="dry", ckpt_path=str(place / "ckpt"), export_ckpt=str(out / "copy")))


def _convert(place, out):
    annotations = place / "drawn" / "annotations" / "instances_val.json"
    efficientdet.convert(place / "drawn" / "val", out, annotations=annotations)


PROGRAMS = {
    _train: "config.json classes.json report.html metrics-1.json metrics-final.json "
    f"emackpt-final/saved_model.pb {TESTDEV_FILE_NAME}",
    _evaluate: f"photo.jpg report.html report.json suspects.html suspects.json proposed.json {TESTDEV_FILE_NAME}",
    _compare: "compare.html compare.json",
    _examine: "doctor.html doctor.json",
    _export: "README.md detector.onnx artifacts.json "
    "detector.tflite detector.xml detector.bin saved_model/saved_model.pb web/index.html",
    _infer: "detections.json coco.json yolo/labels/1.txt detections.csv label_studio.xml lines.jsonl",
    _next_images: "next_images.html next_images.json images/1.jpg coco.json yolo/labels/1.txt",
    _inspect: "copy.index copy.json",
    _convert: "val.report.json val.classes.json val.instances.json",
}


@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program, names in PROGRAMS.items() for name in names.split()]
)
def test_a_file_of_the_user_stays(place, tmp_path, monkeypatch, program, name):
    monkeypatch.setattr(restore, "build_detector", build_miniature)
    own = tmp_path / "out" / name
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    with pytest.raises(InputError, match=f"{name}: exists and was not written by"):
        program(place, tmp_path / "out")
    assert own.read_text() == OWN
    written = {path for path in (tmp_path / "out").rglob("[!.]*") if path.is_file() and path.name != "lock"}
    assert written == {own}
