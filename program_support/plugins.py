"""Objects that plugins add to the program: bundled ones, and entry points of installed packages.

The core imports no plugin. It asks for objects by group, which is an interface, and by name. A new plugin of this
project is a row here; one of another package is an entry point of the same group.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any

BUNDLED: Mapping[str, Mapping[str, str]] = {  # group -> name -> module:attribute, or module: for itself
    "efficientdet.engines": {"ray": "efficientdet.plugins.cluster.ray_cluster:ray_cluster"},
    "efficientdet.storage": {"fsspec": "efficientdet.plugins.cluster.storage:"},
    "efficientdet.label_formats": {
        "open_images": "efficientdet.plugins.label_formats.formats:OPEN_IMAGES",
        "cvat": "efficientdet.plugins.label_formats.formats:CVAT",
        "labelme": "efficientdet.plugins.label_formats.formats:LABELME",
        "label_studio": "efficientdet.plugins.label_formats.formats:LABEL_STUDIO",
        "dota": "efficientdet.plugins.label_formats.formats:DOTA",
        "visdrone": "efficientdet.plugins.label_formats.formats:VISDRONE",
    },
    "efficientdet.monitors": {"monitor": "efficientdet.plugins.monitor.monitoring:monitor_images"},
    "efficientdet.open_images": {"reader": "efficientdet.plugins.label_formats.open_images:read_open_images"},
    "efficientdet.loggers": {
        "wandb": "efficientdet.plugins.loggers.experiment_trackers:WeightsAndBiases",
        "mlflow": "efficientdet.plugins.loggers.experiment_trackers:Mlflow",
        "mlperf": "efficientdet.plugins.loggers.mlperf:MlperfLog",
    },
    "efficientdet.processes": {"jax": "efficientdet.plugins.jax_processes.launch:join"},
    "efficientdet.families": {
        "retinanet": "efficientdet.plugins.retinanet.family:FAMILY",
        "mask_rcnn": "efficientdet.plugins.mask_rcnn.family:FAMILY",
        "ssd": "efficientdet.plugins.ssd.family:FAMILY",
    },
    "efficientdet.published_files": {
        "retinanet": "efficientdet.plugins.retinanet.presets:PUBLISHED_FILES",
        "mask_rcnn": "efficientdet.plugins.mask_rcnn.presets:PUBLISHED_FILES",
    },
    "efficientdet.onnx": {
        "image_model": "efficientdet.plugins.onnx.model:image_model",
        "model": "efficientdet.plugins.onnx.model:onnx_model",
        "quantization": "efficientdet.plugins.onnx.model:quantized",
        "suppression": "efficientdet.plugins.onnx.suppression:detections_in_onnx",
    },
    "efficientdet.export_formats": {
        "onnx": "efficientdet.plugins.onnx.formats:ONNX",
        "onnx-raw": "efficientdet.plugins.onnx.formats:ONNX_RAW",
        "onnx-int8": "efficientdet.plugins.onnx.formats:ONNX_INT8",
        "openvino": "efficientdet.plugins.onnx.formats:OPENVINO",
        "litert": "efficientdet.plugins.small_devices.formats:LITERT",
        "litert-int8": "efficientdet.plugins.small_devices.formats:LITERT_INT8",
        "litert-full-int8": "efficientdet.plugins.small_devices.formats:LITERT_FULL_INT8",
        "web": "efficientdet.plugins.small_devices.formats:WEB",
        "cvat": "efficientdet.plugins.small_devices.formats:CVAT",
    },
    "efficientdet.efficientnet_weights": {"torch": "efficientdet.plugins.torch_weights.efficientnets:WEIGHTS"},
    "efficientdet.weight_readers": {
        "safetensors": "efficientdet.plugins.torch_weights.safetensors_files:READER",
        "torch": "efficientdet.plugins.torch_weights.torch_files:READER",
    },
    "efficientdet.image_choices": {"next_images": "efficientdet.plugins.labeling.next_images:choose_next_images"},
    "efficientdet.label_checks": {"suspects": "efficientdet.plugins.labeling.suspect_page:write_suspects"},
    "efficientdet.message_receivers": {"changes": "efficientdet.plugins.streams.messages:Changes"},
    "efficientdet.server_routes": {
        "label_studio": "efficientdet.plugins.labeling.label_studio:label_studio_routes",
        "monitor": "efficientdet.plugins.monitor.served_images:monitor_served",
    },
    "efficientdet.tracking": {
        "frames": "efficientdet.plugins.streams.tracks:tracked_frames",
        "requirements": "efficientdet.plugins.streams.tracks:require_trackers",
    },
    "efficientdet.video": {
        "annotate": "efficientdet.plugins.streams.video:annotate_video",
        "frames": "efficientdet.plugins.streams.video_source:read_frames",
        "open": "efficientdet.plugins.streams.video_source:open_source",
    },
}


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names in a group, those of this project first, without importing any plugin."""
    return (*BUNDLED.get(group, {}), *(entry.name for entry in _installed(group)))


def load_plugins(group: str) -> Iterator[Any]:
    """Yield the objects in a group, those of this project first; each is imported when it is asked for."""
    yield from map(resolve_name, BUNDLED.get(group, {}).values())
    yield from (entry.load() for entry in _installed(group))


def load_plugin(group: str, name: str) -> Any:
    """Return the object with a name in a group.

    Raises:
        KeyError: there is none.
    """
    if name in (bundled := BUNDLED.get(group, {})):
        return resolve_name(bundled[name])
    return {entry.name: entry for entry in _installed(group)}[name].load()


def _installed(group: str) -> list[Any]:
    return sorted(_entry_points(tuple(sys.path)).select(group=group))


@cache
def _entry_points(search_path: tuple[str, ...]) -> Any:
    """Return the entry points of all packages, each of which has a file that is read."""
    del search_path  # where packages are looked for
    from importlib.metadata import entry_points  # 20 ms

    return entry_points()
