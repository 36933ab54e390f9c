"""Time a detector of torchvision; run it in a separate environment in which torchvision is installed.

    python -m venv peer && peer/bin/pip install torch torchvision onnx onnxscript
    peer/bin/python benchmarks/peers/peer_torchvision.py retinanet_resnet50_fpn --size=512 --batch_size=2 --turns=4

A turn is a training step (forward, losses, backward and update of the detector on random images and boxes), or with
`--detect` a batch of one, from float images to boxes; `benchmarks/training_step.py` measures ours. With `--onnx=FILE`
it only writes the detector of batch 1, including suppression.
"""

import argparse
import time
from pathlib import Path

import torch
import torchvision


def detector_of(name: str, *, classes: int, size: int) -> torch.nn.Module:
    """Return the detector with random weights; the first two stages and batch norm are frozen as in fine-tuning."""
    models = torchvision.models.detection
    is_retinanet = name.startswith("retinanet")
    backbone = models.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet50",
        weights=None,
        norm_layer=torchvision.ops.FrozenBatchNorm2d,
        trainable_layers=3,
        **(
            {
                "returned_layers": [2, 3, 4],
                "extra_blocks": torchvision.ops.feature_pyramid_network.LastLevelP6P7(256, 256),
            }
            if is_retinanet
            else {}
        ),
    )
    kind = models.RetinaNet if is_retinanet else models.MaskRCNN
    return kind(backbone, classes, min_size=size, max_size=size)


def main() -> None:
    """Print the seconds of each turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=["retinanet_resnet50_fpn", "maskrcnn_resnet50_fpn"])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--classes", type=int, default=91)
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--detect", action="store_true")
    parser.add_argument("--onnx", help="Write the detector to this file, and its weights beside it as .pth.")
    arguments = parser.parse_args()
    size = arguments.size
    torch.manual_seed(0)
    model = detector_of(arguments.model, classes=arguments.classes, size=size)
    if arguments.channels_last:
        model = model.to(memory_format=torch.channels_last)
    images = [torch.rand(3, size, size) for _ in range(arguments.batch_size)]
    if arguments.onnx:
        torch.save(model.state_dict(), Path(arguments.onnx).with_suffix(".pth"))
        torch.onnx.export(model.eval(), (images[:1],), arguments.onnx, opset_version=18, dynamo=False)
        return
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = (
        torch.optim.Adam(weights, lr=1e-4, foreach=True)
        if arguments.model.startswith("retinanet")
        else torch.optim.SGD(weights, lr=1e-4, momentum=0.9, weight_decay=1e-4, foreach=True)
    )
    corners = torch.rand(arguments.batch_size, 8, 2) * size * 0.6
    boxes = torch.cat([corners, corners + size * (0.05 + 0.3 * torch.rand(arguments.batch_size, 8, 2))], dim=-1)
    targets = [
        {
            "boxes": of_image,
            "labels": torch.randint(1, arguments.classes, (8,)),
            "masks": torch.ones(8, size, size, dtype=torch.uint8),
        }
        for of_image in boxes
    ]

    def step():
        model.train()
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()

    def detect():
        model.eval()
        with torch.inference_mode():
            model(images[:1])

    print(f"torchvision {torchvision.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for _ in range(arguments.turns):
        start = time.perf_counter()
        (detect if arguments.detect else step)()
        print(f"{time.perf_counter() - start:.3f} s", flush=True)


if __name__ == "__main__":
    main()
