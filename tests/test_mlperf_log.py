import json
from pathlib import Path

import pytest

from efficientdet.observing.mlperf_log import MlperfLog, NoMlperfLog
from object_detection.errors import InputError

HYPERPARAMETERS = {"seed": 1, "global_batch_size": 64, "gradient_accumulation_steps": 1, "train_samples": 100,
                   "eval_samples": 10, "opt_name": "sgd", "opt_base_learning_rate": 0.08, "opt_weight_decay": 4e-5,
                   "opt_learning_rate_warmup_epochs": 1.0, "opt_learning_rate_warmup_factor": 0.1,
                   "opt_learning_rate_warmup_steps": 10}


def a_training(log):
    log.starts(platform="1 x cpu", benchmark="efficientdet")
    log.hyperparameters(HYPERPARAMETERS)
    log.run_starts()
    for epoch in (1, 2):
        log.epoch_starts(epoch)
        log.epoch_stops(epoch)
        log.throughput(25.5, epoch=epoch)
        log.evaluation_starts(epoch)
        log.evaluation_stops(epoch, accuracy=0.1 * epoch)
    log.run_stops(success=True)


@pytest.fixture
def lines(tmp_path):
    pytest.importorskip("mlperf_logging")
    path = tmp_path / "mlperf.log"
    a_training(MlperfLog(str(path)))
    return path


def test_events_in_order(lines):
    events = [json.loads(line.split(":::MLLOG ")[1]) for line in lines.read_text().splitlines()]
    keys = [event["key"] for event in events]
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("epoch_start") < keys.index("eval_accuracy")
    assert keys[-1] == "run_stop"
    assert events[-1]["metadata"]["status"] == "success"
    accuracies = [(event["metadata"]["epoch_num"], event["value"]) for event in events if event["key"] == "eval_accuracy"]
    assert accuracies == [(1, 0.1), (2, 0.2)]
    values = {event["key"]: event["value"] for event in events}
    assert {key: values[key] for key in HYPERPARAMETERS} == HYPERPARAMETERS
    assert values["tracked_stats"] == {"throughput": 25.5}


def test_a_second_training_of_the_process_writes_its_lines_once(lines, capfd):
    first = lines.read_text().splitlines()
    a_training(MlperfLog(str(lines)))
    assert len(lines.read_text().splitlines()) == 2 * len(first)
    assert capfd.readouterr() == ("", "")


RULES = Path(__file__).with_name("mlperf_efficientdet.yaml")
REQUIRED = ("submission_benchmark", "submission_org", "submission_platform", "submission_division", "submission_status",
            "cache_clear", "init_start", "init_stop", "run_start", "run_stop", "epoch_start", "epoch_stop", "eval_start",
            "eval_stop", "eval_accuracy", *HYPERPARAMETERS)


def complies(path):
    """By MLPerf's own checker; there is no EfficientDet among its rules, so with ours."""
    compliance = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    checker = compliance.make_checker("training", "5.1.0", quiet=True, werror=True)
    return compliance.main(str(path), str(RULES), checker)[0]


def test_the_packages_own_checker_takes_it(lines):
    assert complies(lines)


@pytest.mark.parametrize("key", REQUIRED)
def test_the_checker_misses_each_line(lines, key):
    kept = [line for line in lines.read_text().splitlines() if f'"key": "{key}"' not in line]
    lines.write_text("\n".join(kept) + "\n")
    assert not complies(lines)


@pytest.mark.parametrize(("found", "other"), [
    ('"efficientdet"', '"ssd"'), ('"sgd"', '"adam"'), ('"success"', '"perhaps"'), ('"epoch_num": 2', '"epoch": 2'),
    ('"run_start"', '"eval_stop"'), ('"value": 0.2', '"value": 20.0')])
def test_the_checker_sees_what_is_wrong(lines, found, other):
    assert found in lines.read_text()
    lines.write_text(lines.read_text().replace(found, other))
    assert not complies(lines)


def test_the_checker_sees_an_epoch_outside_the_run(lines):
    lines.write_text("\n".join(reversed(lines.read_text().splitlines())) + "\n")
    assert not complies(lines)


def test_the_name_of_the_benchmark_is_the_callers(tmp_path):
    pytest.importorskip("mlperf_logging")
    log = MlperfLog(str(tmp_path / "log"))
    log.starts(platform="1 x cpu", benchmark="retinanet")
    log.run_stops(success=True)
    events = [json.loads(line.split(":::MLLOG ")[1]) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["value"] for event in events if event["key"] == "submission_benchmark"] == ["retinanet"]


def test_a_path_that_cannot_be_written(tmp_path):
    pytest.importorskip("mlperf_logging")
    with pytest.raises(InputError, match="nowhere/log: cannot be written"):
        MlperfLog(str(tmp_path / "nowhere" / "log"))


def test_off_it_takes_every_call():
    a_training(NoMlperfLog())


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mlperf_logging.mllog", None)
    monkeypatch.setitem(__import__("sys").modules, "mlperf_logging.mllog", None)
    with pytest.raises(InputError, match="--mlperf_log needs the package mlperf-logging"):
        MlperfLog(str(tmp_path / "log"))
