import json
import sys
from types import SimpleNamespace

import pytest
from mlperf_checker import verdict

from efficientdet.families.registry import family_of
from efficientdet.optimization.optimizer import Schedule
from efficientdet.plugins.loggers.mlperf import MlperfLog, submission, torch_parameters
from efficientdet.run_log.journal import Journal
from program_support.errors import InputError

RETINANET = family_of("retinanet-resnext50")


def config(path, **changes):
    """A stand-in of TrainingConfig, with the recipe's numbers of a RetinaNet."""
    hparams = SimpleNamespace(optimizer="adam", weight_decay=0.0, lr_warmup_epoch=1.0, family=RETINANET, to_dict=dict)
    settings = {
        "mlperf_log": str(path),
        "mlperf_submission": ("submission_org=we", "submission_platform=8 x A100"),
        "seed": 1,
        "accumulate_steps": 1,
        "hparams": hparams,
    }
    return SimpleNamespace(**{**settings, **changes})


def write_training(settings, names=()):
    """The events of a training, by way of its run log."""
    with Journal(None, loggers=[MlperfLog(settings, None)]) as journal:
        journal.event("initialization_started", processes=8)
        journal.event(
            "run_started",
            schedule=Schedule(peak_learning_rate=1e-4, warmup_init=1e-7, warmup_steps=10, total_steps=100),
            global_batch_size=256,
            images=1_170_301,
            evaluated_images=24_781,
            images_of_batch_statistics=32,
            weight_names=list(names),
        )
        for epoch, accuracy in enumerate((0.2, 0.345), start=1):
            journal.event("epoch_started", epoch=epoch)
            journal.event("epoch_finished", epoch=epoch, images_per_second=25.5)
            journal.event("evaluation_started", epoch=epoch)
            journal.event("evaluation_finished", epoch=epoch, average_precision=accuracy)
        journal.event("run_finished", success=True)


def test_lines_are_written_and_printed_at_once(tmp_path, capsys):
    """As the Kubernetes jobs ask for, with --mlperf_log=FILE,-"""
    pytest.importorskip("mlperf_logging")
    path = tmp_path / "mlperf.log"
    write_training(config(f"{path},-"))
    printed = capsys.readouterr().out
    assert printed == path.read_text()
    assert printed.count("eval_accuracy") == 2
    print("standard output is still open")
    assert capsys.readouterr().out


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


@pytest.mark.parametrize(
    ("ruleset", "changes"),
    [
        ("2.1.0", ("submission_division=closed",)),
        ("2.1.0", ()),
        ("5.1.0", ("submission_division=closed", "submission_benchmark=retinanet")),
    ],
)
def test_a_retinanet_passes_the_rules(tmp_path, golden_folder, ruleset, changes):
    pytest.importorskip("mlperf_logging")
    names = list(names_of_retinanet(golden_folder))
    assert len(torch_parameters(names)) == len(set(torch_parameters(names))) == 89
    settings = config(tmp_path / "log")
    settings.mlperf_submission += changes
    write_training(settings, names)
    assert verdict(tmp_path / "log", ruleset) == 0


def test_entries_of_a_submission():
    assert submission(["cache_clear=True", "submission_org=a=b"]) == {"cache_clear": True, "submission_org": "a=b"}


@pytest.mark.parametrize("item", ["submission_org", "submission_org=", "org=we"])
def test_refuses_another_entry(item):
    with pytest.raises(InputError, match=f"--mlperf_submission={item}: expected KEY=VALUE, KEY one of submission_"):
        submission([item])


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlperf_logging.mllog", None)
    with pytest.raises(InputError, match="--mlperf_log needs the package mlperf-logging"):
        MlperfLog(config(tmp_path / "log"), None)
