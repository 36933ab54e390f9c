"""Options of infer.py after their resolution, and the names of its outputs."""

import os
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from dataset.files.image_files import distinct_stem, output_names
from dataset.input.tiling import Tiling
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.detect import Detector
from efficientdet.options.infer import InferOptions
from efficientdet.options.model import MOST_DRAWN
from efficientdet.prediction.inputs import Inputs, recording_stem
from efficientdet.tracking.track_files import TRACK_FORMATS
from efficientdet.tracking.video_tracks import TrackSettings
from program_support.checked_fields import checked
from program_support.errors import InputError

VIDEO_SUFFIXES = {
    "video": ".mp4",
    "events": "_events",
    "none": "",
}  # of --save: what follows the stem in an output's name


@checked
class AnnotationConfig(InferOptions):
    """Options of infer.py with resolved inputs, model and tiles."""

    inputs: Inputs
    model_config: ModelConfig = field(default_factory=ModelConfig)  # checkpoint or exported file
    tiling: Tiling | None = None  # None: the tiles of the model, if it has any

    def max_boxes(self, model: Detector) -> int | None:
        """Return the maximum number of boxes drawn per image; None: all."""
        return self.max_boxes_to_draw or (None if model.tiling else MOST_DRAWN)

    @property
    def image_formats(self) -> list[str]:
        """The formats of detections in images and frames."""
        return [name for name in self.format if name not in TRACK_FORMATS]

    @property
    def tracking(self) -> TrackSettings | None:
        """The settings of tracks; None: objects are not tracked."""
        if not self.track:
            return None
        formats = [name for name in self.format if name in TRACK_FORMATS]
        return TrackSettings(lines=self.count_line, zones=self.zone, formats=formats, folder=Path(self.output_dir))

    @property
    def runs_network_once(self) -> bool:
        """Return whether the input is a single image without tiling."""
        return len(self.inputs.images) == 1 and not self.inputs.videos and self.tiling is None


def output_paths(config: AnnotationConfig, sources: Sequence[str], suffix: str) -> list[Path]:
    """Return the path of each output.

    Raises:
        InputError: one would overwrite an input image or video.
    """
    paths = [Path(config.output_dir, name) for name in output_names(sources, suffix)]
    originals = {os.path.realpath(source) for source in (*config.inputs.images, *config.inputs.videos)}
    for path in paths:
        if os.path.realpath(path) in originals:
            kind = "image" if suffix == ".jpg" else "video"
            raise InputError(
                f"--output_dir={config.output_dir}: the output {path.name} would overwrite the {kind} {path}; "
                "expected another folder"
            )
    return paths


def camera_output(config: AnnotationConfig, camera: int | str) -> Path:
    """Return the first of camera_0.mp4, camera_0-2.mp4, .. that does not exist: a recording cannot be repeated.

    Of clips it is the same folder camera_0_events, as their names are times.
    """
    folder, used = Path(config.output_dir), set()
    if config.save == "video":
        used = {path.stem.casefold() for path in folder.glob("*.mp4")}
    return folder / f"{distinct_stem(recording_stem(camera), used)}{VIDEO_SUFFIXES[config.save]}"
