"""HTML pages of the server, and the page without one. They use no external resources, and no script but their own."""

import base64
import hashlib
import json
import re
from functools import lru_cache
from importlib import resources
from typing import Any

from dataset.class_names import ClassNames
from efficientdet.options.serve import MAX_SIDE, RequestLimits
from efficientdet.reports.drawing import class_color
from efficientdet.reports.html_page import THEME
from program_support.installation import project_version

_FILES = resources.files("efficientdet.serving")


@lru_cache(maxsize=4)
def detector_page(min_score: float) -> str:
    """Return the HTML of / of the server. min_score: Initial score threshold of the slider."""
    links = '<a href="/openapi.json">API</a><a href="/metrics">Metrics</a>'
    return _detector_page("server_requests.js", min_score, links=links)


def static_page(min_score: float) -> tuple[str, str]:
    """Return the HTML of the same page without a server, and the script of the worker that it starts."""
    page = _detector_page("worker_requests.js", min_score, links="")
    return page, _text("worker.js")


def _detector_page(requests: str, min_score: float, *, links: str) -> str:
    """Assemble `detector.html`, `detector.css`, `detector.js` and the script that defines loadModel and detect."""
    html = _text("detector.html").replace("{links}", links).replace("{min_score}", f"{min_score:.2f}")
    parts = {
        "theme": THEME,
        "style": _text("detector.css"),
        "requests": _text(requests),
        "program": _text("detector.js"),
    }
    for name, content in parts.items():
        html = html.replace(f"/*{name}*/", content)
    return html


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def api_document(limits: RequestLimits, min_score: float) -> dict[str, Any]:
    """Return the content of /openapi.json: `openapi.json` with version, limits of a request and score threshold."""
    values: dict[str, Any] = {
        "version": project_version(),
        "min_score": min_score,
        "max_queue": limits.max_queue,
        "max_pixels": f"{limits.max_pixels:,}",
        "max_request_bytes": f"{limits.max_request_bytes:,}",
        "max_side": f"{MAX_SIDE:,}",
        "request_timeout_s": f"{limits.request_timeout_s:g}",
    }
    text = _text("openapi.json")
    for name, value in values.items():
        if not isinstance(value, str):
            text = text.replace(f'"{{{name}}}"', str(value))  # alone: a number
        text = text.replace(f"{{{name}}}", str(value))
    return json.loads(text)


def model_description(model: str, class_names: ClassNames, min_score: float) -> dict[str, Any]:
    """Return what the page needs to know of a model: its name, classes with the colors of plots, score threshold."""
    numbered = enumerate(zip(class_names.category_ids, class_names.names, strict=True))
    return {
        "model": model,
        "classes": [
            {"id": number, "name": name, "color": "#{:02x}{:02x}{:02x}".format(*class_color(index))}
            for index, (number, name) in numbered
        ],
        "min_score": min_score,
    }


@lru_cache(maxsize=4)
def content_security_policy(html: str) -> str:
    """Return a Content-Security-Policy that allows only the page's inline style and script and calls to its server."""

    def sources(tag: str) -> str:
        inline_texts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        return (
            " ".join(
                f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline_texts
            )
            or "'none'"
        )

    return (
        f"default-src 'none'; style-src {sources('style')}; script-src {sources('script')}; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
