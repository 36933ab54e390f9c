import json
import logging

import pytest

from efficientdet.mlperf_log import MlperfLog, NoMlperfLog
from object_detection.errors import InputError

HYPERPARAMETERS = {"seed": 1, "global_batch_size": 64, "gradient_accumulation_steps": 1, "train_samples": 100,
                   "eval_samples": 10, "opt_name": "sgd", "opt_base_learning_rate": 0.08, "opt_weight_decay": 4e-5,
                   "opt_learning_rate_warmup_epochs": 1.0, "opt_learning_rate_warmup_factor": 0.1,
                   "opt_learning_rate_warmup_steps": 10}


def a_training(log):
    log.starts(platform="1 x cpu")
    log.hyperparameters(HYPERPARAMETERS)
    log.run_starts()
    for epoch in (1, 2):
        log.epoch_starts(epoch)
        log.epoch_stops(epoch)
        log.evaluation_starts(epoch)
        log.evaluation_stops(epoch, accuracy=0.1 * epoch)
    log.run_stops(success=True)


@pytest.fixture
def lines(tmp_path):
    pytest.importorskip("mlperf_logging")
    path = tmp_path / "mlperf.log"
    a_training(MlperfLog(str(path)))
    for handler in logging.getLogger(f"efficientdet.mlperf_log.{path}").handlers:
        handler.close()
    return path


def test_events_in_order(lines):
    events = [json.loads(line.split(":::MLLOG ")[1]) for line in lines.read_text().splitlines()]
    keys = [event["key"] for event in events]
    assert keys.index("init_stop") < keys.index("run_start") < keys.index("epoch_start") < keys.index("eval_accuracy")
    assert keys[-1] == "run_stop"
    assert events[-1]["metadata"]["status"] == "success"
    accuracies = [(event["metadata"]["epoch_num"], event["value"]) for event in events if event["key"] == "eval_accuracy"]
    assert accuracies == [(1, 0.1), (2, 0.2)]
    assert {event["key"]: event["value"] for event in events}.items() >= HYPERPARAMETERS.items()


RULES = """
- KEY: {NAME: submission_benchmark, REQ: EXACTLY_ONE, CHECK: " v['value'] == 'efficientdet' "}
- KEY: {NAME: cache_clear, REQ: AT_LEAST_ONE}
- KEY: {NAME: init_start, REQ: EXACTLY_ONE}
- KEY: {NAME: init_stop, REQ: EXACTLY_ONE}
- KEY: {NAME: run_start, REQ: EXACTLY_ONE}
- KEY: {NAME: run_stop, REQ: EXACTLY_ONE, CHECK: " v['metadata']['status'] in ['success', 'aborted'] "}
- KEY: {NAME: epoch_start, REQ: AT_LEAST_ONE, CHECK: " 'epoch_num' in v['metadata'] "}
- KEY: {NAME: eval_accuracy, REQ: AT_LEAST_ONE, CHECK: " 'epoch_num' in v['metadata'] "}
- KEY: {NAME: global_batch_size, REQ: EXACTLY_ONE, CHECK: " v['value'] > 0 "}
- KEY: {NAME: gradient_accumulation_steps, REQ: EXACTLY_ONE, CHECK: " v['value'] > 0 "}
- KEY: {NAME: opt_name, REQ: EXACTLY_ONE, CHECK: " v['value'] == 'sgd' "}
"""


def test_the_packages_own_checker_takes_it(lines, tmp_path):
    compliance = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    checker = compliance.make_checker("training", "5.1.0", quiet=True, werror=False)
    assert compliance.main(str(lines), str(rules), checker)[0]
    lines.write_text(lines.read_text().replace('"efficientdet"', '"ssd"'))
    checker = compliance.make_checker("training", "5.1.0", quiet=True, werror=False)
    assert not compliance.main(str(lines), str(rules), checker)[0]


def test_a_path_that_cannot_be_written(tmp_path):
    pytest.importorskip("mlperf_logging")
    with pytest.raises(InputError, match="nowhere/log: cannot be written"):
        MlperfLog(str(tmp_path / "nowhere" / "log"))


def test_off_it_takes_every_call():
    a_training(NoMlperfLog())


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "mlperf_logging", None)
    with pytest.raises(InputError, match="--mlperf_log needs the package mlperf-logging"):
        MlperfLog(str(tmp_path / "log"))
