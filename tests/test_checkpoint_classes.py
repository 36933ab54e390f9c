"""Classes of checkpoints that do not name them, such as those of google/automl and NVIDIA with own classes."""

import json

import numpy as np
import pytest
from miniature import miniature_detector

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.restore import load_matching_weights, read_source, restore_detector
from efficientdet.configuration.model_config import ModelConfig, checked_overrides, model_config, split_label_map
from efficientdet.families.hyperparameters import height_and_width
from efficientdet.families.registry import family_of
from efficientdet.options.model import CheckpointOptions
from model.detection_model import named_variables
from program_support.errors import InputError

FAMILY = family_of("efficientdet-d0")
PETS = ("ant", "bee", "cat", "dog", "eel")
BIAS = "class_net/class-predict/bias"


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            restore,
            "build_detector",
            lambda hparams, *, num_classes, precision="float32": miniature_detector(
                num_classes, height_and_width(hparams.image_size), precision=precision
            ),
        )
        yield


def nameless(folder, rows):
    """Write a checkpoint without a description; the bias of each class row is its number."""
    network = miniature_detector(rows).network
    arrays = {name: np.asarray(variable) for name, variable in named_variables(network).items()}
    arrays[BIAS] = np.tile(np.arange(rows, dtype=np.float32), 9)
    write_arrays(
        str(folder / "ckpt"), arrays, Description(model_name="", hparams={}, categories=[], weights="raw"), newest=False
    )
    (folder / "ckpt.json").unlink()
    return str(folder / "ckpt")


def restored(prefix, **changes):
    return restore_detector(ModelConfig(ckpt_path=prefix, overrides={"image_size": 64}, **changes))


def rows_of(found):
    """Return the row of the checkpoint that each class of a detector has."""
    bias = np.asarray(named_variables(found.detector.network)[BIAS].value)
    return bias.reshape(9, -1)[0].astype(int).tolist()


def test_own_classes_are_numbered_and_a_line_says_how_to_name_them(tmp_path):
    found = restored(nameless(tmp_path, 5))
    assert found.class_names == ClassNames.numbered([f"class {number}" for number in range(1, 6)])
    assert rows_of(found) == [0, 1, 2, 3, 4]
    [line] = found.notes
    assert line.startswith("class names: class 1 to class 5; ")
    assert f"{tmp_path}/ckpt does not name its 5 classes; --class_names=FILE, or classes.json" in line


