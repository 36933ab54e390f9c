r"""Measure effdet on this machine; run it in a separate environment in which effdet is installed.

    python -m venv peer && peer/bin/pip install torch==2.13.0 torchvision && \
        peer/bin/pip install --no-deps effdet==0.4.1 timm omegaconf antlr4-python3-runtime==4.9.3 safetensors \
        huggingface_hub pyyaml && \
        peer/bin/pip install numpy pillow tqdm httpx httpx2 click hf-xet pycocotools onnx onnxscript
    peer/bin/python benchmarks/peers/peer_effdet.py [--onnx=effdet.onnx]

D0 at 512 with random weights, channels last, not scripted: forward at batch 1 and 8, forward and backward at batch 8
with a toy loss; on a GPU with `--device=cuda --bfloat16 --compile --forward 1 128 --training 128`. With `--onnx`
nothing is timed; the network of batch 1 is written to that file for `benchmarks/exported_inference.py`.
"""

import argparse
import resource
import statistics
import time


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--forward", type=int, nargs="*", default=[1, 8], help="Batch sizes of the forward pass.")
    parser.add_argument("--training", type=int, default=8, help="Batch size of forward and backward.")
    parser.add_argument("--bfloat16", action="store_true", help="Use bfloat16 autocast.")
    parser.add_argument("--compile", action="store_true", help="Use torch.compile.")
    parser.add_argument("--onnx", help="Write the network to this file and time nothing.")
    arguments = parser.parse_args()
    import torch

    torch.jit.script = lambda function, *_, **__: function  # scripts functions of torchvision on import
    from effdet import create_model

    on_gpu = arguments.device != "cpu"
    model = create_model("tf_efficientdet_d0", pretrained=False, pretrained_backbone=False, bench_task="")
    if arguments.onnx:
        torch.onnx.export(
            model.eval(), (torch.randn(1, 3, 512, 512),), arguments.onnx, dynamo=True, external_data=False
        )
        return
    model = model.to(arguments.device, memory_format=torch.channels_last).eval()
    network = torch.compile(model, mode="reduce-overhead") if arguments.compile else model

    def outputs_of(images):
        with torch.autocast(arguments.device, dtype=torch.bfloat16, enabled=arguments.bfloat16):
            return network(images)

    def show(name, batch_size, call):
        seconds = []
        for _ in range(arguments.runs + 3):  # the first ones compile
            start = time.perf_counter()
            call()
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        seconds = seconds[3:]
        median = statistics.median(seconds)
        print(
            f"{name:<28} {batch_size / median:6.2f} images/s, {median:.4f} s, {min(seconds):.4f} to {max(seconds):.4f}",
            flush=True,
        )

    def drawn(batch_size):
        images = torch.randn(batch_size, 3, 512, 512, device=arguments.device)
        return images.to(memory_format=torch.channels_last)

    for batch_size in arguments.forward:
        images = drawn(batch_size)
        with torch.inference_mode():
            show(f"forward, batch {batch_size}", batch_size, lambda images=images: outputs_of(images))
    model.train()
    images = drawn(arguments.training)

    def forward_and_backward():
        model.zero_grad()
        sum((output.float() ** 2).sum() for outputs in outputs_of(images) for output in outputs).backward()

    show(f"forward and backward, batch {arguments.training}", arguments.training, forward_and_backward)
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB; torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {torch.cuda.get_device_name() if on_gpu else 'cpu'}"
    )


if __name__ == "__main__":
    main()
