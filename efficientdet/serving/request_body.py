"""Detection requests: the body is read within limits, and images are taken from multipart or JSON, in memory."""

import asyncio
import base64
import binascii
import contextlib
import itertools
import json
import math
import string
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, NamedTuple

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from dataset.files.image_files import TooManyPixels, stored_size
from dataset.files.image_formats import FORMATS, image_parts
from dataset.files.untrusted_values import shown
from efficientdet.options.serve import MAX_SIDE, RequestLimits

MAX_REQUESTS_IN_MEMORY = 16  # requests of maximum size that fit into the memory budget


class RequestError(Exception):
    """Error reply to a request: HTTP status, a one-line reason, and optionally the seconds until a retry."""

    def __init__(self, status: int, reason: str, *, retry_after_s: int | None = None):
        super().__init__(reason)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class MemoryBudget:
    """Memory budget in bytes for the bodies of all requests."""

    def __init__(self, max_bytes: int):
        self._max_bytes, self._reserved = max_bytes, 0

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves further bytes for one request, until its end.

        The function raises RequestError (503) if the budget is exceeded.
        """
        reserved = 0

        def reserve(count: int) -> None:
            nonlocal reserved
            if self._reserved + count > self._max_bytes:
                raise RequestError(503, "too many large requests at once; retry later", retry_after_s=1)
            reserved += count
            self._reserved += count

        try:
            yield reserve
        finally:
            self._reserved -= reserved


# Decoding a JPEG 2000 file of 15 KB can take 100 bytes of memory per pixel; the cost of AVIF has not been measured
_FORMATS = tuple(name for name in FORMATS if name not in ("AVIF", "JPEG2000"))
_MAX_SCANS = 100  # limit of libtiff
_USUAL_SCANS = 16  # encoders write about ten; each passes over all pixels, so that more count as more pixels
_MAX_PARTS = 10_000  # plus one per KiB; Pillow takes up to 3 microseconds and 150 bytes of memory per part


class EncodedImage(NamedTuple):
    """Encoded image of a request."""

    encoded: bytes
    pixels: int  # according to the header; more for a JPEG of many scans, which takes as long to decode


class DetectRequest(NamedTuple):
    """Parsed detection request."""

    images: list[EncodedImage]
    min_score: float | None  # None: that of the model


async def read_request(request: Request, limits: RequestLimits, *, reserve: Callable[[int], None]) -> DetectRequest:
    """Read and parse a request.

    reserve: Called with the size in bytes of each part of the body before the part is stored.

    Raises:
        RequestError: the request cannot be answered.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("multipart/form-data", "application/json"):
        raise RequestError(
            415,
            f"the body is {shown(kind) if kind else 'without a content type'}; expected multipart/form-data or "
            "application/json",
        )
    _check_names(request.query_params, ("min_score",), what="parameter")
    body = await read_body(request, limits, reserve=reserve)
    if kind == "application/json":
        images, min_score = await asyncio.to_thread(_from_json, body, limits)
    else:
        images, min_score = await _from_multipart(body, request.headers, limits)
    if not images:
        raise RequestError(422, "the request has no image; expected at least one")
    score = _score(request.query_params.get("min_score", min_score))
    return DetectRequest(await asyncio.to_thread(_checked_images, images, limits), score)


def _checked_images(images: list[bytes], limits: RequestLimits) -> list[EncodedImage]:
    return [checked_image(encoded, image_label(number, len(images)), limits) for number, encoded in enumerate(images)]


