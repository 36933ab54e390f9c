"""Cross-validation of the quick start: which trainings it calls, what it writes, and that it resumes after any kill."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from drawn_records import draw_records

from efficientdet.options.quickstart import QuickstartConfig
from efficientdet.quickstart import choices, chosen_settings, cross_validation, plan, steps
from efficientdet.quickstart.cross_validation import best_epochs
from efficientdet.quickstart.steps import quickstart
from object_detection.coco.results import TESTDEV_FILE_NAME

NUMBERS = {"AP50": 0.75, "AP75": 0.25}
INTERVALS = {"numbers": {"AP": [0.34, 0.41]}}
AP = {0: {10: 0.2, 20: 0.5, 23: 0.4}, 1: {10: 0.1, 20: 0.45, 25: 0.3}}  # of each fold, after each evaluated epoch


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Records of five images in two shards, the folds."""
    folder = tmp_path_factory.mktemp("drawn")
    draw_records(folder, images={"train": 5})
    shutil.copy(folder / "annotations" / "instances_train.json", folder / "train.instances.json")
    return folder


@pytest.fixture
def programs(drawn, tmp_path, monkeypatch):
    """Programs that record their calls and write what the quick start reads; `kills` counts calls down to a kill."""
    calls, kills, stored = [], [], []
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()

    def run(module, settings):
        calls.append((module, {key: value for key, value in settings.items() if value is not None}))
        if kills and not (kills.append(kills.pop() - 1), kills[0])[1]:
            sys.exit(143)
        write(module, settings)

    def write(module, settings):
        output = settings.get("output_dir") or settings.get("model_dir")
        if module == "dataset.create_tfrecord":
            shutil.copytree(drawn, output, dirs_exist_ok=True)
        elif module == "doctor":
            (output / "doctor.json").write_text('{"suggested": {"settings": {}}}')
        elif settings.get("benchmark"):
            (output / "time_log.txt").parent.mkdir(exist_ok=True)
            (output / "time_log.txt").write_text(
                f'DLLL {{"step": "PARAMETER", "timestamp": "{time.time() + 30}", "data": {{}}}}\n'
                'DLLL {"data": {"latency_training_p50": 0.5, "peak_device_memory_bytes": null, "load_average": 0}}\n'
            )
        elif module == "train" and settings.get("testdev_dir"):
            fold = int(settings["testdev_dir"].name[-1])
            for epoch, ap in AP[fold].items():
                (output / f"metrics-{epoch}.json").write_text(json.dumps({"AP": ap, **NUMBERS}))
            (output / "metrics-final.json").write_text(json.dumps({"AP": ap, **NUMBERS}))
            (settings["testdev_dir"] / TESTDEV_FILE_NAME).write_text(f'[{{"image_id": {fold}}}]')
        elif module == "eval":
            settings["output_json"].write_text(
                json.dumps({"AP": 0.375, **NUMBERS, "intervals": INTERVALS, "score_thresholds": {"overall": 1}})
            )
            found = sorted(Path(settings["testdev_dir"]).glob(f"fold_*/{TESTDEV_FILE_NAME}"))
            content = [entry for path in found for entry in json.loads(path.read_text())]
            (settings["testdev_dir"] / TESTDEV_FILE_NAME).write_text(json.dumps(content))
        elif module == "export":
            (output / "detector.onnx").touch()

    for module in (steps, chosen_settings, plan, cross_validation):
        monkeypatch.setattr(module, "run_program", run)
    monkeypatch.setattr(cross_validation, "checkpoint_prefix", str)
    monkeypatch.setattr(cross_validation, "store_thresholds", lambda *arguments: stored.append(arguments))
    monkeypatch.setattr(plan, "smallest_usable_size", lambda images, hparams, sizes, *, fixed: sizes[0])
    return calls, kills, stored


def config(folder, **changes):
    settings = {
        "images": "photos", "output_dir": str(folder), "weights": "none", "model_name": "efficientdet-d0",
        "hparams": "image_size=256", "folds": 2, "minutes": 60.0,
    }  # fmt: skip
    return QuickstartConfig(**settings | changes)


