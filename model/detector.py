"""The name of `DetectionModel` in version 0.1, for families of other packages."""

from model.detection_model import DetectionModel as Detector
from model.detection_model import named_variables, set_value

__all__ = ["Detector", "named_variables", "set_value"]
