"""The page of the server: one document with its style and its program inside, which may do nothing but what is in it."""

import base64
import hashlib
import re
from importlib import resources

_FILES = resources.files("efficientdet.serving")


def detector_page(min_score: float) -> str:
    """Return the HTML of /, put together from `detector.html`, `detector.css` and `detector.js`.

    min_score: where the slider stands at first.
    """
    html, style, program = ((_FILES / f"detector.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return html.replace("/*style*/", style).replace("/*program*/", program).replace("{min_score}", f"{min_score:.2f}")


def content_security_policy(html: str) -> str:
    """A Content-Security-Policy with which a page runs its own inline style and program, calls its own server, and no more."""
    def sources(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, flags=re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
                        for text in found) or "'none'"

    return (f"default-src 'none'; style-src {sources('style')}; script-src {sources('script')}; connect-src 'self'; "
            "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'")
