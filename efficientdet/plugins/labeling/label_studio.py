"""Label Studio's machine learning backend: proposals for its tasks, and trainings on its annotations.

Protocol: https://labelstud.io/guide/ml_create. Label Studio calls /health, /setup and /predict. By the webhook that it
makes for each backend it calls /webhook after each annotation and for "Start training".
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dataset.files.untrusted_values import shown
from dataset.files.xml_and_yaml import parse_xml
from efficientdet.inference.result_files import prediction, rectangle_region
from efficientdet.options.serve import RequestLimits, ServeOptions
from efficientdet.plugins.labeling.background_training import API_KEY_VARIABLE, BackgroundTraining, LabelStudio
from efficientdet.serving.batching import Batcher, ImageResult, ServedModel, image_reply
from efficientdet.serving.request_body import (
    MAX_REQUESTS_IN_MEMORY,
    MemoryBudget,
    RequestError,
    checked_image,
    parsed_json,
    read_body,
    value_count,
)
from program_support.errors import InputError

_MOST_VALUES = 200_000  # of the JSON of a request
_CHANGES = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED")
_START = "START_TRAINING"


class Control(NamedTuple):
    """The rectangles of a labeling configuration: `<RectangleLabels>` for an `<Image>`."""

    name: str
    image: str  # name of the image tag
    key: str  # of the image in a task's data
    labels: Mapping[str, str]  # value in annotations of each label in lower case


def label_studio_routes(options: ServeOptions, open_model: Callable[[str], ServedModel]) -> "LabelStudioBackend | None":
    """Return the routes of the server's options; None without --label_studio.

    Raises:
        InputError: the address is invalid, or there is no key.
    """
    if not options.label_studio:
        if options.train_dir:
            raise InputError("--train_dir is for --label_studio, whose annotations it trains on")
        return None
    if not (key := os.environ.get(API_KEY_VARIABLE, "").strip()):
        raise InputError(
            f"--label_studio needs the environment variable {API_KEY_VARIABLE}, the key of one of its users"
        )
    studio = LabelStudio(options.label_studio, key)
    return LabelStudioBackend(
        studio, options, BackgroundTraining(studio, options, open_model) if options.train_dir else None
    )


class LabelStudioBackend:
    """The routes of the protocol, of a server with one model."""

    def __init__(self, studio: LabelStudio, limits: RequestLimits, training: BackgroundTraining | None):
        self._studio, self._limits, self._training = studio, limits, training
        self._memory = MemoryBudget(MAX_REQUESTS_IN_MEMORY * limits.max_request_bytes)
        self._batcher: Batcher | None = None

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/health", self._health),
            *(
                Route(f"/{action.__name__.lstrip('_')}", self._posted(action), methods=["POST"])
                for action in (self._setup, self._predict, self._webhook)
            ),
        ]

    @contextlib.contextmanager
    def serving(self, batcher: Batcher) -> Iterator[None]:
        """Detect with `batcher` in a block, and replace its model by those that are trained."""
        self._batcher = batcher
        with self._training.running(batcher) if self._training else contextlib.nullcontext():
            yield

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "UP", "model_class": self._version()})

    def _posted(self, action):
        async def reply(request: Request) -> Response:
            with self._memory.reservation() as reserve:
                body = await read_body(request, self._limits, reserve=reserve)
                return JSONResponse(await action(await asyncio.to_thread(_parsed, body)))

        return reply

    async def _setup(self, content: dict) -> dict:
        """Check the labeling configuration of a project."""
        _control(content.get("schema"))
        return {"model_version": self._version()}

    async def _predict(self, content: dict) -> dict:
        """Return proposals in the order of the tasks; none, which Label Studio does not store, for one that fails."""
        tasks = content.get("tasks")
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise RequestError(422, f"tasks is {shown(tasks)}; expected a list of tasks")
        control, results = _control(content.get("label_config")), []
        if self._detector.model is None:
            return {"results": [[] for _ in tasks]}
        for first in range(0, len(tasks), self._limits.max_batch):
            batch = tasks[first : first + self._limits.max_batch]
            results += await asyncio.gather(*(self._proposal(task, control) for task in batch))
        return {"results": results, "model_version": self._version()}

    async def _webhook(self, content: dict) -> dict:
        """Count a changed annotation, or start a training."""
        action, project = content.get("action"), content.get("project")
        number = project.get("id") if isinstance(project, dict) else None
        if self._training and type(number) is int and action in (*_CHANGES, _START):
            self._training.changed(number, at_once=action == _START)
        return {"status": "ok"}

    @property
    def _detector(self) -> Batcher:
        assert self._batcher is not None
        return self._batcher

    def _version(self) -> str:
        model = self._detector.model
        return model.title if model else "not trained yet"

    async def _proposal(self, task: dict, control: Control) -> dict | list:
        try:
            data = task.get("data")
            reference = data.get(control.key) if isinstance(data, dict) else None
            if not isinstance(reference, str):
                raise InputError(f"its data has no {control.key!r}")
            encoded = await asyncio.to_thread(self._studio.image, reference, max_bytes=self._limits.max_request_bytes)
            image = checked_image(encoded, "the image", self._limits)
            [result] = await self._detector.detect([image])
        except (InputError, RequestError) as error:
            print(f"label studio: task {shown(task.get('id'))}: {error}", flush=True)
            return []
        return proposal(result, control)


def proposal(result: ImageResult, control: Control) -> dict[str, Any]:
    """Return Label Studio's prediction: a region for each detection whose class is a label."""
    reply, regions, scores = image_reply(result, min_score=result.model.min_score), [], []
    for number, detection in enumerate(reply["detections"]):
        label = control.labels.get(detection["class_name"].casefold())
        if label is None:
            continue
        x_min, y_min, x_max, y_max = detection["box"]
        region = rectangle_region(
            (x_min, y_min, x_max - x_min, y_max - y_min),
            label,
            identifier=f"detection{number}",
            size=(reply["width"], reply["height"]),
            from_name=control.name,
            to_name=control.image,
        )
        regions.append(region)
        scores.append(detection["score"])
    return prediction(regions, scores, model_version=result.model.title)


def _parsed(body: bytearray) -> dict:
    if value_count(body) > _MOST_VALUES:
        raise RequestError(413, f"the JSON has more than {_MOST_VALUES} values")
    content = parsed_json(body)
    if not isinstance(content, dict):
        raise RequestError(422, "the JSON body is not an object")
    return content


def _control(configuration: Any) -> Control:
    """Return the first rectangles of a labeling configuration.

    Raises:
        RequestError: it has none.
    """
    expected = RequestError(422, "expected a labeling configuration with <RectangleLabels> for an <Image>")
    try:
        root = parse_xml(str(configuration).encode())
    except ValueError as error:
        raise expected from error
    images = {one.get("name"): one.get("value", "") for one in root.iter("Image")}
    for control in root.iter("RectangleLabels"):
        name, image = control.get("name"), control.get("toName")
        if name and image in images and images[image].startswith("$"):
            values = [label.get("alias") or label.get("value") or "" for label in control.iter("Label")]
            labels = {value.casefold(): value for value in values}
            return Control(name, str(image), images[image][1:], labels)
    raise expected
