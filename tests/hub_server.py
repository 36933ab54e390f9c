"""A server of this machine that answers the real huggingface_hub as the Hugging Face Hub does."""

import base64
import json
import sys
from http.server import BaseHTTPRequestHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubHandler(BaseHTTPRequestHandler):
    """Has the repositories of the server: {name: {file: content}}, or {name: (status, error code)}."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path}")
        parts = self.path.partition("?")[0].removeprefix("/api/models").split("/", 5)[1:]
        files = self.server.repositories.get("/".join(parts[:2]), (401, "RepoNotFound"))
        if isinstance(files, dict) and len(parts) == 2:
            content = {"id": "/".join(parts), "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})
        elif isinstance(files, dict):
            name = "/".join(parts[4:])
            self.answer(200, files[name], {"ETag": f'"{abs(hash(name))}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(files[0], b"", {"X-Error-Code": files[1]})

    do_HEAD = do_GET

    def do_POST(self):
        """Create a repository or add files to it, as an upload without Git LFS does."""
        lines = self.body().splitlines()
        address = f"http://127.0.0.1:{self.server.server_port}/{'/'.join(self.path.split('/')[3:5])}"
        if self.path == "/api/repos/create":
            asked = json.loads(lines[0])
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repositories.setdefault(name, {})
            content = {"url": address.replace("/create", f"/{name}")}
        elif "/preupload/" in self.path:
            files = json.loads(lines[0])["files"]
            content = {
                "files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            }
        elif "/commit/" in self.path:
            added = [entry["value"] for entry in map(json.loads, lines) if entry["key"] == "file"]
            name = "/".join(self.path.split("/")[3:5])
            self.server.repositories[name] |= {file["path"]: base64.b64decode(file["content"]) for file in added}
            content = {"commitUrl": f"{address}/commit/{COMMIT}", "commitOid": COMMIT}
        else:
            content = {}
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status, content, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


def forget_library():
    """Make the next import of huggingface_hub read the environment."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
