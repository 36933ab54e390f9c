"""Weights by hf://USER/NAME: the real huggingface_hub and a server of this machine that answers as the Hub does."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import COMMIT, forget_library
from safetensors.numpy import save

from efficientdet.checkpoints.checkpoint import Description, existing_backbone, existing_checkpoint, write_arrays
from efficientdet.checkpoints.restore import read_source
from efficientdet.families.efficientdet.family import FAMILY
from efficientdet.weights.downloads import local_path
from program_support.errors import InputError

TIMM = save({"blocks.0.0.conv_dw.weight": np.zeros(1, np.float32)})


def test_a_backbone_of_timm_with_its_architecture(hub, monkeypatch):
    """Downloaded once; config.json beside the weights states their conventions; nothing is asked for again."""
    hub.repositories["somebody/mine"] = {
        ".gitattributes": b"",
        "config.json": b'{"architecture": "efficientnet_lite0"}',
        "model.safetensors": TIMM,
        "pytorch_model.bin": b"the same",
    }
    assert existing_backbone("hf://somebody/mine") == "hf://somebody/mine"
    assert read_source("hf://somebody/mine").conventions(FAMILY)["conv_padding"] == "symmetric"
    assert [request for request in hub.requests if request.startswith("GET") and "pytorch_model" in request] == []
    asked = len(hub.requests)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # not installed on this node, which shares the cache
    assert local_path("hf://somebody/mine").endswith(
        "/models--somebody--mine/snapshots/" + COMMIT + "/model.safetensors"
    )
    assert len(hub.requests) == asked


def test_a_file_of_a_repository(hub):
    hub.repositories["somebody/several"] = {"a.pth": b"a", "old/b.pth": b"b", "b.pth": b"c"}
    with pytest.raises(InputError, match=r"^hf://somebody/several: has a.pth, b.pth; name one: hf://USER/NAME/FILE$"):
        local_path("hf://somebody/several")
    assert Path(local_path("hf://somebody/several/old/b.pth")).read_text() == "b"
    with pytest.raises(InputError, match=r"has a.pth, b.pth; name one"):  # the stored file does not decide
        local_path("hf://somebody/several")
    with pytest.raises(InputError, match=r"c.pth: has no c.pth; it has a.pth, old/b.pth, b.pth$"):
        local_path("hf://somebody/several/c.pth")


def test_a_checkpoint_of_this_project(hub, tmp_path):
    description = Description(
        model_name="efficientdet-d0", hparams={}, categories=[{"id": 1, "name": "card"}], weights="raw"
    )
    write_arrays(str(tmp_path / "model" / "best"), {"a/kernel": np.ones(3, np.float32)}, description)
    hub.repositories["me/cards"] = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    source = read_source("hf://me/cards")
    np.testing.assert_array_equal(source.arrays["a/kernel"], [1, 1, 1])
    assert source.class_names.names == ("card",)
    assert existing_checkpoint("hf://me/cards", "ckpt") == source.prefix


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("hf://somebody", "expected hf://USER/NAME or hf://USER/NAME/FILE"),
        ("hf://somebody/nothing", "there is no such repository; for a private one hf auth login, or set HF_TOKEN"),
        ("hf://somebody/gated", "is gated: accept its terms on its page, then hf auth login, or set HF_TOKEN"),
        ("hf://somebody/readme", r"has no file of weights \(.safetensors, .pth, .* it has README.md"),
        ("hf://somebody/busy", r"cannot be downloaded \(.*500.*\); or download a file elsewhere and give its path"),
        ("hf://some body/x", r"cannot be downloaded \(.*some body/x.*\)"),
    ],
)
def test_what_cannot_be_had_is_one_line(hub, url, message):
    hub.repositories |= {
        "somebody/gated": (403, "GatedRepo"),
        "somebody/readme": {"README.md": b""},
        "somebody/busy": (500, ""),
    }
    with pytest.raises(InputError, match=f"^--pretrained_ckpt={url}: {message}") as caught:
        existing_checkpoint(url, "pretrained_ckpt")
    assert "\n" not in str(caught.value)


def test_without_the_package_or_a_network(hub, monkeypatch):
    hub.repositories["somebody/mine"] = {"model.safetensors": TIMM}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(InputError, match=r"needs the package huggingface_hub: pip install -e '.\[hub\]'$"):
            local_path("hf://somebody/mine")
    for name, value, reason in (
        ("HF_ENDPOINT", "http://127.0.0.1:9", "refused|Connect"),
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE"),
    ):
        monkeypatch.setenv(name, value)
        forget_library()
        with pytest.raises(InputError, match=rf"cannot be downloaded \(.*({reason}).*\); or download a file") as caught:
            local_path("hf://somebody/mine")
        assert "\n" not in str(caught.value)
