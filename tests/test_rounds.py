"""Rounds of a quick start: images and labels change, and the model is replaced unless the new one is worse."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from drawn_records import draw_records

from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartConfig
from efficientdet.quickstart import chosen_settings, rounds, steps
from efficientdet.quickstart.output_folder import exported_model
from efficientdet.quickstart.steps import quickstart
from program_support.errors import InputError

STEPS = ["dataset.create_tfrecord", "doctor", "train", "compare", "export", "eval"]  # programs of a round


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 5, "val": 2}).folder


def instances(images, classes=("cell",)):
    """COCO's dictionary of images: name -> class of its only box."""
    return {
        "images": [{"id": number, "file_name": name, "height": 9, "width": 9} for number, name in enumerate(images)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": classes.index(name), "bbox": [1, 1, 4, 4]}
            for number, name in enumerate(images.values())
            if name
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes)],
    }


class Programs:
    """Programs that write what the quick start reads; `kill_at` counts their calls down to a kill."""

    def __init__(self, drawn):
        self.drawn, self.calls, self.kill_at = drawn, [], None
        self.data = {"train": instances({"a.jpg": "cell"}), "val": instances({"v.jpg": "cell", "w.jpg": "cell"})}
        self.difference = difference(0.1, 0.05, 0.15)

    def run(self, module, settings):
        self.calls.append((module, {key: value for key, value in settings.items() if value is not None}))
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                sys.exit(137)
        output = Path(settings.get("output_dir") or settings.get("model_dir") or settings["report"])
        if module == "dataset.create_tfrecord":
            for split, content in self.data.items():
                for path in self.drawn.glob(f"{split.replace('test', 'val')}[-.]*"):
                    shutil.copy(path, output / path.name.replace("val", split))
                (output / f"{split}.instances.json").write_text(json.dumps(content))
        elif module == "doctor":
            (output / "doctor.json").write_text('{"suggested": {"settings": {}}}')
        elif module == "train":
            for end in ("index", "data-00000-of-00001", "json"):
                (output / f"ckpt-1.{end}").write_text(f"of {len(self.data['train']['images'])} images")
        elif module == "eval":
            settings["output_json"].write_text('{"AP": 0.5, "AP50": 0.75, "images": 2, "class_ap": {"cell": 0.5}}')
            (output / "report.html").write_text("report")
        elif module == "compare":
            content = {"differences": [{"numbers": {"AP": self.difference}}]}
            (output / "compare.json").write_text(json.dumps(content))
        elif module == "export":
            shutil.copy(settings["ckpt"] / "ckpt-1.index", output / "detector.onnx")


def difference(value, low, high):
    return {"value": value, "low": low, "high": high}


@pytest.fixture
def programs(drawn, tmp_path, monkeypatch):
    made = Programs(drawn)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("photos", "a.jpg").write_bytes(b"image")
    for module in (steps, chosen_settings, rounds):
        monkeypatch.setattr(module, "run_program", made.run)
    monkeypatch.setattr(chosen_settings, "smallest_usable_size", lambda images, hparams, sizes, *, fixed: sizes[0])
    # A step of four images takes half a second
    machine = False, 5.0, 0.125 * 0.42
    monkeypatch.setattr(chosen_settings, "measure_machine", lambda hparams, num_classes: machine)
    monkeypatch.setattr(chosen_settings, "result_of", lambda function, *arguments: function(*arguments))
    return made


def start(**changes):
    settings = {
        "images": "photos", "output_dir": "out", "weights": NO_WEIGHTS, "model_name": "efficientdet-d0",
        "hparams": "image_size=256", "minutes": 60.0,
    }  # fmt: skip
    quickstart(QuickstartConfig(**settings | changes))


def add_image(programs, name="b.jpg", label="cell"):
    Path("photos", name).write_bytes(b"image")
    images = programs.data["train"]["images"]
    labels = {image["file_name"]: "cell" for image in images} | {name: label}
    programs.data = {**programs.data, "train": instances(labels, sorted({"cell", label} - {None}))}


def modules(programs):
    return [module for module, _ in programs.calls]


def models(*folders):
    """The number of training images of the exported model in each folder; None without one."""
    paths = [Path("out", folder, "exported/detector.onnx") for folder in folders]
    return [int(path.read_text().split()[1]) if path.exists() else None for path in paths]


