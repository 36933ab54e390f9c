"""Options of the server: the flags of serve.py."""

from typing import Annotated

from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from efficientdet.options.model import CalibratedScores, CheckpointOptions, RuntimeOptions
from program_support.checked_fields import Count, Help, Limit, Share, at_least, between, checked

MAX_SIDE = 16_384  # pixels; resampling a line of millions of pixels would take gigabytes


@checked
class RequestLimits:
    """Limits of requests."""

    max_batch: Annotated[Count, Help("Maximum batch size of the detector.")] = 8
    max_request_bytes: Annotated[Count, Help("Maximum size of a request's body in bytes.")] = 20 * 2**20
    max_pixels: Annotated[int, between(1, LARGEST_IMAGE_PIXELS), Help("Maximum number of pixels of an image.")] = (
        40_000_000
    )
    max_queue: Annotated[Count, Help("Maximum number of waiting images, and of images per request.")] = 64
    request_timeout_s: Annotated[
        float,
        Limit(lambda value: 0 < value <= 3600, "above 0, up to 3600"),
        Help("Timeout in seconds for receiving a request's body, and again for its detections."),
    ] = 30.0


@checked
class LabelStudioOptions:
    """Options of the labeling with Label Studio."""

    label_studio: Annotated[
        str | None,
        Help(
            "Address of a Label Studio whose machine learning backend this server is, such as http://localhost:8080. "
            "The environment variable LABEL_STUDIO_API_KEY is the key of one of its users."
        ),
    ] = None
    train_dir: Annotated[
        str | None,
        Help(
            "With --label_studio: output folder of a quick start that trains on the project's annotations and whose "
            "model is served. Default: no training."
        ),
    ] = None
    train_after: Annotated[
        Count, Help("With --train_dir: number of new or changed annotations after which a training starts.")
    ] = 20
    train_minutes: Annotated[float, at_least(0.1), Help("With --train_dir: time of each training in minutes.")] = 10.0


@checked
class ServeOptions(CheckpointOptions, RuntimeOptions, RequestLimits, LabelStudioOptions):
    """All options of the server."""

    model: Annotated[
        str | None,
        Help(
            "Model to serve: a file of export.py (.onnx, .xml or .tflite), a checkpoint (a prefix or a folder), a "
            "SavedModel, or the name of published weights."
        ),
    ] = None
    host: Annotated[str, Help("Address to listen on; 0.0.0.0: every address of this machine.")] = "127.0.0.1"
    port: Annotated[int, between(0, 65535), Help("Port to listen on; 0: any free port.")] = 8000
    min_score: Annotated[
        Share | None,
        Help(
            "Lowest score, from 0 to 1, of the returned detections if a request does not set one; also the initial "
            "value of the slider on the demo page. Default: the threshold with the best F1 that is stored with the "
            "model, else 0.4."
        ),
    ] = None
    calibrated_scores: CalibratedScores = False
    allowed_hosts: Annotated[
        tuple[str, ...] | None,
        Help(
            "Host names that requests may address, comma-separated. Default: the names of this machine; any name if "
            "--host is set to another address."
        ),
    ] = None
    allowed_origins: Annotated[
        tuple[str, ...], Help("Allowed CORS origins, comma-separated, such as https://example.org; *: all.")
    ] = ()
