"""effdet on this machine, to stand beside our figures: run by an environment of its own, in which it is installed.

    python -m venv peer && peer/bin/pip install torch && peer/bin/pip install --no-deps effdet==0.4.1 timm omegaconf \\
        antlr4-python3-runtime==4.9.3 safetensors huggingface_hub pyyaml && peer/bin/pip install numpy pillow tqdm httpx
    peer/bin/python benchmarks/peer_effdet.py

D0 at 512 with random weights, channels last, not scripted: forward at batch 1 and 8, forward and backward at batch 8 with a
toy loss. torchvision, which is imported but not used by any of this, may be missing: empty modules stand in for it.
"""

import argparse
import importlib.util
import resource
import statistics
import sys
import time
import types
from importlib.machinery import ModuleSpec


class _Whatever(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _EmptyModule(types.ModuleType):
    __path__: list = []  # noqa: RUF012, a package as the import system wants it
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Whatever(name, (), {})


class _EmptyTorchvision:
    """A finder and loader of empty modules."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec):
        return _EmptyModule(spec.name)

    def exec_module(self, module):
        pass


def timed(call, *, runs: int) -> list[float]:
    """Seconds, after one run that is not counted."""
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def main() -> None:
    """Medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, _EmptyTorchvision())
    import torch

    torch.jit.script = lambda function, *_, **__: function  # scripts functions of torchvision on import
    from effdet import create_model

    model = create_model("tf_efficientdet_d0", pretrained=False, pretrained_backbone=False, bench_task="")
    model = model.to(memory_format=torch.channels_last).eval()

    def show(name, batch_size, seconds):
        median = statistics.median(seconds)
        print(f"{name:<28} {batch_size / median:6.2f} images/s, {median:.3f} s, {min(seconds):.3f} to {max(seconds):.3f}")

    for batch_size in (1, 8):
        images = torch.randn(batch_size, 3, 512, 512).to(memory_format=torch.channels_last)
        with torch.no_grad():
            show(f"forward, batch {batch_size}", batch_size, timed(lambda images=images: model(images), runs=runs))
    model.train()

    def forward_and_backward():
        model.zero_grad()
        sum((output * output).sum() for outputs in model(images) for output in outputs).backward()

    show("forward and backward, batch 8", 8, timed(forward_and_backward, runs=runs))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB; torch {torch.__version__}, "
          f"{torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
