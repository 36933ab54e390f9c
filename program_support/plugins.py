"""What plugins add to the program: those in `efficientdet/plugins/`, and entry points of installed packages.

The core imports no plugin. It asks for objects by group, which is an interface, and by name. A new plugin of this
project is a row here; one of another package is an entry point of the same group.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

BUNDLED: Mapping[str, Mapping[str, str]] = {  # group -> name -> module:attribute
    "efficientdet.image_choices": {"next_images": "efficientdet.plugins.labeling.next_images:choose_next_images"},
    "efficientdet.message_receivers": {"changes": "efficientdet.plugins.streams.messages:Changes"},
    "efficientdet.server_routes": {"label_studio": "efficientdet.plugins.labeling.label_studio:label_studio_routes"},
    "efficientdet.tracking": {
        "frames": "efficientdet.plugins.streams.tracked_frames:tracked_frames",
        "requirements": "efficientdet.plugins.streams.tracker:require_trackers",
        "video": "efficientdet.plugins.streams.video_tracks:VideoTracks",
    },
    "efficientdet.video_recorders": {"events": "efficientdet.plugins.streams.event_clips:EventRecorder"},
}


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names in a group, those of this project first, without importing any plugin."""
    return (*BUNDLED.get(group, {}), *(entry.name for entry in _installed(group)))


def load_plugins(group: str) -> Iterator[Any]:
    """Yield the objects in a group, those of this project first; each is imported when it is asked for."""
    yield from (_load(value) for value in BUNDLED.get(group, {}).values())
    yield from (entry.load() for entry in _installed(group))


def load_plugin(group: str, name: str) -> Any:
    """Return the object with a name in a group.

    Raises:
        KeyError: there is none.
    """
    if name in (bundled := BUNDLED.get(group, {})):
        return _load(bundled[name])
    return {entry.name: entry for entry in _installed(group)}[name].load()


def _load(value: str) -> Any:
    module, attribute = value.split(":")
    return getattr(import_module(module), attribute)


def _installed(group: str) -> list[Any]:
    from importlib.metadata import entry_points  # 20 ms

    return sorted(entry_points(group=group))
