"""Frigate's configuration for an exported file, and the labels in the form that Frigate, PyCoral and DOODS2 read.

Fields: https://docs.frigate.video/configuration/reference (`detectors`, `model`, `objects`);
frigate/detectors/detector_config.py and frigate/config/camera/objects.py in https://github.com/blakeblackshear/frigate.
"""

from pathlib import Path
from typing import Any

import yaml

from dataset.class_names import ClassNames
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from program_support.atomic_files import write_text

_CONFIG = """\
# Frigate's configuration for {file}. Copy that file and {labels} to Frigate's
# folder /config, and these sections to its config.yml. For a Coral, compile the file with edgetpu_compiler, name the
# result in model.path, and write detectors: {{coral: {{type: edgetpu, device: usb}}}}.
{comments}
detectors:
  cpu:
    type: cpu
model:
  path: /config/{file}
  labelmap_path: /config/{labels}
  model_type: ssd
  width: {width}
  height: {height}
  input_tensor: nhwc
  input_pixel_format: rgb
"""


def frigate_files(path: Path) -> list[Path]:
    """Return the files that `write_frigate_files` writes beside an exported file."""
    return [path.with_name("frigate.yaml"), path.with_name("numbered_labels.txt")]


def write_frigate_files(restored: Restored, path: Path) -> None:
    """Write Frigate's configuration and the numbered labels beside an exported file.

    Frigate takes the score of a detection from `min_score`, and of an object, the median of its last detections, from
    `threshold`. Both are the class's stored threshold: an object counts if most of its detections would be shown.

    Raises:
        OSError: a file cannot be written.
    """
    config_file, labels_file = frigate_files(path)
    description = restored.description
    classes, thresholds = ClassNames.from_categories(description.categories), ScoreThresholds.stored_in(description)
    height, width = restored.detector.image_size
    objects: dict[str, Any] = {"track": [*classes.names]}
    comments = [
        "# The model stores no score thresholds, so Frigate's own apply; eval.py --store_thresholds stores them."
    ]
    if description.score_thresholds:
        comments = [f"# min_score and threshold: {thresholds.source}.", "# Frigate reads no score below 0.4."]
        lowest = {
            name: round(thresholds.by_category.get(number, thresholds.overall), 4)
            for number, name in zip(classes.category_ids, classes.names, strict=True)
        }
        objects["filters"] = {name: {"min_score": score, "threshold": score} for name, score in lowest.items()}
    if width != height:
        comments.append("# Frigate stretches its square regions to this input: train with a square one for it.")
    config = _CONFIG.format(
        file=path.name, labels=labels_file.name, width=width, height=height, comments="\n".join(comments)
    )
    write_text(labels_file, "".join(f"{number} {name}\n" for number, name in enumerate(classes.names)))
    write_text(config_file, config + yaml.safe_dump({"objects": objects}, sort_keys=False, allow_unicode=True))
