"""How large a batch is where none is given, and what is said where one did not fit."""

import math
from dataclasses import replace
from itertools import chain

import pytest
import tensorflow as tf
from log_lines import logged
from unfilled import unfilled_weights

from dataset.class_names import ClassNames
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices import device, memory
from efficientdet.devices.distributed import World
from efficientdet.devices.memory import is_out_of_memory, report_out_of_memory, with_batch_sizes
from efficientdet.devices.runtime import Runtime
from efficientdet.families.registry import build_detector, family_of, hyperparameters_of
from efficientdet.training import loop as train_loop
from program_support.errors import InputError

FLOAT32, FLOAT16 = (Runtime(precision=precision, use_xla=False) for precision in ("float32", "mixed_float16"))
GB = 1e9


@pytest.fixture
def machine(monkeypatch):
    """Makes this one a machine with so much memory."""

    def pretend(*, host=0.0, accelerator=None, peak=None):
        monkeypatch.setattr(memory, "accelerator_count", lambda: 0 if accelerator is None else 1)
        monkeypatch.setattr(memory, "total_device_memory", lambda: accelerator)
        monkeypatch.setattr(memory, "total_host_memory", lambda: host)
        monkeypatch.setattr(memory, "peak_device_memory", lambda: peak)

    return pretend


def config(model="efficientdet-d0", image_size=512, **changes):
    return TrainingConfig(
        hparams=hyperparameters_of(model, {"image_size": image_size}),
        records=("r",),
        val_records=(),
        val_json_file=None,
        class_names=ClassNames((1,), ("a",)),
        model_dir="m",
        training_mode="train300",
        **changes,
    )


def batch_sizes(runtime=FLOAT32, world=None, **changes):
    found, _ = logged(with_batch_sizes, config(**changes), runtime, world or World())
    return found.batch_size, found.eval_batch_size


@pytest.mark.parametrize(
    ("model", "classes", "side"),
    [
        ("efficientdet-d0", 90, 128),
        ("efficientdet-lite0", 90, 128),
        ("retinanet-resnet18", 264, 128),
        ("ssd300-resnet34", 80, 300),
    ],
)
def test_numbers_per_pixel_are_those_of_the_network(model, classes, side):
    hparams = hyperparameters_of(model, {"image_size": side})
    with unfilled_weights():
        network = build_detector(hparams, num_classes=classes).network
    assert family_of(model).activations_per_pixel(hparams) == pytest.approx(counted(network) / side**2, rel=0.02)


def test_numbers_of_regions_are_those_of_the_second_stage():
    """A network for 40 proposals and 10 detections draws as many regions and masks."""
    side, regions = 128, {"proposals": 40, "regions_an_image": 40, "positive_regions": 0.25}
    hparams = hyperparameters_of(
        "mask-rcnn-resnet18", {"image_size": side, "nms_configs.max_output_size": 10, **regions}
    )
    with unfilled_weights():
        detector = build_detector(hparams, num_classes=90)
    of_heads = sum(
        math.prod(output.shape[1:]) * (10 if "mask" in node.operation.name else 40)
        for node in chain.from_iterable(detector.network._nodes_by_depth.values())
        for output in node.outputs
        if node.operation.name.startswith("roi_heads.")
    )
    assert family_of("mask-rcnn-resnet18").activations_per_pixel(hparams) == pytest.approx(
        (counted(detector.first_stage) + of_heads) / side**2, rel=0.01
    )


def counted(network):
    outputs = chain.from_iterable(node.outputs for node in chain.from_iterable(network._nodes_by_depth.values()))
    return sum(math.prod(output.shape[1:]) for output in outputs)


