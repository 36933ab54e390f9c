"""Rounds of a quick start: images and labels change, and the model is replaced unless the new one is worse."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from drawn_records import draw_records

from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartConfig
from efficientdet.quickstart import chosen_settings, plan, round_history, rounds, steps
from efficientdet.quickstart.round_history import verdict
from efficientdet.quickstart.steps import quickstart
from program_support.errors import InputError

STEPS = ["dataset.create_tfrecord", "doctor", "train", "eval", "compare", "export"]  # programs of a round


class Killed(BaseException):
    """SIGKILL at a moment of the test's choice."""


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
        self.difference, self.classes = difference(0.1, 0.05, 0.15), {"cell": difference(0.1, 0.05, 0.15)}

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
        elif settings.get("benchmark"):
            output.mkdir(exist_ok=True)
            (output / "time_log.txt").write_text(
                f'DLLL {{"step": "PARAMETER", "timestamp": "{time.time() + 30}", "data": {{}}}}\n'
                'DLLL {"data": {"latency_training_p50": 0.5, "peak_device_memory_bytes": null, "load_average": 0}}\n'
            )
        elif module == "train":
            for end in ("index", "data-00000-of-00001", "json"):
                (output / f"ckpt-1.{end}").write_text(f"of {len(self.data['train']['images'])} images")
        elif module == "eval":
            settings["output_json"].write_text('{"AP": 0.5, "AP50": 0.75, "images": 2, "class_ap": {"cell": 0.5}}')
            (output / "report.html").write_text("report")
        elif module == "compare":
            classes = {name: {"AP": one} for name, one in self.classes.items()}
            content = {
                "models": [
                    {"measures": {"AP": 0.4, "class_objects": dict.fromkeys(self.classes, 10)}},
                    {"measures": {}},
                ],
                "differences": [{"numbers": {"AP": self.difference}, "classes": classes}],
            }
            (output / "compare.json").write_text(json.dumps(content))
        elif module == "export":
            shutil.copy(settings["ckpt"] / "ckpt-1.index", output / "detector.onnx")


def difference(value, low, high, probability=0.99):
    return {"value": value, "low": low, "high": high, "probability": probability}


@pytest.fixture
def programs(drawn, tmp_path, monkeypatch):
    made = Programs(drawn)
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("photos", "a.jpg").write_bytes(b"image")
    for module in (steps, chosen_settings, plan, round_history):
        monkeypatch.setattr(module, "run_program", made.run)
    monkeypatch.setattr(plan, "smallest_usable_size", lambda images, hparams, sizes, *, fixed: sizes[0])
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


