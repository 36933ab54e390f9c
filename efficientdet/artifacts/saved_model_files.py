"""Recognition of SavedModel folders without TensorFlow."""

import os

DESCRIPTION_FILE = "description.json"
TRUSTED_ONLY = "use trusted sources only: its graph may read and write files"


def is_saved_model(folder: str | None) -> bool:
    """Return whether a folder has a SavedModel."""
    return os.path.isfile(f"{folder}/saved_model.pb") if folder else False
