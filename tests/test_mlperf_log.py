import json

import pytest
from mlperf_checker import verdict

from efficientdet.families.registry import family_of
from efficientdet.families.retinanet.family import FAMILY as RETINANET_FAMILY
from efficientdet.families.ssd.family import FAMILY as SSD_FAMILY
from efficientdet.run_log.journal import Journal
from efficientdet.run_log.mlperf_log import MlperfLog, Submission, check_submission
from program_support.errors import InputError

HYPERPARAMETERS = {
    "seed": 1,
    "global_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "train_samples": 100,
    "eval_samples": 10,
    "opt_name": "sgd",
    "opt_base_learning_rate": 0.08,
    "opt_weight_decay": 4e-5,
    "opt_learning_rate_warmup_epochs": 1.0,
    "opt_learning_rate_warmup_factor": 0.1,
    "opt_learning_rate_warmup_steps": 10,
}


ANYTHING = Submission(platform="x", benchmark="x")


def a_training(path):
    write_training(
        path, Submission(platform="1 x cpu", benchmark="efficientdet"), HYPERPARAMETERS, accuracies=(0.1, 0.2)
    )


def write_training(path, submission, values, *, tensors=(), accuracies):
    """The events of a training, by way of its run log."""
    log = MlperfLog(str(path), submission)
    with Journal(None, listeners=[log]) as journal:
        journal.event("initialization_started")
        log.hyperparameters(values)
        log.weights_initialized(tensors)
        log.start_clock()
        for epoch, accuracy in enumerate(accuracies, start=1):
            journal.event("epoch_started", epoch=epoch)
            journal.event("epoch_finished", epoch=epoch, images_per_second=25.5)
            journal.event("evaluation_started", epoch=epoch)
            journal.event("evaluation_finished", epoch=epoch, average_precision=accuracy)
        journal.event("run_finished", success=True)


@pytest.fixture
def lines(tmp_path):
    pytest.importorskip("mlperf_logging")
    path = tmp_path / "mlperf.log"
    a_training(path)
    return path


def test_events_in_order(lines):
    events = [json.loads(line.split(":::MLLOG ")[1]) for line in lines.read_text().splitlines()]
    keys = [event["key"] for event in events]
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("epoch_start") < keys.index("eval_accuracy")
    assert keys[-1] == "run_stop"
    assert events[-1]["metadata"]["status"] == "success"
    accuracies = [
        (event["metadata"]["epoch_num"], event["value"]) for event in events if event["key"] == "eval_accuracy"
    ]
    assert accuracies == [(1, 0.1), (2, 0.2)]
    values = {event["key"]: event["value"] for event in events}
    assert {key: values[key] for key in HYPERPARAMETERS} == HYPERPARAMETERS
    assert values["tracked_stats"] == {"throughput": 25.5}


def test_lines_are_written_and_printed_at_once(tmp_path, capsys):
    """As the Kubernetes jobs ask for, with --mlperf_log=FILE,-"""
    pytest.importorskip("mlperf_logging")
    path = tmp_path / "mlperf.log"
    a_training(f"{path},-")
    printed = capsys.readouterr().out
    assert printed == path.read_text()
    assert printed.count("eval_accuracy") == 2
    print("standard output is still open")
    assert capsys.readouterr().out


def test_a_second_training_of_the_process_writes_its_lines_once(lines, capfd):
    first = lines.read_text().splitlines()
    a_training(lines)
    assert len(lines.read_text().splitlines()) == 2 * len(first)
    assert capfd.readouterr() == ("", "")


def test_the_name_of_the_benchmark_is_the_callers(tmp_path):
    pytest.importorskip("mlperf_logging")
    log = MlperfLog(
        str(tmp_path / "log"),
        Submission(
            platform="1 x cpu",
            benchmark="retinanet",
            organization="we",
            division="closed",
            status="onprem",
            cache_cleared=True,
        ),
    )
    log.initialization_started()
    log.run_finished(success=True)
    events = [json.loads(line.split(":::MLLOG ")[1]) for line in (tmp_path / "log").read_text().splitlines()]
    found = {event["key"].removeprefix("submission_"): event["value"] for event in events}
    wanted = {
        "benchmark": "retinanet",
        "platform": "1 x cpu",
        "org": "we",
        "division": "closed",
        "status": "onprem",
        "cache_clear": True,
    }
    assert {key: found[key] for key in wanted} == wanted