def test_default_batches_by_hand(machine):
    # D0 in float32: 599 numbers x 512 x 512 pixels x 4 bytes x 1.25 = 0.785 GB an image, beside 2 GB.
    machine(accelerator=80 * GB)  # 72 GB of it: 89 images
    assert batch_sizes() == (64, 64)
    machine(accelerator=40 * GB)  # 36 GB of it: 43 images in float32, 86 in float16
    assert batch_sizes() == (32, 64)
    assert batch_sizes(FLOAT16) == (64, 64)
    machine(host=100 * GB)  # a CPU gains nothing by larger ones
    assert batch_sizes() == (16, 16)
    machine(host=16 * GB)  # 9.6 GB of it: 9 images
    assert batch_sizes() == (8, 16)
    assert batch_sizes(image_size=256) == (16, 16)
    assert batch_sizes(model="efficientdet-d4") == (2, 16)  # 2.11 GB an image
    labeled = replace(config(), hparams=hyperparameters_of("efficientdet-d0", {"name": "mine"}))
    assert logged(with_batch_sizes, labeled, FLOAT32, World())[0].batch_size == 8  # a label is no model
    machine(host=1 * GB)
    assert batch_sizes() == (1, 1)
    machine(accelerator=0)  # unknown: the reference's batch
    assert batch_sizes() == (64, 64)


def test_what_is_given_stands(machine):
    machine(host=1 * GB)
    assert batch_sizes(batch_size=200, eval_batch_size=10) == (200, 10)
    assert batch_sizes(batch_size=200) == (200, 1)
    assert logged(with_batch_sizes, config(batch_size=200, eval_batch_size=10), FLOAT32, World())[1] == []


def test_line(machine):
    machine(host=16 * GB)
    assert logged(with_batch_sizes, config(), FLOAT32, World())[1] == [
        "--batch_size=8 --eval_batch_size=16, chosen automatically: 16 GB for this process on a CPU, float32"
    ]
    assert logged(with_batch_sizes, config(batch_size=2), FLOAT32, World())[1][0].startswith(
        "--eval_batch_size=16, chosen automatically"
    )


class _OtherHasLess(World):
    """The first of two ranks; the other machine's memory is good for 4 images."""

    def gather(self, value):
        return [value, 4]


def test_ranks_share_the_memory_of_a_machine_and_agree(machine):
    machine(host=32 * GB)
    assert batch_sizes() == (16, 16)
    assert batch_sizes(world=World(local_size=2)) == (8, 16)
    assert batch_sizes(world=_OtherHasLess()) == (4, 4)


def test_training_gets_the_default_batch_and_says_it(machine, monkeypatch, tmp_path, capsys):
    class Ended(Exception):
        pass

    def training(given, *_, **__):
        raise Ended(given.batch_size)

    machine(host=16 * GB)
    monkeypatch.setattr(train_loop, "Run", training)
    with pytest.raises(Ended, match=r"^8$"):
        train_loop.train(config_in(tmp_path))
    assert "--batch_size=8 --eval_batch_size=16, chosen automatically" in capsys.readouterr().out


def config_in(folder, **changes):
    return TrainingConfig(**{**vars(config(precision="float32", **changes)), "model_dir": str(folder)})


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.8 GiB for an array"),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes."),
    ],
)
def test_every_kind_of_out_of_memory_is_one_line(error, machine, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise error

    assert is_out_of_memory(error)
    machine(host=16 * GB)
    monkeypatch.setattr(train_loop, "Run", fail)
    with pytest.raises(InputError, match=r"^out of memory at --batch_size=12 .* --batch_size=9 should fit") as told:
        train_loop.train(config_in(tmp_path, batch_size=12))
    assert told.value.__cause__ is error
    with (
        pytest.raises(InputError, match=r"^out of memory at --batch_size=12: try --batch_size=6$"),
        report_out_of_memory(batch_size=12),
    ):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("RESOURCE_EXHAUSTED"),
        RuntimeError("shapes"),
        OSError(12, "x"),
        tf.errors.InternalError(None, None, "x"),
        InputError("a"),
    ],
)
def test_no_other_error_is_taken_for_it(error):
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)), report_out_of_memory(batch_size=2):
        raise error