def tree(folder):
    """The files below a folder with the round that each model is of."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.name in ("ckpt-1.index", "detector.onnx") else ""
        for path in folder.rglob("*")
        if path.is_file() and path.name[0] != "." and path.name != "quickstart.lock"
    }


def test_the_model_continues_with_added_images(programs, capsys):
    start()
    first = programs.calls[-3][1]
    del programs.calls[:]
    add_image(programs)
    start()
    assert modules(programs) == STEPS
    assert programs.calls[0][1]["splits_of"] == [Path("out/records")]
    training = programs.calls[2][1]
    assert training["pretrained_ckpt"] == Path("out/rounds/2/model_before")
    assert "backbone_init" not in training
    assert (training["hparams"], training["lr"]) == (first["hparams"], pytest.approx(0.3 * first["lr"]))
    assert training["max_minutes"] == pytest.approx(60, abs=8)
    assert programs.calls[4][1]["models"] == [Path("out/rounds/2/model_before"), Path("out/rounds/2/model")]
    assert Path("out/exported/detector.onnx").read_text() == Path("out/model/ckpt-1.index").read_text() == "of 2 images"
    assert Path("out/rounds/1/exported/detector.onnx").read_text() == "of 1 images"
    assert len(json.loads(Path("out/records/train.instances.json").read_text())["images"]) == 2
    entries = json.loads(Path("out/history.json").read_text())["rounds"]
    assert [(entry["round"], entry["images"], entry["labels"], entry["replaced"]) for entry in entries] == [
        (1, 1, 1, True),
        (2, 2, 2, True),
    ]
    printed = capsys.readouterr().out
    assert "changes: 1 images added, 0 removed, 0 replaced, labels of 0 changed; 3 boxes before, 4 now" in printed
    assert "round 2: AP changed by +0.100 (95 % interval +0.050 to +0.150): better" in printed

    del programs.calls[:]
    start()  # nothing changed
    assert not programs.calls
    start(minutes=90.0)
    assert modules(programs) == ["train", "eval", "export"]
    assert programs.calls[0][1]["pretrained_ckpt"] == Path("out/model_before")
    assert programs.calls[0][1]["model_dir"] == Path("out/model")

    del programs.calls[:]
    add_image(programs, "c.jpg")
    start()
    assert modules(programs) == STEPS
    assert programs.calls[0][1]["splits_of"] == [Path("out/rounds/1/records"), Path("out/records")]
    assert programs.calls[2][1]["lr"] == training["lr"]  # it falls once
    estimates = [
        json.loads(Path("out", place, "quickstart.json").read_text())["done"]["choose"]["seconds_after_choice"]
        for place in ("rounds/1", "rounds/2", "")
    ]
    assert estimates[0] < estimates[1] == estimates[2]  # the comparison is counted once
    assert [Path(f"out/{place}model/ckpt-1.index").read_text()[3] for place in ("rounds/1/", "rounds/2/", "")] == [
        *"123"
    ]
    page = Path("out/history.html").read_text()
    assert "Round 3 of 3 is the present model" in page


def test_a_worse_model_is_not_taken(programs, capsys):
    start()
    programs.difference = difference(-0.1, -0.15, -0.05)
    add_image(programs)
    before = tree(Path("out"))
    start()
    assert modules(programs)[-1] == "compare"  # no export
    after = tree(Path("out"))
    assert {name: after[name] for name in before} == before
    assert after["rounds/2/model/ckpt-1.index"] == "of 2 images"
    assert "AP changed by -0.100 (95 % interval -0.150 to -0.050): worse" in capsys.readouterr().out

    del programs.calls[:]
    start()
    assert not programs.calls  # the same again: the result is shown
    assert "the model of round 1 stays in out, that of round 2 is in out/rounds/2" in capsys.readouterr().out
    programs.difference = difference(0.1, -0.05, 0.15)
    start(minutes=90.0)
    assert modules(programs) == STEPS
    assert programs.calls[2][1]["pretrained_ckpt"] == Path("out/rounds/3/model_before")
    entries = json.loads(Path("out/history.json").read_text())["rounds"]
    assert [entry["replaced"] for entry in entries] == [True, False, True]
    assert Path("out/rounds/3/model_before").exists() is False
    assert "Round 3 of 3 is the present model" in Path("out/history.html").read_text()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_at_any_moment_loses_nothing(programs, monkeypatch, can_exchange):
    """After each program, and before each change of a name while the model is replaced."""
    start()
    add_image(programs)
    shutil.copytree("out", "before")
    moments, kill_at = [], [0]

    def counting(function):
        def counted(*names, **options):
            if "rounds" in str(names) or "out" in str(names):
                moments.append(names)
                if len(moments) == kill_at[0]:
                    raise Killed
            return function(*names, **options)

        return counted

    replace_model = rounds.replace_model

    def killed(*arguments, **options):
        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "link"):
                patch.setattr(os, name, counting(getattr(os, name)))
            exchange = rounds.exchange if can_exchange else (lambda one, other: False)
            patch.setattr(rounds, "exchange", counting(exchange))
            replace_model(*arguments, **options)

    monkeypatch.setattr(steps, "replace_model", killed)
    start()
    expected, count = tree(Path("out")), len(moments)
    assert count > 20

    def again(error):
        shutil.rmtree("out")
        shutil.copytree("before", "out")
        with pytest.raises(error):
            start()
        model = Path("out/model/ckpt-1.index")
        if can_exchange:  # usable at any moment
            assert model.with_suffix(".data-00000-of-00001").read_text() == model.read_text()
            assert Path("out/exported/detector.onnx").read_text() in ("of 1 images", "of 2 images")
        programs.kill_at = None
        kill_at[0] = 0
        start()
        assert tree(Path("out")) == expected

    for moment in range(len(STEPS)) if can_exchange else ():
        programs.kill_at = moment
        del programs.calls[:]
        again(SystemExit)
        assert len(programs.calls) == len(STEPS) + 1  # only the killed one is repeated
    for moment in range(1, count + 1):
        moments.clear()
        kill_at[0] = moment
        again(Killed)


def test_labels_that_change_during_a_round(programs, monkeypatch, capsys):
    """Before its training has saved anything it begins again, afterwards it is finished first."""
    start()
    add_image(programs)
    programs.kill_at = 2
    with pytest.raises(SystemExit):
        start()
    programs.kill_at = 4
    add_image(programs, "c.jpg")
    del programs.calls[:]
    with pytest.raises(SystemExit):
        start()
    assert modules(programs)[:1] == ["dataset.create_tfrecord"]
    programs.kill_at = None
    add_image(programs, "d.jpg")
    del programs.calls[:]
    start()
    assert modules(programs) == ["compare", "export", *STEPS]
    assert Path("out/rounds/2/model/ckpt-1.index").read_text() == "of 3 images"
    assert Path("out/model/ckpt-1.index").read_text() == "of 4 images"
    assert "images or labels changed again" in capsys.readouterr().out


def test_files_that_change_no_record_begin_no_round(programs):
    """Such as an image without a label; whatever changed before or comes later is noticed."""
    start()
    before = tree(Path("out"))
    Path("photos", "notes.txt").write_text("of mine")
    del programs.calls[:]
    start()
    assert modules(programs) == ["dataset.create_tfrecord"]
    after = tree(Path("out"))
    assert after == before
    del programs.calls[:]
    start()
    assert not programs.calls
    images = programs.data["train"]["images"]
    programs.data = {**programs.data, "train": instances({"a.jpg": "cell"}), "val": instances({"v.jpg": "cell"})}
    programs.data["test"] = instances({"w.jpg": "cell", "x.jpg": "cell"})  # another split
    assert images == programs.data["train"]["images"]
    Path("photos", "notes.txt").unlink()
    Path("photos", "x.jpg").write_bytes(b"image")
    start()
    assert modules(programs) == STEPS


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


def test_images_that_a_model_has_seen_are_known_by_their_content(programs, capsys):
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
    Path("photos", "b.jpg").write_bytes(b"another image")
    names["b.jpg"] = "5"
    programs.data = data(["b.jpg"], ["v.jpg", "w.jpg"])
    start()
    assert "0 images added, 1 removed, 1 replaced, labels of 0 changed; 4 boxes before, 3" in capsys.readouterr().out
    Path("photos", "a.jpg").write_bytes(b"image")
    programs.data = data(["b.jpg"], ["v.jpg", "val/a.jpg"])
    with pytest.raises(InputError, match=r"1 images of val were in train, such as val/a\.jpg: the model has seen them"):
        start()


def test_classes(programs, capsys):
    start()
    add_image(programs, "b.jpg", "virus")
    start()
    printed = capsys.readouterr().out
    assert "new classes, which begin with random rows of the class predictor: virus" in printed
    assert "AP of classes that the model before lacks: virus not measured" in printed


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"val": instances({"v.jpg": "cells", "w.jpg": "cells"}, ("cells",))}, r"have no object of a class that the m"),
        (
            {"val": instances({"v.jpg": None, "w.jpg": None})},
            r"the 2 images of val have no object of a class .*\(cell\)",
        ),
        ({"val": instances({"v.jpg": "cell"})}, r"the 1 images of val have"),
        ({"val": instances({"a.jpg": "cell", "w.jpg": "cell"})}, r"1 images of val were in train, such as a\.jpg: "),
    ],
)
def test_data_on_which_models_cannot_be_compared_is_refused_before_the_training(programs, data, message):
    start()
    before = tree(Path("out"))
    good = programs.data
    Path("photos", "b.jpg").write_bytes(b"image")
    programs.data = {**programs.data, **data}
    del programs.calls[:]
    with pytest.raises(InputError, match=message):
        start()
    assert modules(programs) == ["dataset.create_tfrecord"]
    after = tree(Path("out"))
    assert {name: after[name] for name in before} == before
    programs.data = good
    add_image(programs)
    start()
    assert modules(programs)[1:] == STEPS


def test_a_round_after_the_history_was_removed(programs):
    start()
    for name in ("b.jpg", "c.jpg"):
        add_image(programs, name)
        start()
        Path("out/history.json").unlink()
    assert [Path(f"out/{place}model/ckpt-1.index").read_text()[3] for place in ("rounds/1/", "rounds/2/", "")] == [
        *"123"
    ]


def test_a_test_set_that_is_added_compares_the_models(programs):
    start()
    programs.data["test"] = instances({"t.jpg": "cell", "u.jpg": "cell"})
    Path("photos", "t.jpg").write_bytes(b"image")
    del programs.calls[:]
    start(max_bad_fraction=0.5)
    patterns = [settings["val_file_pattern"] for module, settings in programs.calls if module in ("eval", "compare")]
    assert patterns == ["out/rounds/2/records/test-*"] * 2
    entries = json.loads(Path("out/history.json").read_text())["rounds"]
    assert [entry["measured_on"] for entry in entries] == ["val", "test"]


def test_other_settings_and_a_damaged_history_are_refused(programs):
    start(val_fraction=0.1)
    add_image(programs)
    with pytest.raises(InputError, match=r"quickstart\.json: was started with val_fraction 0\.1, not 0\.2; expected"):
        start(val_fraction=0.2)
    Path("out/history.json").write_text("{")
    with pytest.raises(InputError, match=r"history\.json: not the history of a quick start"):
        start(val_fraction=0.1)


@pytest.mark.parametrize(
    ("number", "classes", "is_taken"),
    [  # classes: a and b have ten objects, c nine
        (difference(0.01, -0.05, 0.07), {"c": difference(-0.2, -0.3, -0.1, 0.0)}, True),
        (difference(0.01, -0.05, 0.07), {"a": difference(0.01, -0.05, 0.07)}, True),
        (difference(-0.02, -0.08, 0.04), {}, True),
        (difference(-0.021, -0.08, 0.04), {}, False),  # too low to be likely as good
        (difference(-0.01, -0.015, -0.005), {}, False),  # shown to be worse
        (difference(0.01, -0.05, 0.07), {"a": difference(-0.2, -0.3, -0.1, 0.0), "b": difference(0.3, 0, 1)}, False),
        (difference(0.01, -0.05, 0.07), {"a": difference(-0.2, -0.3, -0.1, 0.02)}, False),
        (difference(0.01, -0.05, 0.07), {"a": difference(-0.2, -0.3, -0.1, 0.02), "b": difference(0, -1, 1)}, True),
        (None, {}, False),
    ],
)
def test_the_verdict(number, classes, is_taken):
    assert verdict(number, classes, objects={"a": 10, "b": 10, "c": 9})[0] == is_taken
