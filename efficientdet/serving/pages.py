"""The HTML pages of the server, complete in themselves: they load nothing and run no script but their own."""

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

from efficientdet.reports.html_page import command, document, heading, paragraph, section, table

_FILES = resources.files("efficientdet.serving")
_CALLS = """curl -F image=@photo.jpg 'http://127.0.0.1:8000/v1/detect?min_score=0.3'
curl -F image=@one.jpg -F image=@two.png http://127.0.0.1:8000/v1/detect
echo "{\\"images\\": [\\"$(base64 -w0 photo.jpg)\\"]}" |
    curl -H 'Content-Type: application/json' -d @- http://127.0.0.1:8000/v1/detect"""


def detector_page(min_score: float) -> str:
    """Return the HTML of /, put together from `detector.html`, `detector.css` and `detector.js`.

    min_score: where the slider stands at first.
    """
    html, style, program = ((_FILES / f"detector.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return html.replace("/*style*/", style).replace("/*program*/", program).replace("{min_score}", f"{min_score:.2f}")


def api_page(api: dict[str, Any]) -> str:
    """Return the HTML of /docs, read from the OpenAPI document."""
    calls = [(method.upper(), path, told["summary"]) for path, methods in api["paths"].items()
             for method, told in methods.items()]
    replies = [(status, told["description"]) for status, told in api["paths"]["/v1/detect"]["post"]["responses"].items()]
    return document("Object detection: the interface", [
        heading("Object detection: the interface", lead="Every error is JSON with one line: {\"error\": \"...\"}. Nothing "
                                                        "that is sent is kept. The same for programs: /openapi.json."),
        table(("method", "address", "what it tells"), calls),
        section("POST /v1/detect", paragraph("Images as files of a form (fields image or file) or as base64 (a list images).")
                + command(_CALLS) + table(("status", "when"), replies)),
        *(section(name, _properties(schema)) for name, schema in api["components"]["schemas"].items()),
        section("As it is", command(json.dumps(api, indent=2)))])


def _properties(schema: dict) -> str:
    rows = [(name, _kind(told), told.get("description", "")) for name, told in schema["properties"].items()]
    return table(("field", "type", ""), rows)


def _kind(told: dict) -> str:
    if "$ref" in told:
        return told["$ref"].rsplit("/", 1)[-1]
    if told["type"] == "array":
        return f"list of {_kind(told['items'])}"
    if told["type"] == "object":
        return f"object of {', '.join(told['properties'])}"
    return told["type"]


def content_security_policy(html: str) -> str:
    """A Content-Security-Policy with which a page runs its own inline style and program, calls its own server, and no more."""
    def sources(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
                        for text in found) or "'none'"

    return (f"default-src 'none'; style-src {sources('style')}; script-src {sources('script')}; connect-src 'self'; "
            "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'")
