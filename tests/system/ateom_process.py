"""A real ateom as its own process, for tests: `python -m tests.system.ateom_process <json>`; see `start`.

The process enters its namespaces as the product does. Certificates come from a CA pool made for the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ate.identity.ca import CaPool, load_or_make
from ate.identity.tls import Credentials, Identity
from ate.names import service_account_id
from ate.node.sandbox import oci_spec
from ate.proto import ateom_pb2 as pb
from ate.proto.ateom_grpc import AteomStub
from ate.rpc import Channel
from tests.system import rootfs

ROUTER = service_account_id("test.local", "atenet-router")
STRANGER = service_account_id("test.local", "atelet")


def identity(pool: CaPool, spiffe_id: str) -> Identity:
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(Credentials(key, tuple(pool.issue(key.public_key(), spiffe_id)), pool.trust_bundle_pem))


def main() -> None:
    options = json.loads(sys.argv[1])
    from ate.node.ateom import AteomConfig, cgroup_tree, run_ateom
    from ate.node.isolation import enter_worker_namespaces

    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    Path(options["port_file"]).write_text(str(listener.getsockname()[1]))
    tree = cgroup_tree(options["install_id"], options["worker_uid"])
    enter_worker_namespaces(keep_open=[listener.fileno()], at_end=lambda: [tree.remove()][0] and None)
    from ate import log

    log.setup(options.get("level", "info"))

    async def role() -> None:
        stopping = trio.Event()
        config = AteomConfig(
            root=Path(options["root"]),
            worker_uid=options["worker_uid"],
            install_id=options["install_id"],
            router_id=ROUTER,
            provider=identity(load_or_make(Path(options["ca"])), STRANGER),
            tunnel_socket=listener,
            prepare=options["prepare"],
            stopping=stopping,
            eviction_grace=options["eviction_grace"],
        )
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda task_status: run_ateom(config, task_status=task_status))
                async with trio.open_nursery() as waiting:

                    async def on_term() -> None:
                        async for _ in signals:
                            stopping.set()

                    async def until_done() -> None:
                        while nursery.child_tasks - {trio.lowlevel.current_task()}:
                            await trio.sleep(0.05)
                        waiting.cancel_scope.cancel()

                    waiting.start_soon(on_term)
                    waiting.start_soon(until_done)

    trio.run(role)


@dataclass
class Actor:
    """An actor's directory as the node agent would prepare it, and requests about it."""

    root: Path
    runsc: Path
    name: str = "counter"
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    readyz: str = "/healthz"
    ready_timeout: int = 30
    several: bool = False
    durable: bool = False
    env: tuple[tuple[str, str], ...] = ()
    memory_bytes: int = 0
    command: tuple[str, ...] = tuple(rootfs.COUNTER_ARGV)

    @property
    def directory(self) -> Path:
        return self.root / "actors" / self.uid

    def prepare(self) -> Actor:
        """Writes bundles and directories."""
        for name in ("bundles", "checkpoint", "restore", "durable-dir", "system-info"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        mounts = []
        if self.durable:
            (self.directory / "durable-dir/data").mkdir(exist_ok=True)
            (self.directory / "durable-dir/data").chmod(0o777)
            mounts.append(oci_spec.Mount(self.directory / "durable-dir/data", "/data"))
            (self.directory / "system-info/info").mkdir(exist_ok=True)
            (self.directory / "system-info/info/name").write_text(self.uid)
            mounts.append(oci_spec.Mount(self.directory / "system-info/info", "/run/info", read_only=True))
        app = oci_spec.Process("app", command=self.command, env=self.env, mounts=tuple(mounts))
        self._bundle("app", oci_spec.build(app, oci_spec.ImageConfig()), rootfs.python())
        if self.several:
            side = oci_spec.Process("side", command=("/bin/sleep", "100000"))
            self._bundle("side", oci_spec.build(side, oci_spec.ImageConfig()), rootfs.busybox())
        self._bundle("pause", oci_spec.build_pause(), rootfs.busybox())
        return self

    def _bundle(self, name: str, config: dict[str, Any], root: Path) -> None:
        bundle = self.directory / "bundles" / name
        (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(config))
        empty = self.root / "empty-layer"
        empty.mkdir(exist_ok=True)
        (bundle / "rootfs-overlay.json").write_text(json.dumps({"layers": [str(empty), str(root)]}))

    def spec(self) -> pb.WorkloadSpec:
        app = pb.Container(name="app")
        if self.readyz:
            app.readyz.http_get.path = self.readyz
            app.readyz.http_get.port = 80
            app.readyz.timeout_seconds = self.ready_timeout
        if self.durable:
            app.durable_dir_volume_mounts.add(volume_name="data", mount_path="/data")
        return pb.WorkloadSpec(containers=[app, *([pb.Container(name="side")] if self.several else [])])

    def common(self) -> dict[str, Any]:
        d = self.directory
        return {
            "atespace": "space",
            "actor_name": self.name,
            "actor_uid": self.uid,
            "actor_template_atespace": "space",
            "actor_template_name": "template",
            "runsc_path": str(self.runsc),
            "spec": self.spec(),
            "actor_dirs": pb.ActorDirs(
                root_dir=str(d),
                oci_bundle_dir=str(d / "bundles"),
                checkpoint_dir=str(d / "checkpoint"),
                restore_dir=str(d / "restore"),
                durable_dir_volume_mounts_dir=str(d / "durable-dir"),
                system_info_volume_roots_dir=str(d / "system-info"),
            ),
        }

    def run(self) -> pb.RunWorkloadRequest:
        return pb.RunWorkloadRequest(**self.common(), memory_bytes=self.memory_bytes)

    def checkpoint(self, scope: int = pb.SNAPSHOT_SCOPE_FULL) -> pb.CheckpointWorkloadRequest:
        return pb.CheckpointWorkloadRequest(**self.common(), scope=scope)

    def restore(self, scope: int = pb.SNAPSHOT_SCOPE_FULL) -> pb.RestoreWorkloadRequest:
        return pb.RestoreWorkloadRequest(**self.common(), scope=scope, memory_bytes=self.memory_bytes)

    def terminate(self) -> pb.TerminateWorkloadRequest:
        return pb.TerminateWorkloadRequest(**self.common())

    def stage(self, files: list[str] | Any, source: Path | None = None) -> Actor:
        """What the node agent does between a checkpoint and a restore: the files move to the restore directory."""
        source = source or self.directory / "checkpoint"
        for old in (self.directory / "restore").iterdir():
            old.unlink()
        for name in files:
            os.link(source / name, self.directory / "restore" / name)
        return self


@dataclass
class Ateom:
    """A running ateom: its RPC stub, and HTTP through its tunnel."""

    process: subprocess.Popen[bytes]
    stub: AteomStub
    channel: Channel
    root: Path
    port: int
    ca: CaPool
    install_id: str
    worker_uid: str

    async def connect(self, spiffe_id: str = ROUTER) -> trio.SSLStream[trio.SocketStream]:
        context = identity(self.ca, spiffe_id).http_client_context()
        raw = await trio.open_tcp_stream("127.0.0.1", self.port)
        stream = trio.SSLStream(raw, context, https_compatible=True)
        await stream.do_handshake()
        return stream

    async def http(
        self,
        actor: Actor,
        target: str,
        *,
        method: str = "GET",
        body: bytes = b"",
        headers: str = "",
        stream: trio.abc.Stream | None = None,
        uid: str = "",
    ) -> tuple[int, dict[str, str], bytes]:
        """One request through the tunnel; status, headers in lower case, body."""
        own = stream is None
        stream = stream or await self.connect()
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: example.test\r\nate-target-actor: space/{actor.name}\r\n"
            f"X-Ate-Actor-Uid: {uid or actor.uid}\r\n{length}{headers}\r\n"
        )
        try:
            with trio.fail_after(30):
                await stream.send_all(head.encode() + body)
                return await read_response(stream)
        finally:
            if own:
                await trio.aclose_forcefully(stream)

    async def count(self, actor: Actor) -> int:
        status, _, body = await self.http(actor, "/")
        assert status == 200, body
        return int(json.loads(body)["count"])

    def pids(self) -> list[int]:
        """The outer process, the init and the worker, from the outside in."""
        found = [self.process.pid]
        while True:
            children = [
                int(pid)
                for pid in Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text().split()
                if b"ateom_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            if not children:
                return found
            # The janitor is the outer process's first child and has a session of its own.
            found.append(next(pid for pid in children if os.getsid(pid) == os.getsid(self.process.pid)))


async def read_response(stream: trio.abc.Stream) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(65536)
        if not more:
            raise EOFError(data)
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    if "content-length" in headers:
        while len(body) < int(headers["content-length"]):
            more = await stream.receive_some(65536)
            if not more:
                raise EOFError(data)
            body += more
    elif headers.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += await stream.receive_some(65536)
    return int(first.split()[1]), headers, body


@contextlib.asynccontextmanager
async def start(
    root: Path, *, prepare: bool = False, level: str = "info", eviction_grace: float = 0.1
) -> AsyncIterator[Ateom]:
    """An ateom below `root`; ended by SIGTERM, or killed if that does not help."""
    install_id, worker_uid = secrets.token_hex(4), str(uuid.uuid4())
    root.mkdir(parents=True, exist_ok=True)
    ca = load_or_make(root / "ca.json")
    options = {
        "root": str(root),
        "install_id": install_id,
        "worker_uid": worker_uid,
        "ca": str(root / "ca.json"),
        "port_file": str(root / f"port-{worker_uid}"),
        "prepare": prepare,
        "level": level,
        "eviction_grace": eviction_grace,
    }
    (root / "runsc-facts").mkdir(exist_ok=True)
    for known in rootfs.CACHE.glob("runsc-*.json"):
        (root / "runsc-facts" / known.name).write_bytes(known.read_bytes())
    with open(root / "ateom.log", "ab") as output:  # noqa: ASYNC230
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.ateom_process", json.dumps(options)],
            cwd=Path(__file__).parents[2],
            stderr=output,
            stdout=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        path = root / "ateoms" / worker_uid / "ateom.sock"
        with trio.fail_after(20):
            while not path.exists():
                assert process.poll() is None, (root / "ateom.log").read_text()
                await trio.sleep(0.02)
        port = int((root / f"port-{worker_uid}").read_text())
        async with Channel.unix(path) as channel:
            yield Ateom(process, AteomStub(channel), channel, root, port, ca, install_id, worker_uid)
    finally:
        process.terminate()
        with trio.CancelScope(shield=True), trio.move_on_after(15):
            while process.poll() is None:
                await trio.sleep(0.02)
        if process.poll() is None:
            process.kill()
        process.wait()


if __name__ == "__main__":
    main()