def test_the_model_continues_with_added_images(programs, capsys):
    start()
    first = programs.calls[-3][1]
    del programs.calls[:]
    add_image(programs)
    start()
    assert modules(programs) == STEPS
    assert programs.calls[0][1]["splits_of"] == [Path("out/records")]
    training = programs.calls[2][1]
    assert training["pretrained_ckpt"] == Path("out/model")
    assert "backbone_init" not in training
    assert (training["hparams"], training["lr"]) == (first["hparams"], pytest.approx(0.3 * first["lr"]))
    assert training["max_minutes"] == pytest.approx(60, abs=8)
    assert programs.calls[3][1]["models"] == [Path("out/model"), Path("out/rounds/2/model")]
    assert models("", "rounds/2") == [1, 2]
    assert exported_model(Path("out")) == Path("out/rounds/2/exported/detector.onnx")
    printed = capsys.readouterr().out
    assert "changes: 1 images added, 0 removed, 0 with other content, labels or split; 3 boxes before, 4" in printed
    assert "round 2: AP changed by +0.100 (95 % interval +0.050 to +0.150): better" in printed

    del programs.calls[:]
    start()  # nothing changed
    assert not programs.calls
    start(minutes=90.0)
    assert modules(programs) == ["train", "compare", "export", "eval"]
    assert programs.calls[0][1]["pretrained_ckpt"] == Path("out/model")
    assert programs.calls[0][1]["model_dir"] == Path("out/rounds/2/model")

    del programs.calls[:]
    add_image(programs, "c.jpg")
    start()
    assert modules(programs) == STEPS
    assert programs.calls[0][1]["splits_of"] == [Path("out/records"), Path("out/rounds/2/records")]
    assert programs.calls[2][1]["lr"] == training["lr"]  # it falls once
    estimates = [
        json.loads(Path("out", place, "quickstart.json").read_text())["done"]["choose"]["seconds_after_choice"]
        for place in ("", "rounds/2", "rounds/3")
    ]
    assert estimates[0] < estimates[1] == estimates[2]  # the comparison is counted once
    assert models("", "rounds/2", "rounds/3") == [1, 2, 3]


@pytest.mark.parametrize(
    ("ap", "is_taken"),
    [
        (difference(-0.02, -0.08, 0.04), True),
        (difference(-0.021, -0.08, 0.04), False),  # too low to be likely as good
        (difference(-0.01, -0.015, -0.005), False),  # shown to be worse
        (None, False),
    ],
)
def test_a_worse_model_is_not_taken(programs, capsys, ap, is_taken):
    start()
    programs.difference = ap
    add_image(programs)
    start()
    assert models("", "rounds/2") == [1, 2 if is_taken else None]
    number = 2 if is_taken else 1
    assert f"the present model is that of round {number}, in out{'/rounds/2' * is_taken}; to" in capsys.readouterr().out
    del programs.calls[:]
    start()
    assert not programs.calls  # the same again: the result is shown
    add_image(programs, "c.jpg")
    programs.difference = difference(0.1, 0.05, 0.15)
    start()
    assert programs.calls[2][1]["pretrained_ckpt"] == Path("out", "rounds/2" * is_taken, "model")
    assert exported_model(Path("out")) == Path("out/rounds/3/exported/detector.onnx")


@pytest.mark.parametrize("moment", range(len(STEPS)))
def test_a_kill_at_any_moment_loses_nothing(programs, moment):
    start()
    add_image(programs)
    programs.kill_at = moment
    del programs.calls[:]
    with pytest.raises(SystemExit):
        start()
    exported = STEPS.index("export") < moment
    assert exported_model(Path("out")).read_text() == f"of {2 if exported else 1} images"
    programs.kill_at = None
    start()
    assert len(programs.calls) == len(STEPS) + 1  # only the killed one is repeated
    assert exported_model(Path("out")).read_text() == "of 2 images"


def test_labels_that_change_during_a_round_are_refused_until_it_has_finished(programs):
    start()
    add_image(programs)
    programs.kill_at = 4
    with pytest.raises(SystemExit):
        start()
    programs.kill_at = None
    Path("photos", "c.jpg").write_bytes(b"image")
    with pytest.raises(InputError, match=r"images or labels changed after their conversion; expected the same until"):
        start()
    Path("photos", "c.jpg").unlink()
    start()
    assert models("rounds/2") == [2]


