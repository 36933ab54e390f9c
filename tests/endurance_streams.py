"""infer.py at an RTSP stream that is disconnected again and again: memory, skipped frames, clips and messages.

    python tests/endurance_streams.py --model=detector.onnx --video=clip.mp4 [--minutes=30] [--disconnects=20]

The server is GStreamer's (Debian: python3-gi, gir1.2-gst-rtsp-server-1.0, gstreamer1.0-plugins-good, -bad and -ugly)
and shows the frames of the video again and again. Half of the disconnects close the connection, the others end the
server for up to 20 seconds. With mosquitto installed, the broker is ended five times for 10 seconds. A webhook answers
500 in every third minute. Ends with 1 if a disconnect was not followed by a connection, if a clip or message is
missing, or if memory grew by more than 10 % between a third of the time and the end.
"""

import argparse
import collections
import http.server
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cv2

ROOT = Path(__file__).resolve().parent.parent
RATE = 5  # frames per second
RTSP_PORT, BROKER_PORT = 18554, 18883


class Setting:
    """The servers around infer.py, and what they received."""

    def __init__(self, folder: Path, video: Path):
        self.folder, self.faulty = folder, False
        self.webhooks: collections.Counter[int] = collections.Counter()  # status code -> number
        self.published: set[bytes] = set()
        (folder / "frames").mkdir()
        source, shown = cv2.VideoCapture(str(video)), 0
        step = max(round(source.get(cv2.CAP_PROP_FPS) / RATE), 1)
        index = 0
        while (read := source.read())[0]:
            if index % step == 0:
                cv2.imwrite(str(folder / f"frames/{shown:05d}.jpg"), read[1])
                shown += 1
            index += 1
        self.webhook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.webhook.serve_forever, daemon=True).start()
        self.rtsp: subprocess.Popen | None = None
        self.broker: subprocess.Popen | None = None

    def start_rtsp(self) -> None:
        """Start the RTSP server."""
        command = ["/usr/bin/python3", ROOT / "tests/rtsp_server.py", self.folder / "frames", RATE, RTSP_PORT]
        self.rtsp = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_broker(self) -> None:
        """Start mosquitto, which keeps its retained messages."""
        (self.folder / "mosquitto.conf").write_text(
            f"listener {BROKER_PORT} 127.0.0.1\nallow_anonymous true\nuser root\n"
        )
        command = [shutil.which("mosquitto"), "-c", str(self.folder / "mosquitto.conf")]
        self.broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def subscribe(self):
        """Collect what is published."""
        from paho.mqtt.client import CallbackAPIVersion, Client

        client = Client(CallbackAPIVersion.VERSION2, client_id="endurance", clean_session=False)
        client.on_connect = lambda *_: client.subscribe("cameras/soak", 1)
        client.on_message = lambda _client, _data, message: self.published.add(message.payload)
        client.connect("127.0.0.1", BROKER_PORT)
        client.reconnect_delay_set(1, 1)
        client.loop_start()

    def end(self, process: subprocess.Popen | None) -> None:
        """End a server."""
        if process:
            process.kill()
            process.wait()

    def _handler(setting):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                code = 500 if setting.faulty else 200
                setting.webhooks[code] += 1
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler


def resident_megabytes(process: subprocess.Popen) -> float:
    """Return the resident memory of a process."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def soak(setting: Setting, arguments: argparse.Namespace) -> int:
    """Run infer.py, disturb it, print figures, and return the number of faults."""
    folder, chance = setting.folder, random.Random(arguments.seed)
    setting.start_rtsp()
    flags = [f"--model={arguments.model}", f"--image_path=rtsp://127.0.0.1:{RTSP_PORT}/live", "--save=events"]
    flags += [f"--output_dir={folder}/out", "--event_seconds=2", f"--json_lines={folder}/lines.jsonl"]
    flags += [f"--webhook=http://127.0.0.1:{setting.webhook.server_port}/hook"]
    if shutil.which("mosquitto"):
        setting.start_broker()
        time.sleep(1)
        setting.subscribe()
        flags.append(f"--mqtt=mqtt://127.0.0.1:{BROKER_PORT}/cameras/soak")
    time.sleep(2)
    log = folder / "log.txt"
    with log.open("wb") as output:
        command = [sys.executable, str(ROOT / "infer.py"), *flags]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    begin, seconds = time.monotonic(), arguments.minutes * 60
    span = (0.03 * seconds, 0.95 * seconds)
    step = (span[1] - span[0]) / arguments.disconnects
    events = [(span[0] + step * (index + chance.random() / 2), "rtsp") for index in range(arguments.disconnects)]
    events += [(seconds * (index + 0.5) / 6, "broker") for index in range(5) if setting.broker]
    events += [(minute * 60, "webhook") for minute in range(1, int(arguments.minutes))]
    events += [(60 * minute, "memory") for minute in (2, 10, 20) if minute < arguments.minutes]
    memory: dict[float, float] = {}
    for moment, what in sorted(events):
        time.sleep(max(begin + moment - time.monotonic(), 0))
        if process.poll() is not None:
            print(f"ended with {process.returncode} after {time.monotonic() - begin:.0f} s\n{log.read_text()[-3000:]}")
            return 1
        if what == "memory":
            memory[moment / 60] = resident_megabytes(process)
            print(f"{moment / 60:.0f} minutes: {memory[moment / 60]:.0f} MB", flush=True)
        elif what == "webhook":
            setting.faulty = round(moment / 60) % 3 == 0
        elif what == "broker":
            setting.end(setting.broker)
            threading.Timer(10, setting.start_broker).start()
        elif chance.random() < 0.5:
            setting.rtsp.send_signal(signal.SIGUSR1)
        else:
            setting.end(setting.rtsp)
            threading.Timer(chance.uniform(0, 20), setting.start_rtsp).start()
    time.sleep(max(begin + seconds - time.monotonic(), 0))
    memory[arguments.minutes] = resident_megabytes(process)
    print(f"{arguments.minutes:g} minutes: {memory[arguments.minutes]:.0f} MB", flush=True)
    process.terminate()
    code = process.wait(60)
    return report(setting, arguments, code, log.read_text(), memory)


def report(setting: Setting, arguments: argparse.Namespace, code: int, log: str, memory: dict[float, float]) -> int:
    """Print figures, and return the number of faults."""
    folder = setting.folder
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    clips = sorted((folder / "out").glob("*_events/*.mp4"))
    readable = sum(cv2.VideoCapture(str(clip)).read()[0] for clip in clips)
    print(*(line for line in log.splitlines() if re.search("received|sent|events?;", line)), sep="\n")
    print(f"log: {len(log.splitlines())} lines; {len(lines)} JSON lines; {len(clips)} clips, {readable} readable")
    print(f"webhook: {dict(setting.webhooks)}; MQTT messages received: {len(setting.published)}")
    reconnected = log.count("connected again after")
    found = re.search(r"([\d,]+) frames received, ([\d,]+) of them skipped", log)
    processed = int(found[1].replace(",", "")) - int(found[2].replace(",", "")) if found else -1
    webhooks = re.search(r"webhook .*: ([\d,]+) messages sent$", log, re.MULTILINE)
    values = [value for minute, value in memory.items() if minute >= arguments.minutes / 3]
    checks = {
        f"exit code {code}": code == 0,
        f"{reconnected} of {arguments.disconnects} disconnects followed by a connection": reconnected
        == arguments.disconnects,
        f"a JSON line for each of {processed} frames": len(lines) == processed,
        "every clip is readable and has its JSON": readable == len(clips) > 0
        and all(clip.with_suffix(".json").exists() for clip in clips),
        "all webhooks arrived": bool(webhooks) and int(webhooks[1].replace(",", "")) == setting.webhooks[200],
        "memory is bounded": max(values) < 1.1 * values[0],
    }
    if setting.broker:
        published = re.search(r"mqtt://.*: ([\d,]+) messages sent$", log, re.MULTILINE)
        checks["all MQTT messages arrived"] = bool(published) and int(published[1].replace(",", "")) == len(
            setting.published
        )
    for text, is_right in checks.items():
        print(f"{'right' if is_right else 'WRONG'}: {text}")
    return sum(not is_right for is_right in checks.values())


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--video", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--disconnects", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="Folder that is kept. Default: a temporary one.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        setting = Setting(Path(arguments.folder or temporary), arguments.video)
        try:
            return bool(soak(setting, arguments))
        finally:
            setting.end(setting.rtsp)
            setting.end(setting.broker)


if __name__ == "__main__":
    sys.exit(main())
