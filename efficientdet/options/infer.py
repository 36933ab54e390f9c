"""Options of detection in images and videos: the flags of infer.py."""

from typing import Annotated

from dataset.input.tiling import TILE_OVERLAP
from efficientdet.options.model import (
    MOST_DRAWN,
    TRUSTED_ONLY,
    CalibratedScores,
    MachineOptions,
    RuntimeOptions,
    WeightsOptions,
)
from program_support.checked_fields import Count, Help, NonNegative, Share, between, checked, one_of

EVENT_SECONDS = 5.0


@checked
class InferOptions(WeightsOptions, MachineOptions, RuntimeOptions):
    """All options of detection in images and videos."""

    image_path: Annotated[
        tuple[str, ...],
        Help(
            "Input: an image, a video, a folder of both or a glob pattern; -: an image on standard input; a number or "
            "/dev/video0: that camera, rtsp://... or http://...: a network stream, each until Ctrl-C.",
            repeats=True,
        ),
    ] = ()
    output_dir: Annotated[str, Help("Output folder for annotated images, videos and detections.json.")] = "annotated"
    model_dir: Annotated[
        str | None, Help("Checkpoint: a prefix or a folder, written by this project, google/automl or NVIDIA.")
    ] = None
    saved_model_dir: Annotated[
        str | None,
        Help(f"SavedModel to run ({TRUSTED_ONLY}). With --model_dir: the folder to which it is exported first."),
    ] = None
    model: Annotated[
        str | None,
        Help(
            "File of export.py (.onnx, .xml or .tflite), run without TensorFlow and without a checkpoint; "
            "--runtime=openvino also runs .onnx files. Anything else is a checkpoint, as for --model_dir."
        ),
    ] = None
    batch_size: Annotated[Count, Help("Batch size.")] = 1
    debug: Annotated[bool, Help("Run eagerly, without compilation.")] = False
    tile: Annotated[
        str | None,
        Help(
            "Size of tiles in image pixels for sliced inference of large images with small objects: the side of a "
            "square such as 512, or WIDTHxHEIGHT. Default: the tiles that the model was trained on, if any."
        ),
    ] = None
    overlap: Annotated[
        float | None,
        between(0, 0.9),
        Help("With --tile: overlap of neighboring tiles as a fraction of the tile size, from 0 to 0.9.", TILE_OVERLAP),
    ] = None
    tile_whole: Annotated[
        bool | None,
        Help("With --tile: also detect in the complete image, for objects larger than a tile.", True),
    ] = None
    min_score_thresh: Annotated[
        Share | None,
        Help(
            "Lowest score, from 0 to 1, of the drawn detections. detections.json has all detections. Default: the "
            "thresholds with the best F1 that are stored with the model, else 0.4."
        ),
    ] = None
    calibrated_scores: CalibratedScores = False
    classes: Annotated[
        tuple[str, ...],
        Help("Names of the classes to detect, comma-separated; other detections are left out. Default: all."),
    ] = ()
    max_boxes_to_draw: Annotated[
        Count | None,
        Help("Maximum number of boxes drawn per image, best first. Default with --tile: no limit.", MOST_DRAWN),
    ] = None
    format: Annotated[tuple[str, ...], Help("Additional output formats of drawn detections, comma-separated: ")] = ()
    track: Annotated[
        bool,
        Help(
            "Give each object of a video, camera or stream the same identity in all frames (ByteTrack, extra track). "
            "Detections of a track are drawn with its number and color, others are not."
        ),
    ] = False
    save: Annotated[
        str,
        one_of("video", "events", "none"),
        Help(
            "What to save of videos, cameras and streams: video, a complete annotated copy; events, a clip for each "
            "time at which objects are detected; none."
        ),
    ] = "video"
    event_seconds: Annotated[
        NonNegative | None,
        Help("With --save=events: seconds that a clip shows before and after the detections.", EVENT_SECONDS),
    ] = None
    max_offline_seconds: Annotated[
        NonNegative | None,
        Help("Seconds without a frame after which a camera or stream ends. Default: never, connecting again."),
    ] = None
    json_lines: Annotated[
        str | None,
        Help(
            "Write the drawn detections of each image and frame as a line of JSON, at once: name of a .jsonl file, or "
            "-: to the standard output; messages of the program then go to the standard error."
        ),
    ] = None
    mqtt: Annotated[
        str | None,
        Help(
            "Publish the drawn detections when the number of objects of a class changes: "
            "mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or mqtts:// with TLS."
        ),
    ] = None
