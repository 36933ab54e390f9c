"""Parsing of detection requests: the body is read within limits, and images are taken from multipart or JSON.

Everything stays in memory: the parser does not spool to disk.
"""

import asyncio
import base64
import binascii
import contextlib
import itertools
import json
import math
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from dataset.files.image_files import TooManyPixels, stored_size
from dataset.files.image_formats import FORMATS
from dataset.files.image_parts import image_parts
from dataset.files.untrusted_values import shown
from efficientdet.options.serve import MAX_SIDE, RequestLimits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_REQUESTS_IN_MEMORY = 16  # requests of maximum size that fit into the memory budget
MAX_CONNECTIONS = 256  # open connections; each takes a file descriptor, and a process often has 1,024


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


_KINDS = "expected multipart/form-data or application/json"
_FILE_FIELDS = ("image", "file")  # form fields with an image
_FIELDS = (*_FILE_FIELDS, "min_score")
_KEYS = ("images", "min_score")  # keys of the JSON object
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
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind not in (b"multipart/form-data", b"application/json"):
        raise RequestError(
            415, f"the body is {shown(kind.decode('latin-1')) if kind else 'without a content type'}; {_KINDS}"
        )
    parameters = request.query_params
    _check_names([name for name, _ in parameters.multi_items()], ("min_score",), what="parameter")
    body = await read_body(request, limits, reserve=reserve)
    read = _from_json if kind == b"application/json" else _from_multipart
    return await asyncio.to_thread(_parsed, read, body, options, parameters, limits)


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


def _parsed(
    read: Callable,
    body: bytearray,
    options: Mapping[bytes, bytes],
    parameters: Mapping[str, str],
    limits: RequestLimits,
) -> DetectRequest:
    images, min_score = read(body, options, limits)
    if not images:
        raise RequestError(422, "the request has no image; expected at least one")
    parsed = [checked_image(encoded, image_label(number, len(images)), limits) for number, encoded in enumerate(images)]
    return DetectRequest(parsed, _score(parameters.get("min_score", min_score)))


def image_label(number: int, count: int) -> str:
    """Return the name in messages of image `number` of `count`."""
    return "the image" if count == 1 else f"image {number + 1} of {count}"


def _from_json(body: bytearray, options: Mapping[bytes, bytes], limits: RequestLimits) -> tuple[list[bytes], Any]:
    most = 4 * limits.max_queue + 100
    if value_count(body) > most:
        raise RequestError(413, f"the JSON has more than {most} values; expected at most {limits.max_queue} images")
    content = parsed_json(body)
    if not isinstance(content, dict):
        raise RequestError(422, 'the JSON body is not an object; expected {"images": [base64, ...]}')
    _check_names(content, _KEYS, what="key")
    images = content.get("images")
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise RequestError(422, "images is missing or not a list of base64 strings")
    _check_count(len(images), limits)
    return [_decoded(text, image_label(number, len(images))) for number, text in enumerate(images)], content.get(
        "min_score"
    )


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


class _Parts:
    """Callbacks of a `MultipartParser` that store the field name and content of each part."""

    def __init__(self, limits: RequestLimits):
        self.parts: list[tuple[str, bytearray]] = []
        self.ended = False
        self._limits = limits
        self._name, self._value, self._disposition = b"", b"", b""

    def on_part_begin(self) -> None:
        _check_count(len(self.parts), self._limits)  # one part may be min_score
        self._disposition = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("latin-1")
        _check_names([name], _FIELDS, what="field")
        self.parts.append((name, bytearray()))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1][1].extend(memoryview(data)[start:end])

    def on_end(self) -> None:
        self.ended = True


def _from_multipart(
    body: bytearray, options: Mapping[bytes, bytes], limits: RequestLimits
) -> tuple[list[bytes], str | None]:
    parts = _Parts(limits)
    callbacks: MultipartCallbacks = {
        "on_part_begin": parts.on_part_begin,
        "on_part_data": parts.on_part_data,
        "on_header_field": parts.on_header_field,
        "on_header_value": parts.on_header_value,
        "on_header_end": parts.on_header_end,
        "on_headers_finished": parts.on_headers_finished,
        "on_end": parts.on_end,
    }
    try:
        parser = MultipartParser(options.get(b"boundary", b""), callbacks)
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        raise RequestError(400, "the body is not a multipart form") from error
    if not parts.ended:
        raise RequestError(400, "the multipart form is truncated")
    images = [bytes(content) for name, content in parts.parts if name in _FILE_FIELDS]
    _check_count(len(images), limits)
    scores = [bytes(content).decode("latin-1") for name, content in parts.parts if name == "min_score"]
    return images, scores[-1] if scores else None


def _check_names(names, expected: tuple[str, ...], *, what: str) -> None:
    for name in names:
        if name not in expected:
            raise RequestError(422, f"unknown {what} {shown(name)}; expected {', '.join(expected)}")


def _check_count(count: int, limits: RequestLimits) -> None:
    if count > limits.max_queue:
        raise RequestError(413, f"the request has more than {limits.max_queue} images")


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
