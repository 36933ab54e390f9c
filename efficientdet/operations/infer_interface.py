"""The Python interface of infer.py; see `interface`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from efficientdet.operations import infer_images
from efficientdet.operations.interface import AnyPath
from efficientdet.operations.settings import call
from efficientdet.options.infer import InferOptions


def infer(
    image_path: AnyPath | int | Sequence[AnyPath],
    output_dir: AnyPath = "annotated",
    *,
    model: AnyPath,
    save: str | None = None,
    json_lines: AnyPath | None = None,
    mqtt: str | None = None,
    webhook: str | None = None,
    **flags: Any,
) -> Path:
    """Detect in images, videos, a camera or a stream and write annotated copies, as infer.py does.

    A camera or stream is read until Ctrl-C, after which the function returns.

    Args:
        image_path: images, videos, folders and glob patterns, or one camera number, device or address of a stream.
        output_dir: folder for the results.
        model: checkpoint, file of `export`, or name of published weights.
        save: of videos, cameras and streams "video", "events" (a clip for each time at which objects are detected) or
            "none". Default: "video".
        json_lines: .jsonl file for the detections in each image and frame, or "-" for the standard output.
        mqtt: broker and topic, mqtt://USER:PASSWORD@HOST:PORT/TOPIC, for changes of the number of objects.
        webhook: address for the same messages by HTTP POST.
        flags: further flags of infer.py.

    Returns:
        The folder of the results.

    Raises:
        InputError: a file, value or combination of values is invalid, or inputs could not be decoded.
        TypeError: a keyword is not a flag of infer.py.
    """
    call(
        infer_images.infer,
        InferOptions,
        "infer",
        image_path=str(image_path) if isinstance(image_path, int) else image_path,
        output_dir=output_dir,
        model=model,
        save=save,
        json_lines=json_lines,
        mqtt=mqtt,
        webhook=webhook,
        **flags,
    )
    return Path(output_dir)
