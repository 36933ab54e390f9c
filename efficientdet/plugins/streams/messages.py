"""Messages of detections to an MQTT broker, by paho-mqtt."""

import contextlib
import json
import re
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import unquote, urlsplit

from program_support.errors import InputError, printable

_MOST_MESSAGES = 1000  # waiting; further ones are dropped
_TIMEOUT_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 60
_SECONDS_AT_THE_END = 5.0  # time for the messages that still wait when the program ends
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_SECONDS_BETWEEN_CHANGES = 1.0  # so that an object at the score threshold does not cause a message for each frame
_KEEP_ALIVE_SECONDS = 30
_CHECK_SECONDS = 0.02


class MqttTopic:
    """A topic of an MQTT broker. Messages are retained and have quality of service 1: received at least once.

    TOPIC/available is `online` while the program is connected, else `offline` (the broker's last will), as Home
    Assistant's `availability_topic` expects. If the connection breaks off, paho connects again, with pauses that double
    from 1 to 60 seconds, and sends the messages that wait.
    """

    def __init__(self, address: str):
        """Raise InputError for an address other than mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or without paho-mqtt."""
        expected = "mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or mqtts:// with TLS"
        try:
            parts = urlsplit(address)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in _PORTS or not parts.hostname or re.search(r"[\s\x00-\x1f]", address):
            raise InputError(f"--mqtt: is not such an address; expected {expected}")  # it may contain secrets
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        shown = f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
        self._address = parts.hostname, port or _PORTS[parts.scheme]
        self._topic = unquote(parts.path).strip("/")
        if not self._topic or parts.query or parts.fragment or {"+", "#", "\0"} & {*self._topic}:
            raise InputError(f"--mqtt={shown}: has no topic, or one with +, # or ?; expected {expected}")
        self._shown = f"{shown}/{self._topic}"
        try:
            import paho.mqtt.client as mqtt
        except ModuleNotFoundError as error:
            raise InputError("--mqtt needs the package paho-mqtt: pip install -e '.[mqtt]'") from error
        self._full = mqtt.MQTT_ERR_QUEUE_SIZE
        self._client = client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        client.on_connect, client.on_disconnect, client.on_publish = self._connected, self._lost, self._received
        client.will_set(f"{self._topic}/available", "offline", qos=1, retain=True)
        client.max_queued_messages_set(_MOST_MESSAGES)
        client.reconnect_delay_set(1, _LONGEST_PAUSE_SECONDS)
        client.connect_timeout = _TIMEOUT_SECONDS
        if parts.username:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if parts.scheme == "mqtts":
            client.tls_set()
        self._answered, self._refusal, self._lost_at = threading.Event(), "no answer", 0.0
        self._put, self._online, self._confirmed, self._dropped = 0, 0, 0, 0  # numbers of messages

    def open(self) -> None:
        """Connect to the broker.

        Raises:
            InputError: it does not answer or refuses the connection.
        """
        try:
            self._client.connect(*self._address, keepalive=_KEEP_ALIVE_SECONDS)
        except OSError as error:
            raise InputError(f"--mqtt={self._shown}: {printable(str(error.strerror or error))}") from error
        self._client.loop_start()
        if not self._answered.wait(_TIMEOUT_SECONDS) or self._refusal:
            self._client.disconnect()
            self._client.loop_stop()
            raise InputError(f"--mqtt={self._shown}: {self._refusal}")

    def put(self, payload: bytes) -> None:
        """Let a message be sent; return at once."""
        if self._client.publish(self._topic, payload, qos=1, retain=True).rc == self._full:
            self._dropped += 1
        else:
            self._put += 1

    def close(self) -> None:
        """Wait up to 5 seconds for the waiting messages, print the numbers, publish `offline`, and disconnect."""
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        while self._waiting > 0 and time.monotonic() < deadline:
            time.sleep(_CHECK_SECONDS)
        counts = {"sent": self._put - self._waiting, "dropped": self._dropped, "not sent": self._waiting}
        listed = [f"{count:,} {what}" for what, count in counts.items() if count]
        if listed:
            print(f"{self._shown}: messages: {', '.join(listed)}")
        is_connected = self._client.is_connected()
        if is_connected:
            with contextlib.suppress(RuntimeError):  # the connection broke off: the last will follows
                self._client.publish(f"{self._topic}/available", "offline", retain=True).wait_for_publish(1)
        self._client.disconnect()
        if is_connected:  # otherwise the thread may be connecting for some seconds
            self._client.loop_stop()

    @property
    def _waiting(self) -> int:
        """Number of messages that the broker has not confirmed."""
        return self._put + self._online - self._confirmed

    def _connected(self, client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._refusal = f"the broker refuses the connection ({reason})" if reason.is_failure else ""
        if not self._refusal:
            self._online += 1
            # Quality 0 needs no place among those that wait
            client.publish(f"{self._topic}/available", "online", retain=True)
            if self._answered.is_set():
                print(f"{self._shown}: sending again after {time.monotonic() - self._lost_at:.0f} s")
        self._answered.set()

    def _lost(self, _client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure and not self._refusal:
            self._lost_at = time.monotonic()
            print(f"{self._shown}: {reason}; up to {_MOST_MESSAGES:,} messages wait to be sent again")

    def _received(self, *_: Any) -> None:
        self._confirmed += 1


class Changes:
    """Sends a message when the objects of a class have changed in number.

    It sends at most one of a video each second.
    """

    def __init__(self, *, mqtt: str):
        """Check the address of an `MqttTopic`; raise InputError for an invalid one."""
        self._topic = MqttTopic(mqtt)
        self.open, self.close = self._topic.open, self._topic.close
        self._last: tuple[str, float, Any] | None = None  # source, time and numbers of the last message

    def put(self, message: dict[str, Any]) -> None:
        """Send a message, or ignore it."""
        numbers = Counter(detection["class"] for detection in message["detections"])
        source, seconds = message["source"], message["seconds"]
        if self._last and self._last[0] == source and seconds is not None:
            is_too_early = seconds - self._last[1] < _SECONDS_BETWEEN_CHANGES
            if is_too_early or numbers == self._last[2]:
                return
        self._last = source, seconds, numbers
        self._topic.put(json.dumps(message).encode())