def test_each_fold_is_trained_without_its_shard_and_all_of_it_at_last(programs, tmp_path, capsys):
    calls, _, stored = programs
    out = tmp_path / "out"
    quickstart(config(out, group_by="folder"))
    assert (calls[0][1]["folds"], calls[0][1]["group_by"]) == (2, "folder")
    assert [module for module, _ in calls[3:]] == ["train"] * 4 + ["eval"] + ["train"] * 2 + ["export"]
    small, first, _, second, evaluation, small_of_all, last, export = [settings for _, settings in calls[3:]]
    assert first["training_file_pattern"] == f"{out}/records/train-0000[!0]-*" == small["training_file_pattern"]
    assert first["val_file_pattern"] == f"{out}/records/train-00000-*"
    assert "val_file_pattern" not in small
    assert first["model_dir"] == out / "cross_validation" / "fold_0" / "model"
    assert first["pretrained_ckpt"] == small["model_dir"] == out / "cross_validation" / "fold_0" / "model_smaller_input"
    assert second["training_file_pattern"] == f"{out}/records/train-0000[!1]-*"
    same = ("hparams", "lr", "batch_size", "num_epochs", "num_examples_per_epoch")
    assert [first[key] for key in same] == [second[key] for key in same]
    # One half of each of 2 + 2 / (2 - 1) shares, and the final one gets what the folds leave
    assert small["max_minutes"] == first["max_minutes"] == second["max_minutes"] == pytest.approx(60 / 8, rel=0.1)
    assert small_of_all["max_minutes"] == pytest.approx(60 / 2, rel=0.1)  # these folds took no time
    assert evaluation["calibrate_scores"]
    assert evaluation["results"] == f"{out}/cross_validation/fold_*/{TESTDEV_FILE_NAME}"
    assert evaluation["val_file_pattern"] == last["training_file_pattern"] == f"{out}/records/train-*"
    assert (last["training_mode"], last["num_epochs"]) == ("train300", 40)  # 20 of half of the images
    assert small_of_all["num_epochs"] == small["num_epochs"]
    assert "val_file_pattern" not in export
    assert stored == [(str(out / "model"), {"overall": 1})]
    assert json.loads((out / "cross_validation" / "detections.json").read_text()) == [{"image_id": 0}, {"image_id": 1}]
    truth = json.loads((out / "cross_validation" / "instances.json").read_text())
    assert len(truth["images"]) == 5
    page = (out / "cross_validation" / "report.html").read_text()
    assert "Mean AP 0.350, standard error 0.050." in page  # of 0.4 and 0.3
    printed = capsys.readouterr().out
    assert "AP 0.375 (95 % interval 0.340 to 0.410), AP50 0.750 on the held-out images of 2 folds; mean AP" in printed
    assert "mean AP of the folds 0.350, standard error 0.050" in printed
    assert "without its fold (95 % interval 0.340 to 0.410)." in page
    assert f"{out}/cross_validation/report.html: cross-validation" in printed
    assert printed.index("chose cross-validation: 2 trainings of about") < printed.index("time: ")


def test_a_kill_at_any_moment_loses_no_finished_step(programs, tmp_path):
    calls, kills, _ = programs
    quickstart(config(tmp_path / "whole"))
    whole = [module for module, _ in calls]
    for moment in range(1, len(whole) + 1):
        del calls[:]
        kills[:] = [moment]
        out = tmp_path / f"killed_{moment}"
        with pytest.raises(SystemExit):
            quickstart(config(out))
        done = len(calls) - 1
        kills.clear()
        quickstart(config(out))
        folded = [settings["model_dir"] for module, settings in calls if module == "train"]
        assert set(folded[1:]) >= {out / "cross_validation" / f"fold_{fold}" / "model" for fold in range(2)}
        again = 3 if moment <= 1 else 2 if moment <= 3 else 1  # the choice is of two programs
        assert len(calls) <= len(whole) + again, moment
        assert [module for module, _ in calls][:done] == whole[:done]
        assert json.loads((out / "cross_validation" / "folds.json").read_text())["epochs"] == 40


def test_more_minutes_train_all_folds_longer(programs, tmp_path):
    calls, _, _ = programs
    quickstart(config(tmp_path / "out"))
    before = [settings for module, settings in calls if module == "train"]
    del calls[:]
    quickstart(config(tmp_path / "out", minutes=120.0))
    assert [module for module, _ in calls] == ["train", "train", "eval", "train", "export"]
    assert calls[0][1]["model_dir"] == tmp_path / "out" / "cross_validation" / "fold_0" / "model"
    assert calls[0][1]["max_minutes"] == pytest.approx(2 * before[2]["max_minutes"], rel=0.1)
    assert calls[0][1]["num_epochs"] == 2 * before[2]["num_epochs"]
    assert calls[3][1]["num_epochs"] == 40  # as the folds found


def test_too_few_minutes_are_told_before_the_folds(programs, tmp_path, capsys):
    calls, _, _ = programs
    quickstart(config(tmp_path / "out", minutes=4.0, folds=2))
    printed = capsys.readouterr().out
    warned = "that a good AP needs at 256 pixels, which need about --minutes="
    assert warned in printed
    needed = printed.partition(warned)[2].split()[0]
    assert f"about --minutes={needed}, which a good AP needs" in printed
    del calls[:]
    quickstart(config(tmp_path / "longer", minutes=float(needed)))
    assert warned not in capsys.readouterr().out


def test_the_best_epochs_of_the_folds():
    assert best_epochs([{10: 0.2, 20: 0.4}, {10: 0.3, 20: 0.4}]) == 40  # passes of half of the images
    assert best_epochs([{10: 0.4, 20: 0.3, 27: 0.2}] * 5) == 12  # the AP falls after 10
    assert best_epochs([{10: 0.1, 20: 0.2, 24: 0.3}, {10: 0.1, 20: 0.2, 26: 0.3}, {10: 0.1, 31: 0.4}]) == 39
    assert choices.shares_of_folds(5) == 6.25
