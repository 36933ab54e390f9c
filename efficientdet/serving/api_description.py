"""The API as an OpenAPI 3.1 document."""

from importlib import metadata
from typing import Any

from efficientdet.serving.limits import MOST_SIDE, Limits

_PACKAGE = "efficientdet-tf2"


def api_document(limits: Limits) -> dict[str, Any]:
    """Return the document of /openapi.json."""
    score = {"type": "number", "minimum": 0, "maximum": 1}
    text = {"type": "string", "description": "base64, or a data: URL"}
    asked = {"type": "object", "required": ["images"], "additionalProperties": False, "properties": {
        "images": _list(text, most=limits.max_queue), "min_score": score}}
    files = _list({"type": "string", "contentMediaType": "application/octet-stream"}, most=limits.max_queue)
    form = {"type": "object", "anyOf": [{"required": ["image"]}, {"required": ["file"]}], "properties": {
        "image": files, "file": files, "min_score": score}}
    detect = {
        "summary": "What is in images", "operationId": "detect", "parameters": [{
            "name": "min_score", "in": "query", "schema": {**score, "default": limits.min_score},
            "description": "Lowest score of what is returned; wins over that of the body."}],
        "requestBody": {"required": True, "content": {
            "multipart/form-data": {"schema": form}, "application/json": {"schema": asked}}},
        "responses": {"200": _json_reply("One entry for each image, in their order.", "Detections")} | {
            str(status): _json_reply(reason, "Error") for status, reason in _refusals(limits).items()}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Object detection", "version": metadata.version(_PACKAGE), "license": {
            "name": "Apache 2.0", "identifier": "Apache-2.0"}},
        "paths": {
            "/v1/detect": {"post": detect},
            "/v1/model": _get("model", "Classes with their colors, and limits", _json_reply("Both.", "Model")),
            "/healthz": _get("health", "Whether the server answers", {"description": "It does.", "content": {
                "application/json": {"schema": _object({"status": {"const": "ok"}})}}}),
            "/metrics": _get("metrics", "Counts in Prometheus's text form", {"description": "All of them.", "content": {
                "text/plain": {"schema": {"type": "string"}}}})},
        "components": {"schemas": _schemas(score)}}


def _refusals(limits: Limits) -> dict[int, str]:
    return {
        400: "An image that cannot be decoded, a body that is none of its kind, or a host name that is not this server's.",
        403: "The call of a page elsewhere.",
        408: f"A body that did not come within {limits.request_timeout_s:g} s.",
        413: f"More than {limits.max_request_bytes} bytes, {limits.max_queue} images, or {limits.max_pixels} pixels of one "
             f"({MOST_SIDE} a side), an image of too many scans or parts, or JSON of far more values than images.",
        415: "A body of another kind than multipart/form-data and application/json.",
        422: "A parameter, field or key that there is not, or of another value than is requested; no image.",
        500: "The detector failed.",
        503: f"More than {limits.max_queue} images would wait, or too many bytes; Retry-After says when to come again.",
        504: f"Nothing was detected within {limits.request_timeout_s:g} s."}


def _schemas(score: dict) -> dict[str, Any]:
    number, text = {"type": "integer"}, {"type": "string"}
    detection = _object({
        "box": _list({"type": "number"}, least=4, most=4) | {
            "description": "x_min, y_min, x_max, y_max in pixels of the image, turned upright as its EXIF says"},
        "score": score, "class_id": number | {"description": "of the data set, such as COCO's"}, "class_name": text,
        "mask": _object({"size": _list(number, least=2, most=2), "counts": text}) | {
            "description": "COCO's run lengths, of detectors that have masks"}}, optional="mask")
    image = _object({"width": number, "height": number, "detections": _list(_ref("Detection"))})
    class_of = _object({"id": number, "name": text, "color": text | {"pattern": "^#[0-9a-f]{6}$"}})
    limits = _object({"max_request_bytes": number, "max_pixels": number, "max_queue": number})
    return {
        "Detection": detection, "Image": image, "Error": _object({"error": text}),
        "Detections": _object({"model": text, "min_score": score, "images": _list(_ref("Image")), "time_ms": {
            "type": "number", "description": "from the begin of the body to the reply"}}),
        "Model": _object({"model": text, "classes": _list(class_of), "min_score": score, "limits": limits})}


def _object(properties: dict[str, Any], *, optional: str = "") -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [name for name in properties if name != optional]}


def _list(items: dict, *, least: int | None = None, most: int | None = None) -> dict[str, Any]:
    bounds = {"minItems": least, "maxItems": most}
    return {"type": "array", "items": items} | {name: bound for name, bound in bounds.items() if bound is not None}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_reply(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _get(name: str, summary: str, reply: dict) -> dict[str, Any]:
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": reply}}}
