"""A program with many doors for system tests, run from the counter's image by `command`, and images made from that one.

It counts in memory and in a file like the counter does, says what it sees of itself, reads and writes files, and ends
or grows when it is told. Used by test_workloads and test_cli_verbs.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.install import counter_layout

PYTHON = "/usr/bin/python3.11"
PROGRAM = """
import json, os, sys, urllib.parse, uuid
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port = int(os.environ.get("PORT", "80"))
FILE, BOOT, held = f"/var/lib/count-{port}", uuid.uuid4().hex, []
count = 0
def read(path, default=""):
    try:
        return open(path).read()
    except FileNotFoundError:
        return default
class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        global count
        path, _, query = self.path.partition("?")
        q = dict(urllib.parse.parse_qsl(query))
        if path == "/readyz":
            return self.answer({}, int(os.environ.get("READYZ", "200")))
        if path == "/facts":
            caps = [l.split()[1] for l in read("/proc/self/status").splitlines() if l.startswith("CapEff")]
            return self.answer({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "caps": caps})
        if path == "/read":
            return self.answer({"text": read(q["path"], None)})
        if path == "/list":
            return self.answer({"names": sorted(os.listdir(q["path"]))})
        if path == "/append":
            with open(q["path"], "a") as file:
                file.write(q["text"])
            return self.answer({"text": read(q["path"])})
        if path == "/say":
            print(q["text"], flush=True)
            return self.answer({})
        if path == "/exit":
            print("told to exit", flush=True)
            os._exit(int(q.get("code", "3")))
        if path == "/eat":
            held.append(os.urandom(1 << 20) * int(q["mb"]))
            return self.answer({"held": len(held)})
        if path == "/peer":
            peer = HTTPConnection("127.0.0.1", int(q["port"]), timeout=10)
            peer.request("GET", q["path"])
            return self.answer(json.loads(peer.getresponse().read()))
        if path == "/metadata":
            try:
                gateway = HTTPConnection("169.254.17.1", int(q.get("port", "80")), timeout=10)
                gateway.request(q.get("method", "GET"), q["path"], headers=json.loads(q["headers"]))
                answer = gateway.getresponse()
                return self.answer({"status": answer.status, "body": json.loads(answer.read())})
            except OSError as error:
                return self.answer({"status": 0, "body": str(error)})
        if path != "/count":
            count += 1
            with open(FILE, "w") as file:
                file.write(str(count))
            print(f"counted {count}", flush=True)
        self.answer({"ram": count, "file": int(read(FILE, "0")), "boot": BOOT})
    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass
class Server(ThreadingHTTPServer):
    daemon_threads = True
    def server_bind(self):
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "door", self.server_address[1]
print(f"listening on {port}", flush=True)
Server(("0.0.0.0", port), Door).serve_forever()
"""
assert len(PROGRAM) <= 4096, "one command argument holds no more"


def container(name: str, image: str, *, port: int = 80, timeout: int = 0, **fields: Any) -> pb.Container:
    """The program as a container that listens on `port`, with a probe; `fields` are further ones of the container."""
    value = pb.Container(
        name=name,
        image=image,
        command=[PYTHON, "-S", "-c", PROGRAM],
        env=[pb.EnvVar(name="PORT", value=str(port))],
        readyz=pb.ContainerReadyz(http_get=pb.HTTPGetAction(path="/readyz", port=port), timeout_seconds=timeout),
    )
    value.MergeFrom(pb.Container(**fields))
    return value


def derived_image(target: Path, name: str, config: Mapping[str, Any], files: Mapping[str, str] | None = None) -> Path:
    """An OCI layout of the counter's layers and one of `files`, with a config of its own (an image's `config` part)."""
    base = counter_layout()
    index = json.loads((base / "index.json").read_text())
    manifest = json.loads(_blob(base, index["manifests"][0]["digest"]).read_text())
    document = json.loads(_blob(base, manifest["config"]["digest"]).read_text())
    shutil.copytree(base / "blobs", target / "blobs")
    if files:
        layer, diff_id = _layer(target, files)
        manifest["layers"].append(layer)
        document["rootfs"]["diff_ids"].append(diff_id)
    return _finish(target, name, manifest, {**document, "config": dict(config)})


def data_image(target: Path, name: str, *layers: Mapping[str, str]) -> Path:
    """An OCI layout with nothing but files: one layer for each mapping, the last on top."""
    made = [_layer(target, files) for files in layers]
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in made]},
    }
    media_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": media_type, "layers": [layer for layer, _ in made]}
    return _finish(target, name, manifest, document)


def _finish(target: Path, name: str, manifest: dict[str, Any], document: Mapping[str, Any]) -> Path:
    manifest["config"] = _store(target, json.dumps(document).encode(), "application/vnd.oci.image.config.v1+json")
    described = _store(target, json.dumps(manifest).encode(), manifest["mediaType"])
    described["annotations"] = {"org.opencontainers.image.ref.name": name}
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (target / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return target


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs/sha256" / digest.removeprefix("sha256:")


def _store(layout: Path, data: bytes, media_type: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _blob(layout, digest).parent.mkdir(parents=True, exist_ok=True)
    _blob(layout, digest).write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _layer(layout: Path, files: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    data = plain.getvalue()
    media_type = "application/vnd.oci.image.layer.v1.tar+gzip"
    return _store(layout, gzip.compress(data, mtime=0), media_type), f"sha256:{hashlib.sha256(data).hexdigest()}"