def test_jax_says_resource_exhausted():
    jax = pytest.importorskip("jax")
    with pytest.raises((RuntimeError, ValueError)) as raised:
        jax.jit(lambda: jax.numpy.ones((1 << 24, 1 << 24), "float32") + 1)().block_until_ready()
    assert is_out_of_memory(raised.value)


def advice(runtime, *, batch_size, **changes):
    return str(
        memory.out_of_memory(config(batch_size=batch_size, eval_batch_size=1, **changes), runtime, local_ranks=1)
    )


def test_advice_by_hand(machine):
    machine(accelerator=80 * GB, peak=41.3 * GB)  # 39.3 GB for images of 0.785 GB, or of half of that
    assert "--batch_size=50 should fit" in advice(FLOAT32, batch_size=256)
    assert "--batch_size=100 should fit" in advice(FLOAT16, batch_size=256)
    assert "512 x 512 pixels, mixed_float16" in advice(FLOAT16, batch_size=256)  # with no flag that says so
    assert "--batch_size=200 should fit" in advice(FLOAT32, batch_size=256, image_size=256)
    machine(host=16 * GB)
    assert "--batch_size=9 should fit" in advice(FLOAT32, batch_size=12)


def test_advice_is_always_less_than_what_did_not_fit(machine):
    machine(accelerator=80 * GB, peak=1000 * GB)
    assert "--batch_size=4 should fit" in advice(FLOAT32, batch_size=8)
    assert "not even one image fits" in advice(FLOAT32, batch_size=1)


@pytest.mark.parametrize(
    ("membership", "files", "wanted"),
    [
        ("0::/a/b\n", {"a/memory.max": "2000", "a/b/memory.max": "max"}, [2000]),
        ("0::/a/b\n", {"a/memory.max": "2000", "a/b/memory.max": "1000"}, [1000, 2000]),
        ("0::/\n", {"memory.max": "3000"}, [3000]),  # inside a container
        (
            "9:name=systemd:/\n4:memory:/docker/f00\n0::/\n",
            {"memory/memory.limit_in_bytes": "4000"},
            [4000],
        ),  # version 1, inside
        ("4:cpu,memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, [9223372036854771712]),
        ("3:cpuset:/a\n", {"memory/a/memory.limit_in_bytes": "5"}, []),
        ("", {}, []),
    ],
)
def test_limits_of_containers(tmp_path, membership, files, wanted):
    (tmp_path / "cgroup").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    assert list(device.cgroup_limits(tmp_path / "cgroup", tmp_path / "mount")) == wanted
    assert list(device.cgroup_limits(tmp_path / "absent", tmp_path / "mount")) == []


def test_memory_of_this_machine(monkeypatch):
    with open("/proc/meminfo", encoding="utf-8") as lines:
        total = int(next(lines).split()[1]) * 1024
    monkeypatch.setattr(device, "cgroup_limits", lambda *_: [])
    assert device.total_host_memory() == pytest.approx(total, rel=0.01)
    monkeypatch.setattr(device, "cgroup_limits", lambda *_: [total // 2, total // 4])
    assert device.total_host_memory() == total // 4


class _Driver:
    """libcuda with two devices."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal + 10
        return 0 if ordinal < 2 else 101

    def cuDeviceTotalMem_v2(self, total, device):
        total._obj.value = device.value * 2**30
        return 0


def test_memory_of_a_gpu_is_asked_of_its_driver(monkeypatch):
    visible = [tf.config.PhysicalDevice("/physical_device:GPU:1", "GPU")]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: visible)
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: _Driver())
    assert device.total_device_memory() == 11 * 2**30
    visible[:] = [tf.config.PhysicalDevice("/physical_device:GPU:7", "GPU")]
    assert device.total_device_memory() is None
    visible.clear()
    assert device.total_device_memory() is None
