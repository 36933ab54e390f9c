"""Requests to one Label Studio: images of its tasks and annotations of its projects. Nothing else is ever requested."""

import http.client
import json
import re
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from dataset.files.image_files import stored_size
from dataset.files.untrusted_values import shown
from program_support.errors import InputError

API_KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
_TIMEOUT_S = 30.0
_MAX_EXPORT_BYTES = 1 << 30
_ACCESS_TOKEN_S = 120.0  # Label Studio's live five minutes
_IMAGES = "/data/"
_NO_NAME = re.compile("[\0\ud800-\udfff]")  # no file has one in its name


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: they would leave the Label Studio, for example to a cloud storage."""

    def redirect_request(self, *_: Any) -> None:
        return None


class LabelStudio:
    """A Label Studio at an address such as `http://localhost:8080`, used with the API key of one of its users.

    api_key: a legacy token, or a personal access token (a JSON Web Token, by which access tokens are requested).
    """

    def __init__(self, address: str, api_key: str):
        if not _is_address(address):
            raise InputError(
                f"--label_studio={address.rpartition('@')[2]}: expected the address of a Label Studio, "
                "http://HOST:PORT, without a user"
            )
        self.address = address.rstrip("/")
        self._folder = urlsplit(self.address).path  # of a Label Studio that is not at the root of its host
        self._key, self._access, self._lock = api_key, ("", 0.0), threading.Lock()
        # No proxy of the environment sees images or the key
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def local_path(self, reference: str) -> str:
        """Return the path of an image of a task below the address, such as `/data/upload/1/a.jpg`.

        Only uploads and local storages are below `/data/`: the key may read much else.

        Raises:
            InputError: the image is elsewhere.
        """
        path = reference.removeprefix(self.address).removeprefix(self._folder)
        name = stored_name(path)
        if (
            not path.startswith(_IMAGES)
            or {"..", ""} & {*name.split("/")}
            or "\\" in name
            or _NO_NAME.search(path + name)
        ):
            raise InputError(f"the image {shown(reference)} is not one of {self.address}{_IMAGES}")
        return path

    def image(self, reference: str, *, max_bytes: int) -> bytes:
        """Return the encoded image of a task.

        Raises:
            InputError: the image is elsewhere, too large or cannot be read.
        """
        url = self._url(self.local_path(reference))
        content = self._answer(urllib.request.Request(url, headers=self._authorization()), max_bytes)
        try:
            stored_size(content)
        except ValueError as error:
            raise InputError(f"{url}: Label Studio answered something else than an image") from error
        return content

    def annotated_tasks(self, project: int) -> list[dict]:
        """Return the tasks of a project that have annotations, as its JSON export.

        Raises:
            InputError: they cannot be read.
        """
        path = f"/api/projects/{project}/export?exportType=JSON"
        tasks = self._json(urllib.request.Request(self._url(path), headers=self._authorization()), _MAX_EXPORT_BYTES)
        if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
            raise InputError(f"{self._url(path)}: Label Studio answered {shown(tasks)}; expected a list of tasks")
        return tasks

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
                reply = self._json(request, 1 << 20)
                if not isinstance(reply, dict) or not isinstance(reply.get("access"), str):
                    raise InputError(f"{request.full_url}: Label Studio answered without an access token")
                token = reply["access"]
                self._access = token, time.monotonic()
            return {"Authorization": f"Bearer {token}"}

    def _json(self, request: urllib.request.Request, max_bytes: int) -> Any:
        content = self._answer(request, max_bytes)
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{request.full_url}: Label Studio answered something else than JSON") from error

    def _answer(self, request: urllib.request.Request, max_bytes: int) -> bytes:
        what = request.full_url.partition("?")[0]
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as reply:
                content = reply.read(max_bytes + 1)
                is_cut = bool(reply.length)
        except urllib.error.HTTPError as error:
            advice = f"; {API_KEY_VARIABLE} is the key of a user who may read it" if error.code in (401, 403) else ""
            raise InputError(f"{what}: Label Studio answered {error.code}{advice}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error) or type(error).__name__
            raise InputError(f"{what}: Label Studio does not answer ({shown(str(reason))})") from error
        if len(content) > max_bytes:
            raise InputError(f"{what}: has more than {max_bytes} bytes")
        if is_cut:
            raise InputError(f"{what}: Label Studio's answer ended too early")
        return content


def stored_name(path: str) -> str:
    """Return the relative file name of an image: that of a local storage (`?d=NAME`), else the path itself."""
    place, _, query = path.partition("?")
    return unquote(parse_qs(query).get("d", [place])[-1]).lstrip("/")  # of several, Label Studio takes the last


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    is_root = not (parts.query or parts.fragment or parts.username or parts.password or port == 0)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_root and not re.search(r"\s", text)
