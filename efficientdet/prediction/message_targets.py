"""Receivers of detections: MQTT brokers and webhooks."""

import base64
import http.client
import re
import threading
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from efficientdet.prediction.message_queue import RejectedMessage
from program_support.errors import InputError

_TIMEOUT_SECONDS = 10.0
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_TRY_AGAIN = {408, 425, 429}  # status codes of requests that may succeed later; and all from 500 on
_KEEP_ALIVE_SECONDS = 30


class _Address(NamedTuple):
    """An address in its parts; `shown` has neither user, password, path nor query."""

    parts: SplitResult
    port: int | None
    shown: str

    @classmethod
    def parsed(cls, flag: str, address: str, schemes: tuple[str, ...], expected: str) -> "_Address":
        """Raise InputError, without the address, which may contain secrets."""
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in schemes or not parts.hostname or re.search(r"[\s\x00-\x1f]", address):
            raise InputError(f"--{flag}: is not such an address; expected {expected}")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(parts, port, f"{parts.scheme}://{host}" + ("" if port is None else f":{port}"))


class MqttTarget:
    """A topic of an MQTT broker. Messages are retained and have quality of service 1: received at least once.

    TOPIC/available is `online` while the program is connected, else `offline` (the broker's last will), as Home
    Assistant's `availability_topic` expects. If the connection breaks off, `send` connects again.
    """

    def __init__(self, address: str):
        """Raise InputError for an address other than mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or without paho-mqtt."""
        expected = "mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or mqtts:// with TLS"
        self._parts, port, shown = _Address.parsed("mqtt", address, ("mqtt", "mqtts"), expected)
        self._port = port or _PORTS[self._parts.scheme]
        self._topic = unquote(self._parts.path).strip("/")
        if not self._topic or self._parts.query or self._parts.fragment or {"+", "#", "\0"} & {*self._topic}:
            raise InputError(f"--mqtt={shown}: has no topic, or one with +, # or ?; expected {expected}")
        self.shown = f"{shown}/{self._topic}"
        self._client: Any = None
        try:
            import paho.mqtt.client
        except ModuleNotFoundError as error:
            raise InputError("--mqtt needs the package paho-mqtt: pip install -e '.[mqtt]'") from error
        self._mqtt = paho.mqtt.client

    def connect(self) -> None:
        """Connect to the broker.

        Raises:
            OSError: it does not answer or refuses the connection.
        """
        self._disconnect()
        answered, refusal = threading.Event(), []

        def on_connect(client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
            if reason.is_failure:
                refusal.append(str(reason))
            else:
                client.publish(f"{self._topic}/available", "online", qos=1, retain=True)
            answered.set()

        client = self._mqtt.Client(self._mqtt.CallbackAPIVersion.VERSION2)
        client.on_connect = on_connect
        client.will_set(f"{self._topic}/available", "offline", qos=1, retain=True)
        if self._parts.username:
            client.username_pw_set(unquote(self._parts.username), unquote(self._parts.password or ""))
        if self._parts.scheme == "mqtts":
            client.tls_set()
        client.connect_timeout = _TIMEOUT_SECONDS
        client.connect(self._parts.hostname or "", self._port, keepalive=_KEEP_ALIVE_SECONDS)
        self._client = client
        client.loop_start()
        if not answered.wait(_TIMEOUT_SECONDS) or refusal:
            self._disconnect()
            reason = f"the broker refuses the connection ({refusal[0]})" if refusal else "no answer"
            raise ConnectionRefusedError(f"{reason}")

    def send(self, payload: bytes) -> None:
        """Publish a message; raises as `Target.send`."""
        if self._client is None or not self._client.is_connected():
            self.connect()
        try:
            published = self._client.publish(self._topic, payload, qos=1, retain=True)
            published.wait_for_publish(_TIMEOUT_SECONDS)
        except (ValueError, RuntimeError) as error:  # of paho: not connected any more
            self._disconnect()
            raise ConnectionError(str(error)) from error
        if not published.is_published():
            self._disconnect()  # otherwise paho would keep the message, and send it twice
            raise TimeoutError(f"no acknowledgment within {_TIMEOUT_SECONDS:g} s")

    def close(self) -> None:
        """Publish that the program is offline, and disconnect."""
        if self._client is not None and self._client.is_connected():
            self._client.publish(f"{self._topic}/available", "offline", qos=1, retain=True).wait_for_publish(1)
        self._disconnect()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.loop_stop()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without content."""

    def redirect_request(self, *_: Any) -> None:
        return None


class WebhookTarget:
    """An address to which messages are sent by HTTP POST as application/json."""

    def __init__(self, address: str):
        """Raise InputError for an address other than https://HOST/PATH or http://HOST/PATH."""
        expected = "https://HOST/PATH or http://HOST/PATH"
        parts, _, shown = _Address.parsed("webhook", address, ("http", "https"), expected)
        self.shown = f"webhook {shown}"
        self._headers = {"Content-Type": "application/json", "User-Agent": "efficientdet"}
        if parts.username:
            account = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(account).decode()}"
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
        self._opener = urllib.request.build_opener(_NoRedirect)

    def send(self, payload: bytes) -> None:
        """Post a message; raises as `Target.send`."""
        request = urllib.request.Request(self._url, data=payload, headers=self._headers)
        try:
            self._opener.open(request, timeout=_TIMEOUT_SECONDS).close()
        except urllib.error.HTTPError as error:
            error.close()
            answer = f"answers {error.code} {error.reason}"
            if error.code < 500 and error.code not in _TRY_AGAIN:
                raise RejectedMessage(answer) from error
            raise OSError(answer) from error
        except urllib.error.URLError as error:
            raise OSError(getattr(error.reason, "strerror", None) or str(error.reason)) from error
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no valid HTTP answer ({type(error).__name__})") from error

    def close(self) -> None:
        """Close nothing: each message has its own connection."""