@pytest.mark.parametrize("rows", [80, 90])
def test_cocos_names_are_an_assumption_that_a_line_states(tmp_path, rows):
    found = restored(nameless(tmp_path, rows))
    assert found.class_names == COCO_2017
    assert "class names: the 80 of COCO, assumed from the number of rows" in found.notes[0]
    assert f"does not name its {rows} classes" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("classes.json", json.dumps({"categories": [{"id": 9, "name": "eel"}, *({"id": number, "name": name}
                                     for number, name in enumerate(PETS[:4], 1))]})),
        ("ckpt.classes.json", json.dumps(PETS)),
        ("pet_label_map.pbtxt", "\n".join(f"item {{ id: {i} name: '{name}' }}" for i, name in enumerate(PETS, 1))),
        ("labels.txt", "\n".join(PETS)),
        ("config.yaml", "lr: 0.1\nlabel_map: {1: ant, 2: bee, 3: cat, 4: dog, 5: eel}\n"),
    ],
)  # fmt: skip
def test_names_from_a_file_beside_the_checkpoint(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    (tmp_path / "notes.txt").write_text("not class names")
    found = restored(nameless(tmp_path, 5))
    assert (found.class_names.names, rows_of(found)) == (PETS, [0, 1, 2, 3, 4])
    assert found.notes == (f"class names: ant, bee, cat, dog, eel, from {tmp_path}/{name}",)
    assert found.description.categories[4]["name"] == "eel"


@pytest.mark.parametrize(("ids", "rows"), [((1, 2, 5), 5), ((1, 2, 4), 5), ((0, 4, 7), 3), ((3, 5, 9), 3)])
def test_rows_are_those_of_the_category_ids_or_in_their_order(tmp_path, ids, rows):
    """google/automl's num_classes counts ids up to the largest one, in its VOC example one more."""
    names = ClassNames(ids, ("ant", "bee", "cat"))
    found = restored(nameless(tmp_path, rows), checkpoint_classes=names)
    assert found.class_names == names
    assert rows_of(found) == ([0, 1, 2] if rows == 3 else [number - 1 for number in ids])


def test_names_for_another_number_of_rows_are_refused(tmp_path):
    prefix = nameless(tmp_path, 7)
    with pytest.raises(InputError, match=r"--class_names: names 5 classes \(ant, .*\), but .*ckpt has 7 class rows"):
        restored(prefix, checkpoint_classes=ClassNames.numbered(PETS))
    (tmp_path / "classes.txt").write_text("\n".join(PETS))
    with pytest.raises(InputError, match=r"classes\.txt: names 5 classes"):
        restored(prefix)
    with pytest.raises(InputError, match="hparam num_classes is 5; the checkpoint has 7 classes"):
        restore_detector(
            ModelConfig(
                ckpt_path=prefix,
                overrides={"image_size": 64, "num_classes": 5},
                checkpoint_classes=ClassNames.numbered([*PETS, "fox", "gnu"]),
            )
        )


def test_evaluation_takes_rows_in_the_order_of_the_data_and_says_so(tmp_path):
    prefix = nameless(tmp_path, 5)
    data = ClassNames((2, 4, 6, 8, 10), ("eel", "dog", "cat", "bee", "ant"))
    found = restored(prefix, class_names=data)
    assert (found.class_names, rows_of(found)) == (data, [0, 1, 2, 3, 4])
    assert found.notes[0].startswith("class names: those of the data in the order of their ids; ")
    (tmp_path / "labels.txt").write_text("\n".join(PETS))
    assert rows_of(restored(prefix, class_names=data)) == [4, 3, 2, 1, 0]
    (tmp_path / "seven").mkdir()
    seven = nameless(tmp_path / "seven", 7)
    with pytest.raises(InputError, match=r"the checkpoint has 7 class rows and does not name them, the data 5 \(eel"):
        restored(seven, class_names=data)


def test_fine_tuning_says_that_rows_without_names_are_taken_for_the_datas(tmp_path):
    """lightly-train#985: another model of as many classes is not the same classes."""
    prefix, network = nameless(tmp_path, 5), miniature_detector(5, seed=1).network
    data = ClassNames.numbered(["eel", "fox", "ant", "gnu", "hen"])
    initial = np.asarray(named_variables(network)[BIAS].value).reshape(9, 5)
    lines = load_matching_weights(network, read_source(prefix), family=FAMILY, class_names=data)
    assert lines[1].startswith(f"warning: {prefix} does not name its classes; its 5 class rows are taken as those of")
    (tmp_path / "labels.txt").write_text("\n".join(PETS))
    network = miniature_detector(5, seed=1).network
    lines = load_matching_weights(network, read_source(prefix), family=FAMILY, class_names=data)
    assert lines[1].startswith("class predictor: kept 2 of 5 class rows (eel, ant)")
    bias = np.asarray(named_variables(network)[BIAS].value).reshape(9, 5)
    np.testing.assert_array_equal(bias[:, [0, 2]], np.tile(np.float32([4, 0]), (9, 1)))
    np.testing.assert_array_equal(bias[:, [1, 3, 4]], initial[:, [1, 3, 4]])


def test_a_file_for_another_number_of_rows_does_not_stop_fine_tuning(tmp_path):
    (tmp_path / "classes.txt").write_text("\n".join(PETS))
    network = miniature_detector(3).network
    lines = load_matching_weights(
        network, read_source(nameless(tmp_path, 3)), family=FAMILY, class_names=ClassNames.numbered(PETS[:3])
    )
    assert lines[0].startswith(f"warning: {tmp_path}/classes.txt: names 5 classes")
    assert lines[0].endswith("has 3 class rows; the file is ignored")
    assert "are taken as those of the data" in lines[2]


@pytest.mark.parametrize(
    "settings",
    [
        {"class_names": "ant,bee, cat"},
        {"class_names": "names.txt"},
        {"hparams": "config.yaml"},
        {"hparams": "label_map=names.txt"},
        {"hparams": {"label_map": {1: "ant", 2: "bee", 3: "cat"}}},
    ],
)
def test_flags_that_name_the_classes(tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    (tmp_path / "config.yaml").write_text("num_classes: 4\nlabel_map: {1: ant, 2: bee, 3: cat}\n")
    options = CheckpointOptions(**settings)
    config = model_config(None, checked_overrides(options), options)
    assert config.checkpoint_classes == ClassNames.numbered(["ant", "bee", "cat"])
    assert set(config.overrides) <= {"num_classes"}


def test_label_map_of_coco_and_none_and_a_wrong_one():
    assert split_label_map({"label_map": "coco", "lr": 1}) == ({"lr": 1}, COCO_2017)
    assert split_label_map({"label_map": None, "lr": 1}) == ({"lr": 1}, None)
    with pytest.raises(InputError, match="hparam label_map: class names: 'cat' is the name of"):
        split_label_map({"label_map": "cat,cat"})
