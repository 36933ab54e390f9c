"""Requests to one Label Studio: images of its tasks and annotations of its projects. Nothing else is ever requested."""

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from dataset.files.untrusted_values import shown
from program_support.errors import InputError

API_KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
_TIMEOUT_S = 30.0
_MAX_EXPORT_BYTES = 1 << 30
_ACCESS_TOKEN_S = 120.0  # Label Studio's live five minutes


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: they would leave the Label Studio, for example to a cloud storage."""

    def redirect_request(self, *_: Any) -> None:
        return None


class LabelStudio:
    """A Label Studio at an address such as `http://localhost:8080`, used with the API key of one of its users.

    api_key: a legacy token, or a personal access token (a JSON Web Token, by which access tokens are requested).
    """

    def __init__(self, address: str, api_key: str):
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InputError(f"--label_studio={address}: expected the address of a Label Studio, http://HOST:PORT")
        self.address = address.rstrip("/")
        self._key, self._access, self._lock = api_key, ("", 0.0), threading.Lock()
        # No proxy of the environment sees images or the key
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def local_path(self, reference: str) -> str:
        """Return the path of an image of a task below the address, such as `/data/upload/1/a.jpg`.

        Raises:
            InputError: the image is elsewhere.
        """
        path = reference.removeprefix(self.address)
        name = stored_name(path)
        if not path.startswith("/") or path.startswith("//") or {"..", ""} & {*name.split("/")} or "\\" in name:
            raise InputError(f"the image {shown(reference)} is not one of {self.address}")
        return path

    def image(self, reference: str, *, max_bytes: int) -> bytes:
        """Return the encoded image of a task.

        Raises:
            InputError: the image is elsewhere, too large or cannot be read.
        """
        return self._get(self.local_path(reference), max_bytes=max_bytes)

    def annotated_tasks(self, project: int) -> list[dict]:
        """Return the tasks of a project that have annotations, as its JSON export.

        Raises:
            InputError: they cannot be read.
        """
        content = self._get(f"/api/projects/{project}/export?exportType=JSON", max_bytes=_MAX_EXPORT_BYTES)
        return json.loads(content)

    def _get(self, path: str, *, max_bytes: int) -> bytes:
        return self._answer(urllib.request.Request(self._url(path), headers=self._authorization()), max_bytes)

    def _url(self, path: str) -> str:
        return self.address + quote(path, safe="/?&=%+,:;@!$'()*~-._")

    def _authorization(self) -> dict[str, str]:
        if self._key.count(".") != 2:
            return {"Authorization": f"Token {self._key}"}
        with self._lock:
            token, requested = self._access
            if time.monotonic() - requested > _ACCESS_TOKEN_S or not token:
                body = json.dumps({"refresh": self._key}).encode()
                request = urllib.request.Request(
                    self._url("/api/token/refresh/"), body, {"Content-Type": "application/json"}
                )
                token = json.loads(self._answer(request, 1 << 20))["access"]
                self._access = token, time.monotonic()
            return {"Authorization": f"Bearer {token}"}

    def _answer(self, request: urllib.request.Request, max_bytes: int) -> bytes:
        what = request.full_url.partition("?")[0]
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as reply:
                content = reply.read(max_bytes + 1)
        except urllib.error.HTTPError as error:
            advice = f"; {API_KEY_VARIABLE} is the key of a user who may read it" if error.code in (401, 403) else ""
            raise InputError(f"{what}: Label Studio answered {error.code}{advice}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise InputError(f"{what}: Label Studio does not answer ({reason})") from error
        if len(content) > max_bytes:
            raise InputError(f"{what}: has more than {max_bytes} bytes")
        return content


def stored_name(path: str) -> str:
    """Return the relative file name of an image: that of a local storage (`?d=NAME`), else the path itself."""
    place, _, query = path.partition("?")
    return unquote(parse_qs(query).get("d", [place])[0]).lstrip("/")
