"""Which formats to export, by name."""

from collections.abc import Sequence

from efficientdet.configuration.artifact_formats import FORMATS, RUNTIMES_OF
from efficientdet.configuration.inference_runtimes import require_package, require_runtime
from program_support.errors import InputError


def wanted_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Each once. Raises InputError for an unknown one, and where what writes or runs one is not installed."""
    formats = tuple(dict.fromkeys(names))
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"--formats={unknown[0]}: wanted some of {', '.join(FORMATS)}")
    if not formats:
        raise InputError(f"--formats is empty; wanted some of {', '.join(FORMATS)}")
    require_runtime("onnxruntime", asked_by="an export")
    for name in formats:
        require_package(RUNTIMES_OF.get(name, "onnxruntime"), asked_by=f"--formats={name}")
    return formats
