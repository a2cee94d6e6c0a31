"""Root filesystems for tests with real sandboxes: busybox, and Debian's own Python with a small HTTP program.

Built once from Debian packages into /var/cache/ate-tests and reused; every test that runs a sandbox uses these.
"""

# ruff: noqa: E501
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path(os.environ.get("ATE_TEST_CACHE", "/var/cache/ate-tests"))
_PACKAGES = (
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "zlib1g",
    "libexpat1",
    "libssl3",
)

COUNTER = r"""
import http.server, json, os, socket, sys, threading, time, uuid
N = {"count": 0}
BOOT = uuid.uuid4().hex
BALLAST = os.urandom(int(os.environ.get("BALLAST_MIB", "0")) << 20)
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def reply(self, body, status=200, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in headers: self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path == "/healthz": return self.reply(b"ok")
        if self.path == "/ws" and "upgrade" in self.headers.get("Connection", "").lower():
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); self.wfile.flush()
            while data := self.rfile.read1(65536): self.wfile.write(data)
            self.wfile.write(b"<eof seen>"); self.close_connection = True; return
        if self.path.startswith("/slow"):
            time.sleep(float(self.path.split("=")[1])); return self.reply(b"slow done")
        if self.path.startswith("/write/"):
            _, _, where, text = self.path.split("/", 3)
            open({"tmp": "/tmp/f", "root": "/srv/f", "durable": "/data/f"}[where], "w").write(text); return self.reply(b"ok")
        if self.path.startswith("/read/"):
            try: return self.reply(open({"tmp": "/tmp/f", "root": "/srv/f", "durable": "/data/f"}[self.path.split("/")[2]], "rb").read())
            except OSError as e: return self.reply(str(e).encode(), 404)
        if self.path == "/headers": return self.reply([list(p) for p in self.headers.raw_items()])
        if self.path == "/env": return self.reply(dict(os.environ))
        if self.path.startswith("/connect/"):
            host, port = self.path.split("/")[2].rsplit(":", 1)
            try: socket.create_connection((host, int(port)), 1).close(); return self.reply(b"connected")
            except OSError as e: return self.reply(str(e).encode(), 502)
        if self.path == "/exit": os._exit(3)
        if self.path == "/log":
            print("plain line"); print(json.dumps({"level": "info", "msg": "structured", "ate.x": 1})); print("to stderr", file=sys.stderr)
            sys.stdout.flush(); return self.reply(b"ok")
        if self.path == "/chunked":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for i in range(3): self.wfile.write(b"5\r\nhello\r\n"); self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n"); return
        N["count"] += 1
        self.reply({"count": N["count"], "boot": BOOT})
    def do_POST(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while n := int(self.rfile.readline().split(b";")[0], 16): body += self.rfile.read(n); self.rfile.readline()
            self.rfile.readline()
        else: body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(body)
class S(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    def server_bind(self): self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); self.socket.bind(self.server_address); self.server_name, self.server_port = "actor", 80
time.sleep(float(os.environ.get("START_DELAY", "0")))
S(("0.0.0.0", int(os.environ.get("PORT", "80"))), H).serve_forever()
"""

COUNTER_ARGV = ["/usr/bin/python3.11", "-S", "/counter.py"]


def busybox() -> Path:
    """A root with /bin/busybox and its applets, and `/pause`, a script that sleeps for ever."""
    return _cached("busybox", _build_busybox)


def python() -> Path:
    """A root with Python 3.11 and /counter.py, which keeps a count in RAM; see COUNTER for what it answers."""
    return _cached("python", _build_python)


def _cached(name: str, build: object) -> Path:
    assert callable(build)
    version = hashlib.sha256((COUNTER + Path(__file__).read_text().partition("def _build")[2]).encode()).hexdigest()[
        :12
    ]
    target = CACHE / f"{name}-{version}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=CACHE))
        build(staging)
        staging.chmod(0o755)
        try:
            staging.rename(target)
        except OSError:  # another test process was faster
            shutil.rmtree(staging)
    return target


def _build_busybox(root: Path) -> None:
    for name in ("bin", "tmp", "etc", "proc", "sys", "dev", "srv", "data"):
        (root / name).mkdir()
    shutil.copy2("/bin/busybox", root / "bin/busybox")
    for applet in ("sh", "sleep", "cat", "echo", "ls", "nc", "httpd", "wget"):
        (root / "bin" / applet).symlink_to("busybox")
    (root / "pause").write_text("#!/bin/sh\nwhile :; do sleep 3600; done\n")
    (root / "pause").chmod(0o755)


def _build_python(root: Path) -> None:
    _build_busybox(root)
    shutil.rmtree(root / "bin")
    for name in ("usr/bin", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory(dir=CACHE) as debs:
        subprocess.run(["apt-get", "download", *_PACKAGES], cwd=debs, check=True, capture_output=True)
        unpacked = Path(debs) / "x"
        for deb in sorted(Path(debs).glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, unpacked], check=True)
        subprocess.run(["cp", "-a", *(p for p in (unpacked / "usr").iterdir()), root / "usr"], check=True)
        for name in ("lib", "lib64"):
            if (unpacked / name).is_dir():
                subprocess.run(["cp", "-a", f"{unpacked / name}/.", root / "usr" / name], check=True)
    shutil.copy2("/bin/busybox", root / "usr/bin/busybox")
    (root / "usr/bin/sh").symlink_to("busybox")
    shutil.rmtree(root / "usr/share", ignore_errors=True)
    (root / "counter.py").write_text(COUNTER)


if __name__ == "__main__":
    print(busybox(), python())
