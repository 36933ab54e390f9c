"""What a folder with a SavedModel looks like; free of TensorFlow."""

from pathlib import Path

DESCRIPTION_FILE = "description.json"
TRUSTED_ONLY = "its graph is run as it is, and may read and write files: only from a source that you trust"


def is_saved_model(folder: str | None) -> bool:
    """Whether a SavedModel lies there."""
    return bool(folder) and Path(folder, "saved_model.pb").is_file()
