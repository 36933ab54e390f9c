"""Types of the public names, which `__init__.py` imports on first access."""
# ruff: noqa: I001 (an import of several names is not split into one each)

from efficientdet.inference.detect import Detector as Detector
from efficientdet.inference.image_detections import ImageDetections as ImageDetections
from efficientdet.operations.compare_interface import compare as compare
from efficientdet.operations.infer_interface import infer as infer
from efficientdet.operations.interface import (
    convert as convert,
    evaluate as evaluate,
    examine as examine,
    export as export,
    train as train,
)
from efficientdet.operations.verify_model import verify as verify
from efficientdet.prediction.open_model import load_detector as load_detector
from efficientdet.prediction.video_source import read_frames as read_frames
from efficientdet.tracking.lines_and_zones import TrackCounts as TrackCounts
from program_support.errors import InputError as InputError

__version__: str