async def read_body(request: Request, limits: RequestLimits, *, reserve: Callable[[int], None]) -> bytearray:
    """Read the body of a request within its limits of size and time; `reserve` as in `read_request`.

    Raises:
        RequestError: the body is too large, too slow or incomplete.
    """
    most = limits.max_request_bytes
    too_large = RequestError(413, f"the request has more than {most} bytes")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.request_timeout_s):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most:
                    raise too_large
                reserve(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise RequestError(408, f"the request body did not arrive within {limits.request_timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise RequestError(400, "the request body is incomplete") from error
    return body


def image_label(number: int, count: int) -> str:
    """Return the name in messages of image `number` of `count`."""
    return "the image" if count == 1 else f"image {number + 1} of {count}"


def _from_json(body: bytearray, limits: RequestLimits) -> tuple[list[bytes], Any]:
    most = 4 * limits.max_queue + 100
    if value_count(body) > most:
        raise RequestError(413, f"the JSON has more than {most} values; expected at most {limits.max_queue} images")
    content = parsed_json(body)
    if not isinstance(content, dict):
        raise RequestError(422, 'the JSON body is not an object; expected {"images": [base64, ...]}')
    _check_names(content, ("images", "min_score"), what="key")
    images = content.get("images")
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise RequestError(422, "images is missing or not a list of base64 strings")
    if len(images) > limits.max_queue:
        raise RequestError(413, f"the request has more than {limits.max_queue} images")
    decoded = [_decoded(text, image_label(number, len(images))) for number, text in enumerate(images)]
    return decoded, content.get("min_score")


def value_count(body: bytearray) -> int:
    """Return about the number of values of JSON: a parsed value takes up to 100 times its length in memory.

    Every value but the first follows a comma, colon or bracket. Base64 has none of them; the prefix of a data: URL has
    two.
    """
    return sum(body.count(mark) for mark in b",:[{")


def parsed_json(body: bytearray) -> Any:
    """Return the value of a body.

    Raises:
        RequestError: it is not JSON.
    """
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:  # ValueError also for a number with thousands of digits
        raise RequestError(400, "the body is not JSON") from error


def _decoded(text: str, label: str) -> bytes:
    """Decode base64, also from a data: URL or with line breaks."""
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise RequestError(400, f"{label} is a data: URL that is not base64-encoded")
    try:
        return base64.b64decode(text.encode("ascii").translate(None, string.whitespace.encode()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(400, f"{label} is not base64") from error


class _FormInMemory(MultiPartParser):
    """Starlette's parser without temporary files on the disk."""

    spool_max_size = 0  # no limit


async def _from_multipart(body: bytearray, headers: Headers, limits: RequestLimits) -> tuple[list[bytes], str | None]:
    async def complete() -> AsyncGenerator[bytes, None]:
        yield bytes(body)

    if not body.rstrip().endswith(b"--"):
        raise RequestError(400, "the multipart form is truncated")
    try:
        form = await _FormInMemory(headers, complete(), max_files=limits.max_queue, max_fields=1).parse()
    except UnicodeError as error:  # a charset such as "undefined"
        raise RequestError(400, "form: its charset cannot be used") from error
    except MultiPartException as error:
        raise RequestError(413 if error.message.startswith("Too many") else 400, f"form: {error.message}") from error
    try:
        _check_names(form, ("image", "file", "min_score"), what="field")
        items = form.multi_items()
        if any((name == "min_score") == isinstance(value, UploadFile) for name, value in items):
            raise RequestError(422, "expected files in the fields image and file, and text in min_score")
        score = form.get("min_score")
        images = [await value.read() for _, value in items if isinstance(value, UploadFile)]
        return images, score if isinstance(score, str) else None
    finally:
        await form.close()


def _check_names(names, expected: tuple[str, ...], *, what: str) -> None:
    for name in names:
        if name not in expected:
            raise RequestError(422, f"unknown {what} {shown(name)}; expected {', '.join(expected)}")


def checked_image(encoded: bytes, label: str, limits: RequestLimits) -> EncodedImage:
    """Return an image that may be decoded. label: its name in messages.

    Raises:
        RequestError: decoding would be too expensive.
    """
    scans = _count_scans(encoded, label)
    try:
        height, width = stored_size(encoded, formats=_FORMATS)
    except TooManyPixels as error:
        raise RequestError(413, f"{label} has more than {limits.max_pixels} pixels") from error
    except ValueError as error:
        raise RequestError(400, f"{label} is not a supported image; expected {', '.join(_FORMATS)}") from error
    if height * width > limits.max_pixels or max(height, width) > MAX_SIDE:
        raise RequestError(
            413,
            f"{label} has {width} x {height} pixels; expected at most {limits.max_pixels}, and {MAX_SIDE} per side",
        )
    pixels = height * width * max(1, math.ceil(scans / _USUAL_SCANS))
    if pixels > limits.max_pixels:
        raise RequestError(
            413,
            f"{label} has {width} x {height} pixels in {scans} scans; "
            f"expected at most {limits.max_pixels // (height * width) * _USUAL_SCANS} scans of this size",
        )
    return EncodedImage(encoded, pixels)


def _count_scans(encoded: bytes, label: str) -> int:
    """Return the number of scans, 0 without any.

    Raises:
        RequestError: for too many parts, which are slow to decode.
    """
    most = _MAX_PARTS + len(encoded) // 1024
    counts = Counter(itertools.islice(image_parts(encoded), most + 1))
    if counts["scan"] > _MAX_SCANS or counts.total() > most:
        raise RequestError(
            413,
            f"{label} has {counts['scan']} scans and at least {counts.total()} segments; "
            f"expected at most {_MAX_SCANS} scans and {most} segments",
        )
    return counts["scan"]


def _score(value: Any) -> float | None:
    if value is None:
        return None
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not 0 <= score <= 1:
        raise RequestError(422, f"min_score is {shown(value)}; expected a number from 0 to 1")
    return score
