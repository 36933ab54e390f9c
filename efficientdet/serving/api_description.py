"""OpenAPI 3.1 document of the server."""

from importlib import metadata
from typing import Any

from efficientdet.serving.limits import MAX_SIDE, Limits

_PACKAGE = "efficientdet-tf2"


def api_document(limits: Limits) -> dict[str, Any]:
    """Return the content of /openapi.json."""
    score = {"type": "number", "minimum": 0, "maximum": 1}
    text = {"type": "string", "description": "base64 string or data: URL"}
    content = {
        "type": "object",
        "required": ["images"],
        "additionalProperties": False,
        "properties": {"images": _list(text, max_items=limits.max_queue), "min_score": score},
    }
    files = _list({"type": "string", "contentMediaType": "application/octet-stream"}, max_items=limits.max_queue)
    form = {
        "type": "object",
        "anyOf": [{"required": ["image"]}, {"required": ["file"]}],
        "properties": {"image": files, "file": files, "min_score": score},
    }
    detect = {
        "summary": "Detect objects in images.",
        "operationId": "detect",
        "parameters": [
            {
                "name": "min_score",
                "in": "query",
                "schema": {**score, "default": limits.min_score},
                "description": "Score threshold of returned detections; overrides the value in the body.",
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": form}, "application/json": {"schema": content}},
        },
        "responses": {"200": _json_reply("One result per image, in the order of the request.", "Detections")}
        | {str(status): _json_reply(reason, "Error") for status, reason in _error_statuses(limits).items()},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Object detection",
            "version": metadata.version(_PACKAGE),
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            "/v1/detect": {"post": detect},
            "/v1/model": _get(
                "model",
                "Return the model's name, its classes with colors, and the limits of a request.",
                _json_reply("Description of the model.", "Model"),
            ),
            "/healthz": _get(
                "health",
                "Return the health of the server.",
                {
                    "description": "The server is healthy.",
                    "content": {"application/json": {"schema": _object({"status": {"const": "ok"}})}},
                },
            ),
            "/metrics": _get(
                "metrics",
                "Return metrics in the Prometheus text format.",
                {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            ),
        },
        "components": {"schemas": _schemas(score)},
    }


def _error_statuses(limits: Limits) -> dict[int, str]:
    return {
        400: "The body is malformed, an image cannot be decoded, or the Host header is not allowed.",
        403: "The Origin header is not allowed.",
        408: f"The body did not arrive within {limits.request_timeout_s:g} s.",
        413: f"The request exceeds {limits.max_request_bytes:,} bytes or {limits.max_queue} images; an image exceeds "
        f"{limits.max_pixels:,} pixels, {MAX_SIDE:,} pixels per side, or the number of scans or segments; or the JSON "
        "has too many values.",
        415: "The content type is neither multipart/form-data nor application/json.",
        422: "The request has no image, an unknown parameter, field or key, or an invalid value.",
        500: "The detector failed.",
        503: f"The queue of {limits.max_queue} images or the memory for requests is full; see Retry-After.",
        504: f"Detection did not finish within {limits.request_timeout_s:g} s.",
    }


def _schemas(score: dict) -> dict[str, Any]:
    number, text = {"type": "integer"}, {"type": "string"}
    detection = _object(
        {
            "box": _list({"type": "number"}, min_items=4, max_items=4)
            | _description("x_min, y_min, x_max, y_max in pixels of the image after EXIF orientation"),
            "score": score | _description("confidence score, 0 to 1"),
            "class_id": number | _description("category id of the data set, such as COCO's"),
            "class_name": text | _description("class name"),
            "mask": _object({"size": _list(number, min_items=2, max_items=2), "counts": text})
            | _description("COCO compressed RLE; only for models with masks"),
        },
        optional="mask",
    )
    image = _object(
        {
            "width": number | _description("pixels, after EXIF orientation"),
            "height": number | _description("pixels, after EXIF orientation"),
            "detections": _list(_ref("Detection")) | _description("sorted by descending score"),
        }
    )
    class_of = _object({"id": number, "name": text, "color": text | {"pattern": "^#[0-9a-f]{6}$"}})
    limits = _object({"max_request_bytes": number, "max_pixels": number, "max_queue": number})
    model = text | _description("name of the model")
    return {
        "Detection": detection,
        "Image": image,
        "Error": _object({"error": text | _description("reason, one line")}),
        "Detections": _object(
            {
                "model": model,
                "min_score": score | _description("score threshold of this reply"),
                "images": _list(_ref("Image")) | _description("one entry per image, in the order of the request"),
                "time_ms": {"type": "number"}
                | _description("milliseconds from the first byte of the body to the reply"),
            }
        ),
        "Model": _object(
            {
                "model": model,
                "classes": _list(class_of) | _description("classes, with the colors of plots"),
                "min_score": score | _description("default score threshold"),
                "limits": limits | _description("limits of a request"),
            }
        ),
    }


def _description(description: str) -> dict[str, str]:
    return {"description": description}


def _object(properties: dict[str, Any], *, optional: str = "") -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [name for name in properties if name != optional]}


def _list(items: dict, *, min_items: int | None = None, max_items: int | None = None) -> dict[str, Any]:
    bounds = {"minItems": min_items, "maxItems": max_items}
    return {"type": "array", "items": items} | {name: bound for name, bound in bounds.items() if bound is not None}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_reply(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _get(name: str, summary: str, reply: dict) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": reply}}}
