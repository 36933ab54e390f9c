"""Messages of detections to an MQTT broker."""

import json
import re
import threading
import time
from collections import Counter, deque
from typing import Any
from urllib.parse import unquote, urlsplit

from program_support.errors import InputError, printable

_MOST_MESSAGES = 1000  # waiting; the oldest is dropped for a further one
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_SECONDS_AT_THE_END = 5.0  # time for the messages that still wait when the program ends


class MessageQueue:
    """Sends messages to a target: each until it is received, with pauses that double from 1 to 60 seconds.

    At most 1,000 messages wait. If there are more, the oldest is dropped. `close` reports how many were sent and
    dropped.
    """

    def __init__(self, target: "MqttTarget"):
        self._target = target
        self._waiting: deque[bytes] = deque()
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._sent, self._dropped = 0, 0
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="messages")
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Let a message be sent; return at once."""
        with self._changed:
            if len(self._waiting) >= _MOST_MESSAGES:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(payload)
            self._changed.notify()

    def close(self) -> None:
        """Wait up to 5 seconds for the waiting messages, and print the numbers."""
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        with self._changed:
            while self._waiting and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._closed.set()
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.1))
        with self._changed:
            numbers = {"dropped": self._dropped, "not sent": len(self._waiting)}
        parts = [f"{self._sent:,} messages sent", *(f"{count:,} {what}" for what, count in numbers.items() if count)]
        if self._sent or any(numbers.values()):
            print(f"{self._target.shown}: {', '.join(parts)}")
        if not self._thread.is_alive():
            self._target.close()

    def _send_all(self) -> None:
        pause, failed_at = _FIRST_PAUSE_SECONDS, None
        while (payload := self._next()) is not None:
            try:
                self._target.send(payload)
            except OSError as error:
                if self._closed.is_set():
                    return
                if failed_at is None:
                    failed_at = time.monotonic()
                    reason = printable(str(error.strerror or error))
                    print(f"{self._target.shown}: {reason}; up to {_MOST_MESSAGES:,} messages wait to be sent again")
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            self._done(payload)
            if failed_at is not None:
                seconds = time.monotonic() - failed_at
                print(f"{self._target.shown}: sending again after {seconds:.0f} s; {self._dropped:,} messages dropped")
            pause, failed_at = _FIRST_PAUSE_SECONDS, None

    def _next(self) -> bytes | None:
        """Wait for a message and return it; None at the end."""
        with self._changed:
            while not self._waiting and not self._closed.is_set():
                self._changed.wait()
            return None if self._closed.is_set() else self._waiting[0]

    def _done(self, payload: bytes) -> None:
        """Count a message and remove it, unless it was dropped in the meantime."""
        with self._changed:
            self._sent += 1
            if self._waiting and self._waiting[0] is payload:
                self._waiting.popleft()
            else:
                self._dropped -= 1  # the oldest, which was dropped while it was sent
            self._changed.notify_all()


_TIMEOUT_SECONDS = 10.0
_PORTS = {"mqtt": 1883, "mqtts": 8883}
_SECONDS_BETWEEN_CHANGES = 1.0  # so that an object at the score threshold does not cause a message for each frame
_KEEP_ALIVE_SECONDS = 30


class MqttTarget:
    """A topic of an MQTT broker. Messages are retained and have quality of service 1: received at least once.

    TOPIC/available is `online` while the program is connected, else `offline` (the broker's last will), as Home
    Assistant's `availability_topic` expects. If the connection breaks off, `send` connects again.
    """

    def __init__(self, address: str):
        """Raise InputError for an address other than mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or without paho-mqtt."""
        expected = "mqtt://USER:PASSWORD@HOST:PORT/TOPIC, or mqtts:// with TLS"
        try:
            self._parts = urlsplit(address)
            port = self._parts.port
        except ValueError:
            self._parts, port = urlsplit(""), None
        if self._parts.scheme not in _PORTS or not self._parts.hostname or re.search(r"[\s\x00-\x1f]", address):
            raise InputError(f"--mqtt: is not such an address; expected {expected}")  # it may contain secrets
        host = f"[{self._parts.hostname}]" if ":" in self._parts.hostname else self._parts.hostname
        shown = f"{self._parts.scheme}://{host}" + ("" if port is None else f":{port}")
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
        """Publish a message, and return when it was received; raise OSError if it was not."""
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


class Changes:
    """Sends a message when the objects of a class have changed in number.

    It sends at most one of a video each second.
    """

    def __init__(self, *, mqtt: str):
        """Check the address of a `MqttTarget`; raise InputError for an invalid one."""
        self._broker = MqttTarget(mqtt)
        self._queue: MessageQueue | None = None
        self._last: tuple[str, float, Any] | None = None  # source, time and numbers of the last message

    def open(self) -> None:
        """Connect to the broker.

        Raises:
            InputError: it refuses the connection.
        """
        try:
            self._broker.connect()
        except OSError as error:
            raise InputError(f"--mqtt={self._broker.shown}: {printable(str(error.strerror or error))}") from error
        self._queue = MessageQueue(self._broker)

    def put(self, message: dict[str, Any]) -> None:
        """Send a message, or ignore it."""
        numbers = Counter(detection["class"] for detection in message["detections"])
        source, seconds = message["source"], message["seconds"]
        if self._last and self._last[0] == source and seconds is not None:
            is_too_early = seconds - self._last[1] < _SECONDS_BETWEEN_CHANGES
            if is_too_early or numbers == self._last[2]:
                return
        self._last = source, seconds, numbers
        assert self._queue is not None
        self._queue.put(json.dumps(message).encode())

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        if self._queue is not None:
            self._queue.close()
