"""RTSP server for endurance_streams.py, run by the system's Python, which has GStreamer (python3-gi).

    /usr/bin/python3 tests/rtsp_server.py FOLDER FRAMES_PER_SECOND PORT

Shows the files 00000.jpg, 00001.jpg, .. of a folder again and again at rtsp://127.0.0.1:PORT/live. SIGUSR1 disconnects
all clients.
"""

import signal
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

Gst.init(None)
folder, rate, port = sys.argv[1:]
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(
    f"( multifilesrc location={folder}/%05d.jpg loop=true caps=image/jpeg,framerate={rate}/1 ! jpegdec ! videoconvert "
    "! video/x-raw,format=I420 ! identity sync=true ! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 "
    "! rtph264pay name=pay0 pt=96 )"
)
factory.set_shared(True)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(port)
server.get_mount_points().add_factory("/live", factory)
server.attach(None)


def disconnect() -> bool:
    """Disconnect all clients, and stay installed."""
    server.client_filter(lambda *_: GstRtspServer.RTSPFilterResult.REMOVE)
    return True


GLib.unix_signal_add(GLib.PRIORITY_HIGH, signal.SIGUSR1, disconnect)
GLib.MainLoop().run()
