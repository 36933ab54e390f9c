"""A headless Chromium driven over its DevTools protocol: JSON messages that end with a zero byte, through two pipes."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",  # a webcam that is drawn
    "--remote-debugging-pipe",
)


class Page:
    """A tab, of a size, and what went wrong in it."""

    def __init__(self, sent: int, received: int):
        self._sent, self._received = os.fdopen(sent, "wb"), os.fdopen(received, "rb")
        self._numbers, self._buffer, self._session = itertools.count(1), b"", None
        self.complaints: list[str] = []  # exceptions, and what is written into the console
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sent.close()
        self._received.close()

    def call(self, method: str, **parameters: Any) -> dict:
        """The result of a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._sent.write(json.dumps(message).encode() + b"\0")
        self._sent.flush()
        while (told := self._message()).get("id") != number:
            self._note(told)
        assert "error" not in told, (method, told["error"])
        return told["result"]

    def value(self, expression: str) -> Any:
        """What JavaScript's expression gives in the page; promises are waited for."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 60) -> Any:
        """The first value that JavaScript takes for true."""
        end = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < end, (expression, self.complaints, self.value("document.body.innerText"))
            time.sleep(0.05)
        return found

    def open(self, address: str, *, width: int = 1280, height: int = 800) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})")

    def give_files(self, selector: str, files: list[Path]) -> None:
        """As if chosen in the dialog of an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode={"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13}[key],
            )

    def screenshot(self) -> bytes:
        """PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _message(self) -> dict:
        while b"\0" not in self._buffer:
            came = os.read(self._received.fileno(), 1 << 20)
            assert came, "Chromium has ended"
            self._buffer += came
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(event["params"]))


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """A page of a Chromium that keeps its files in a folder."""
    to_browser, to_us = os.pipe(), os.pipe()
    command = [PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_browser[0]} 4>&{to_us[1]}', "chromium", *command],
        pass_fds=(to_browser[0], to_us[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for descriptor in (to_browser[0], to_us[1]):
        os.close(descriptor)
    page = None
    try:
        page = Page(to_browser[1], to_us[0])
        yield page
        with contextlib.suppress(AssertionError, OSError):
            page.call("Browser.close")
        process.wait(timeout=30)
    finally:
        if page:
            page.close()
        process.kill()
        process.wait()