def test_files_that_change_no_record_train_nothing(programs, capsys):
    """Such as an image without a label; whatever changed before or comes later is noticed."""
    start()
    Path("photos", "notes.txt").write_text("of mine")
    del programs.calls[:]
    with pytest.raises(SystemExit) as ended:
        start()
    assert not ended.value.code
    assert modules(programs) == ["dataset.create_tfrecord"]
    assert "the model stays as it is" in capsys.readouterr().out
    del programs.calls[:]
    start()  # the result of the first round
    assert modules(programs) == []
    Path("photos", "notes.txt").write_text("of mine, later")
    programs.data = {**programs.data, "test": instances({"w.jpg": "cell", "x.jpg": "cell"})}
    del programs.calls[:]
    start()
    assert modules(programs) == STEPS
    patterns = [settings["val_file_pattern"] for module, settings in programs.calls if module in ("eval", "compare")]
    assert patterns == ["out/rounds/2/records/test-*"] * 2
    assert programs.calls[-1][1]["ckpt"] == Path("out/rounds/2/exported/detector.onnx")


def test_images_in_the_output_folder_are_watched(programs):
    """As those that the backend of Label Studio copies there."""
    labels = Path("out/label_studio/annotations.json")
    labels.parent.mkdir(parents=True)
    labels.write_text("[]")
    start(annotations=str(labels), images="out/label_studio")
    labels.write_text("[{}]")
    add_image(programs)
    del programs.calls[:]
    start(annotations=str(labels), images="out/label_studio")
    assert modules(programs) == STEPS


def test_images_that_a_model_has_seen_are_known_by_their_content(programs):
    """A file that was in train must not be held out later, whatever its name is and however long ago it was."""
    names = {"a.jpg": "1", "b.jpg": "2", "v.jpg": "3", "w.jpg": "4", "val/a.jpg": "1"}

    def data(train, val):
        found = {"train": instances(dict.fromkeys(train, "cell")), "val": instances(dict.fromkeys(val, "cell"))}
        for image in (image for content in found.values() for image in content["images"]):
            image["sha256"] = names[image["file_name"]]
        return found

    programs.data = data(["a.jpg", "b.jpg"], ["v.jpg", "w.jpg"])
    start()
    Path("photos", "a.jpg").unlink()
    programs.data = data(["b.jpg"], ["v.jpg", "w.jpg"])
    start()
    Path("photos", "a.jpg").write_bytes(b"image")
    programs.data = data(["b.jpg"], ["v.jpg", "val/a.jpg"])
    with pytest.raises(InputError, match=r"1 images of val were in train, such as val/a\.jpg: the model has seen them"):
        start()


def test_a_new_class_is_reported(programs, capsys):
    start()
    add_image(programs, "b.jpg", "virus")
    start()
    assert "new classes, which begin with random rows of the class predictor: virus" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"val": instances({"v.jpg": "cells", "w.jpg": "cells"}, ("cells",))}, r"have no object of a class that the m"),
        ({"val": instances({"v.jpg": None, "w.jpg": None})}, r"the 2 images of val have no object of a .*\(cell\)"),
        ({"val": instances({"v.jpg": "cell"})}, r"the 1 images of val have"),
        ({"val": instances({"a.jpg": "cell", "w.jpg": "cell"})}, r"1 images of val were in train, such as a\.jpg: "),
    ],
)
def test_data_on_which_models_cannot_be_compared_is_refused_before_the_training(programs, data, message):
    start()
    good = programs.data
    Path("photos", "b.jpg").write_bytes(b"image")
    programs.data = {**programs.data, **data}
    del programs.calls[:]
    with pytest.raises(InputError, match=message):
        start()
    assert modules(programs) == ["dataset.create_tfrecord"]
    programs.data = good
    add_image(programs)
    start()
    assert modules(programs)[1:] == STEPS


def test_other_settings_and_rounds_of_an_earlier_version_are_refused(programs):
    start(val_fraction=0.1)
    add_image(programs)
    with pytest.raises(InputError, match=r"quickstart\.json: was started with val_fraction 0\.1, not 0\.2; expected"):
        start(val_fraction=0.2)
    Path("out/history.json").write_text("{}")
    with pytest.raises(InputError, match=r"has rounds of an earlier version; expected another --output_dir, and --wei"):
        start(val_fraction=0.1)


def test_the_served_model_is_that_of_the_latest_round(tmp_path):
    done = json.dumps({"done": {"export": []}})
    for name in ("2", "3", "4-old", "best"):  # the last two are copies of a user
        (tmp_path / "rounds" / name).mkdir(parents=True)
        (tmp_path / "rounds" / name / "quickstart.json").write_text(done)
    assert exported_model(tmp_path) == tmp_path / "rounds" / "3" / "exported" / "detector.onnx"
    (tmp_path / "history.json").touch()  # of an earlier version, which moved former models into rounds/
    assert exported_model(tmp_path) == tmp_path / "exported" / "detector.onnx"
