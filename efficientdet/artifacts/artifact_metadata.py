"""What an exported file says about itself, whatever its format: classes, configuration, input, outputs.

The values are JSON under the names below: in an ONNX file's `metadata_props`, in the `rt_info` of an OpenVINO file, in the zip
archive at the end of a LiteRT file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dataset.class_names import ClassNames
from dataset.input.host_resize import HostResize
from efficientdet.checkpoints.description import Description, description_of
from program_support.errors import InputError

DESCRIPTION, INPUT, OUTPUTS, VERSION = "efficientdet", "efficientdet.input", "efficientdet.outputs", "efficientdet.version"
NAMES = (DESCRIPTION, INPUT, OUTPUTS, VERSION)
DETECTIONS = ("boxes", "scores", "classes")  # and perhaps masks: what a file that detects puts out
_VERSION = 1  # of what is written here


@dataclass(frozen=True, kw_only=True)
class ArtifactMetadata:
    """What whoever runs the file needs to know."""

    description: Description
    resize: HostResize
    outputs: tuple[str, ...]

    @property
    def class_names(self) -> ClassNames:
        """Of the classes that the file counts from 0."""
        return ClassNames.from_categories(self.description.categories)

    def to_props(self) -> dict[str, str]:
        """As the file holds it."""
        return {DESCRIPTION: json.dumps(vars(self.description)), INPUT: json.dumps(self.resize.to_dict()),
                OUTPUTS: json.dumps(self.outputs), VERSION: json.dumps(_VERSION)}


def metadata_of(props: Mapping[str, str], *, path: str) -> ArtifactMetadata:
    """Of a file that detects, from what it holds. Raises InputError, one line, for any other."""
    if missing := [name for name in NAMES if name not in props]:
        raise InputError(f"{path}: is no file of this project that detects, it lacks {missing[0]}; export.py writes them")
    try:
        if (version := json.loads(props[VERSION])) != _VERSION:
            raise InputError(f"was written as version {version!r} of exported files; this program reads {_VERSION}")
        description = description_of(json.loads(props[DESCRIPTION]))
        metadata = ArtifactMetadata(description=description, resize=HostResize.of(json.loads(props[INPUT])),
                                    outputs=tuple(json.loads(props[OUTPUTS])))
        metadata.class_names  # noqa: B018 - what is wrong with them is reported here
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: what it says of itself is damaged ({error})") from error
    if metadata.outputs[:len(DETECTIONS)] != DETECTIONS:
        raise InputError(f"{path}: puts out {', '.join(map(str, metadata.outputs))}; expected {', '.join(DETECTIONS)}")
    return metadata
