"""Recognition of SavedModel folders without TensorFlow."""

from pathlib import Path

DESCRIPTION_FILE = "description.json"
TRUSTED_ONLY = "use trusted sources only: its graph may read and write files"


def is_saved_model(folder: str | None) -> bool:
    """Return whether a folder has a SavedModel."""
    return Path(folder, "saved_model.pb").is_file() if folder else False
