import pytest

from dataset.class_names import ClassNames
from efficientdet import memory
from efficientdet.config import TrainingConfig
from efficientdet.hyperparameters import hyperparameters_of


def message(monkeypatch, *, peak, batch_size, model="efficientdet-d0", **changes):
    monkeypatch.setattr(memory, "peak_device_memory", lambda: peak)
    config = TrainingConfig(hparams=hyperparameters_of(model, {}), records=("r",), val_records=(), val_json_file=None,
                            class_names=ClassNames((1,), ("a",)), model_dir="m", training_mode="train300",
                            batch_size=batch_size, **changes)
    return str(memory.out_of_memory(RuntimeError(), config))


def test_the_references_own_batches(monkeypatch):
    assert "--batch_size=100 should fit" in message(monkeypatch, peak=40e9, batch_size=256, precision="mixed_float16")
    assert "--batch_size=52 should fit" in message(monkeypatch, peak=40e9, batch_size=256, precision="float32")


def test_always_less_than_what_did_not_fit(monkeypatch):
    assert "--batch_size=7 should fit" in message(monkeypatch, peak=1e12, batch_size=8, precision="float32")
    assert "--batch_size=4 should fit" in message(monkeypatch, peak=None, batch_size=8, precision="float32")


@pytest.mark.parametrize("batch_size", [1, 2])
def test_not_even_one(monkeypatch, batch_size):
    assert "not even one image fits" in message(monkeypatch, peak=1e9, batch_size=batch_size, model="efficientdet-d7",
                                                precision="float32")
