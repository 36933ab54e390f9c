"""What a folder with a SavedModel looks like; free of TensorFlow."""

from pathlib import Path


def is_saved_model(folder: str | None) -> bool:
    """Whether a SavedModel lies there."""
    return bool(folder) and Path(folder, "saved_model.pb").is_file()
