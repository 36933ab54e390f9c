"""What lies in a model_dir: which steps are stored, and the same without what says in which order."""

import json


def steps_in(folder):
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index") if file.stem != "ckpt-final")


def without_order(folder):
    """As earlier versions left them."""
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        for key in ("save_number", "continues", "bundles", "checksum"):
            content.pop(key, None)
        path.write_text(json.dumps(content))
