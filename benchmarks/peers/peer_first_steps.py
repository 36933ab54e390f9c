"""Write the losses of torchvision's RetinaNet in its first training steps, for tests/test_retinanet.py.

    peer/bin/python benchmarks/peers/peer_first_steps.py     # an environment with torch and torchvision

ResNet-18, 12 classes, 128 x 128, frozen batch norm, three trainable stages, Adam with 1e-4, two drawn images per step.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from torchvision.models import detection

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from torch_recipe import drawn_steps, recipe_weights  # noqa: E402


def main() -> None:
    """Write retinanet_first_steps.npz: classification and box loss of each step."""
    backbone = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        norm_layer=torchvision.ops.FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=[2, 3, 4],
        extra_blocks=torchvision.ops.feature_pyramid_network.LastLevelP6P7(256, 256),
    )
    model = detection.RetinaNet(backbone, 12)
    model.transform = detection.transform.GeneralizedRCNNTransform(
        128, 128, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], fixed_size=(128, 128)
    )
    published = {_published(name): name for name in model.state_dict()}
    shapes = {name: tuple(model.state_dict()[theirs].shape) for name, theirs in published.items()}
    weights = recipe_weights(shapes, 110)
    model.load_state_dict({published[name]: torch.from_numpy(array) for name, array in weights.items()})
    model.train()
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    losses_per_step = []
    for images, boxes, labels in drawn_steps():
        losses = model(
            [torch.from_numpy(image).permute(2, 0, 1) / 255 for image in images],
            [
                {"boxes": torch.from_numpy(of_image[:, [1, 0, 3, 2]]), "labels": torch.from_numpy(kinds)}
                for of_image, kinds in zip(boxes, labels, strict=True)
            ],
        )
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        losses_per_step.append([float(losses["classification"]), float(losses["bbox_regression"])])
        print(*losses_per_step[-1], flush=True)
    np.savez(ROOT / "testdata" / "retinanet_first_steps.npz", losses=np.float32(losses_per_step))


def _published(name: str) -> str:
    """Return torchvision's current parameter names mapped to the older ones that the recipe uses."""
    parts = name.split(".")
    if parts[1:3] == ["fpn", "inner_blocks"] or parts[1:3] == ["fpn", "layer_blocks"]:
        del parts[4]
    elif parts[0] == "head" and parts[2] == "conv":
        parts[3:5] = [str(2 * int(parts[3]))]
    return ".".join(parts)


if __name__ == "__main__":
    main()
