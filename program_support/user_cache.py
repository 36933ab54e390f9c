"""The folder of a user in which programs keep what can be downloaded, copied or compiled again."""

import os
from pathlib import Path


def user_cache(name: str, *, variable: str = "") -> Path:
    """Return the folder that an environment variable holds, else efficientdet/NAME in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get(variable):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / name