# What the program logs of a RetinaNet and of an SSD300, with the recipes' numbers.
RETINANET = {
    **HYPERPARAMETERS,
    "global_batch_size": 256,
    "train_samples": 1_170_301,
    "eval_samples": 24_781,
    "opt_name": "adam",
    "opt_base_learning_rate": 1e-4,
    "opt_weight_decay": 0.0,
    "opt_learning_rate_warmup_factor": 1e-3,
}


def names_of_retinanet(golden_folder):
    """Ours, of torch's."""
    shapes = json.loads(
        (golden_folder / "families" / "names" / "mlcommons_retinanet_resnext50_32x4d_fpn.json").read_text()
    )
    norms = {name.removesuffix(".running_var") for name in shapes if name.endswith(".running_var")}
    for name in shapes:
        layer, role = name.rsplit(".", 1)
        roles = {"weight": "gamma", "bias": "beta"} if layer in norms else {"weight": "kernel"}
        yield "/".join([*layer.split("."), roles.get(role, role)])


@pytest.mark.parametrize(("ruleset", "division"), [("2.1.0", "closed"), ("2.1.0", "open"), ("5.1.0", "closed")])
def test_a_retinanet_passes_the_rules(tmp_path, golden_folder, ruleset, division):
    pytest.importorskip("mlperf_logging")
    tensors = RETINANET_FAMILY.mlperf_tensors(names_of_retinanet(golden_folder))
    assert len(tensors) == len(set(tensors)) == 89
    submission = Submission(
        platform="8 x A100", benchmark=RETINANET_FAMILY.mlperf_benchmark(ruleset), division=division
    )
    write_training(tmp_path / "log", submission, RETINANET, tensors=tensors, accuracies=(0.2, 0.345))
    assert verdict(tmp_path / "log", ruleset) == 0


def test_the_benchmark_of_a_ruleset():
    assert [RETINANET_FAMILY.mlperf_benchmark(rules) for rules in (None, "2.0.0", "4.1.0", "5.0.0", "10.0.0")] == [
        "ssd",
        "ssd",
        "ssd",
        "retinanet",
        "retinanet",
    ]
    assert [SSD_FAMILY.mlperf_benchmark(rules) for rules in (None, "0.7.0", "1.1.0")] == ["ssd", "ssd", "ssd"]
    assert family_of("mask-rcnn-resnet50").mlperf_benchmark(None) == "maskrcnn"
    with pytest.raises(InputError, match=r"--mlperf_ruleset=1\.1\.0: has no RetinaNet benchmark"):
        RETINANET_FAMILY.mlperf_benchmark("1.1.0")
    with pytest.raises(InputError, match=r"--mlperf_ruleset=2\.0\.0: has no SSD300 benchmark"):
        SSD_FAMILY.mlperf_benchmark("2.0.0")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"division": "shut"}, "--mlperf_division=shut: expected one of open, closed"),
        ({"status": "done"}, "--mlperf_status=done: expected one of research"),
        ({"ruleset": "2.1"}, "--mlperf_ruleset=2.1: expected a version such as 2.1.0"),
        ({"organization": " "}, "--mlperf_organization is empty"),
        ({"platform": ""}, "--mlperf_platform is empty"),
    ],
)
def test_a_head_that_no_rules_take(values, message):
    sound = {"division": "open", "status": "research", "ruleset": None, "organization": "we", "platform": None}
    check_submission(**sound)
    with pytest.raises(InputError, match=message):
        check_submission(**{**sound, **values})


def test_a_path_that_cannot_be_written(tmp_path):
    pytest.importorskip("mlperf_logging")
    with pytest.raises(InputError, match="nowhere/log: cannot be written"):
        MlperfLog(str(tmp_path / "nowhere" / "log"), ANYTHING)


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mlperf_logging.mllog", None)
    monkeypatch.setitem(__import__("sys").modules, "mlperf_logging.mllog", None)
    with pytest.raises(InputError, match="--mlperf_log needs the package mlperf-logging"):
        MlperfLog(str(tmp_path / "log"), ANYTHING)
