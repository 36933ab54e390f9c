"""Quick starts in the background of a server, on the annotations of a project of Label Studio."""

import contextlib
import errno
import http.client
import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from dataset.conversion.folder_files import image_reference
from dataset.files.image_files import stored_size
from dataset.files.untrusted_values import shown
from efficientdet.options.serve import ServeOptions
from efficientdet.quickstart.output_folder import exported_model, wait_for_quickstart
from efficientdet.quickstart.programs import program_command
from efficientdet.serving.batching import Batcher, ServedModel
from program_support.atomic_files import write_bytes, write_text
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError

API_KEY_VARIABLE = "LABEL_STUDIO_API_KEY"
_TIMEOUT_S = 30.0
_MAX_EXPORT_BYTES = 1 << 30
_ACCESS_TOKEN_S = 120.0  # Label Studio's live five minutes
_IMAGES = "/data/"
_NEVER_IN_NAMES = re.compile("[\0\ud800-\udfff]")  # no file has one in its name


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
            or _NEVER_IN_NAMES.search(path + name)
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


_NICENESS = 10  # the editor and its proposals come first
_STOPPING_S = 60.0  # a training saves its state within seconds
_NO_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)  # too long, or a folder has the name


class BackgroundTraining:
    """One training at a time, which continues the quick start of a folder; the server's model is replaced by its model.

    `label_studio.json` in the folder holds what is to be done, for the next server if this one is killed.
    """

    def __init__(self, studio: LabelStudio, options: ServeOptions, open_model: Callable[[str], ServedModel]):
        """Store the settings; `open_model` opens the model of a path."""
        assert options.train_dir is not None
        self._studio, self._options, self._open_model = studio, options, open_model
        self._folder = folder = Path(options.train_dir)
        self._state_file = folder / "label_studio.json"
        self._state: dict[str, Any] = {"project": None, "changes": 0, "due": False}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._state |= json.loads(self._state_file.read_bytes())
        self._changed = threading.Condition()
        self._stopped = self._asked = False  # asked: for a training, since the present one began
        self._program: subprocess.Popen | None = None

    def changed(self, project: int, *, at_once: bool) -> None:
        """Count a change of a project's annotations; start a training if there are enough or `at_once`."""
        with self._changed:
            if self._state["project"] not in (None, project):
                print(
                    f"label studio: project {project}: this server trains on project {self._state['project']}; "
                    "another one needs another --train_dir",
                    flush=True,
                )
                return
            self._state["project"] = project
            self._state["changes"] += not at_once
            self._asked |= at_once
            self._state["due"] |= at_once or self._state["changes"] >= self._options.train_after
            self._store()
            self._changed.notify()

    @contextlib.contextmanager
    def running(self, batcher: Batcher) -> Iterator[None]:
        """Train in a thread during a block; the next server continues a training that is not finished then."""
        thread = threading.Thread(target=self._run, args=(batcher,), name="training", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify()
                if self._program:
                    self._program.terminate()
            thread.join(_STOPPING_S)

    def _store(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_text(self._state_file, json.dumps(self._state))
        except OSError as error:  # this server knows it, the next one would not
            print(f"label studio: {self._state_file}: cannot be written ({error.strerror})", flush=True)

    def _run(self, batcher: Batcher) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._state["due"])
                if self._stopped:
                    return
                changes, project = self._state["changes"], self._state["project"]
                self._asked = False
            resumed = False
            try:
                resumed = self._train(project)
                if not self._stopped:
                    batcher.model = self._open_model(str(exported_model(self._folder)))
            except Exception as error:  # whatever it is, the server and the next training continue
                print(f"label studio: project {project}: {error}", flush=True)
            with self._changed:
                if self._stopped:
                    return
                self._state["changes"] -= 0 if resumed else changes
                self._state["due"] = resumed or self._asked or self._state["changes"] >= self._options.train_after
                self._store()

    def _train(self, project: int) -> bool:
        """Train; return whether an unfinished training was resumed, which the present annotations must follow."""
        source = self._folder / "label_studio"
        is_unfinished = wait_for_quickstart(self._folder) and (source / "annotations.json").exists()
        what = "resuming an unfinished training"
        if not is_unfinished:
            what = f"training on {self._copy_annotations(project, source)} images"
        print(f"label studio: project {project}: {what}, log: {source}/training.log", flush=True)
        settings = {
            "images": source / "images",
            "annotations": source / "annotations.json",
            "output_dir": self._folder,
            "minutes": self._options.train_minutes,
        }
        with open(source / "training.log", "ab") as log:
            begin = log.tell()
            with self._changed:
                if self._stopped:
                    return False
                self._program = program = subprocess.Popen(
                    program_command("quickstart", settings), stdout=log, stderr=subprocess.STDOUT, process_group=0
                )
            os.setpriority(os.PRIO_PROCESS, program.pid, _NICENESS)
            code = program.wait()
        if code and not self._stopped:
            with open(source / "training.log", "rb") as written:
                written.seek(begin)
                lines = written.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "")
            raise InputError(f"the training ended with status {code}: {last}")
        print(f"label studio: project {project}: trained", flush=True)
        return is_unfinished

    def _copy_annotations(self, project: int, source: Path) -> int:
        """Write the project's annotations and the images that are new; return the number of images."""
        tasks = []
        for task in self._studio.annotated_tasks(project):
            try:
                self._copy_image(task, source / "images")
                tasks.append(_labels(task))
            except InputError as error:
                print(f"label studio: task {shown(task.get('id'))}: {error}; it is left out", flush=True)
        if not tasks:
            raise InputError("it has no annotated task whose image can be read")
        with claimed_outputs(source / "annotations.json", adopts=(source / "training.log").exists()):
            write_bytes(source / "annotations.json", json.dumps(tasks).encode())
        return len(tasks)

    def _copy_image(self, task: dict, folder: Path) -> None:
        """Copy the image of a task, unless it is there already.

        Raises:
            InputError: it cannot be read, or no file can have its name.
        """
        reference = image_reference(task) or ""
        target = folder / stored_name(self._studio.local_path(reference))
        try:
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(target, self._studio.image(reference, max_bytes=self._options.max_request_bytes))
        except OSError as error:
            if error.errno not in _NO_NAME:
                raise
            raise InputError(f"the image {shown(reference)} cannot be stored ({error.strerror})") from error


def _labels(task: dict) -> dict:
    """Return a task without what changes while its labels stay the same, such as times and the count of predictions.

    The quick start continues if the file changes.
    """
    labels = {key: task[key] for key in ("id", "data", "file_upload") if key in task}
    annotations = [one for one in task.get("annotations") or () if isinstance(one, dict)]
    keys = ("result", "was_cancelled", "ground_truth")
    return {**labels, "annotations": [{key: one[key] for key in keys if key in one} for one in annotations]}
