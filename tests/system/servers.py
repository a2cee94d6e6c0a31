"""Real servers for tests, on loopback ports: an S3 emulator (moto), Debian's docker-registry. Killed by their pid."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.image_tars import BuiltImage


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Running:
    """A server process on `port`; `kill` is a kill -9 that is waited for, `start` starts it again on the same port."""

    def __init__(self, argv: list[str], port: int, log: Path) -> None:
        self._argv, self.port, self._log = argv, port, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"{self._argv[0]} did not start: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def s3(folder: Path) -> Running:
    program = Path(sys.executable).parent / "moto_server"
    if not program.exists():
        pytest.skip("needs moto[server]")
    port = free_port()
    return Running([str(program), "-H", "127.0.0.1", "-p", str(port)], port, folder / "moto.log")


def make_bucket(server: Running, name: str) -> None:
    """Makes a bucket; one that is there already is fine."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=name)


def registry(folder: Path) -> Running:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs docker-registry (apt-get install docker-registry)")
    port = free_port()
    config = folder / "registry.yaml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    return Running([program, "serve", str(config)], port, folder / "registry.log")


_OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(server: Running, repository: str, built: BuiltImage, *, kind: str = _OCI_MANIFEST) -> str:
    """Pushes an image; its reference."""
    for digest, data in built.blobs.items():
        start = urllib.request.Request(f"{server.url}/v2/{repository}/blobs/uploads/", data=b"", method="POST")
        with urllib.request.urlopen(start, timeout=10) as response:
            where = response.headers["Location"]
        where = where if "://" in where else server.url + where
        url = f"{where}{'&' if '?' in where else '?'}digest={digest}"
        _put(url, data, "application/octet-stream")
    _put(f"{server.url}/v2/{repository}/manifests/{built.digest}", built.manifest, kind)
    return f"{server.host}/{repository}@{built.digest}"


def _put(url: str, data: bytes, kind: str) -> None:
    request = urllib.request.Request(url, data=data, method="PUT", headers={"Content-Type": kind})
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read()!r}") from error
