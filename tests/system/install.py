"""A whole install for system tests: `ate dev` on a root folder of its own, real gVisor, the counter demo's image.

`open_install` starts and stops it; `Install` talks to it as people do, by the API and by HTTP, and kills roles.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ate import install as installs
from ate.cli.client import Api, connect
from ate.errors import AteError, NotFound
from ate.node.images import import_path
from ate.proto import ateapi_pb2 as pb

REPOSITORY = Path(__file__).parents[2]
STATES = {pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_CRASHED}


def counter_layout() -> Path:
    """The counter's image as an OCI layout, built once a machine."""
    cache = Path(os.environ.get("ATE_TEST_CACHE", "/var/cache/ate-tests"))
    cache.mkdir(parents=True, exist_ok=True)
    source = (REPOSITORY / "demos/counter/counter.py").read_bytes()
    layout = cache / f"counter-{hash_of(source)}"
    if not (layout / "index.json").exists():
        subprocess.run(
            [sys.executable, str(REPOSITORY / "demos/counter/build_image.py"), str(layout)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return layout


def hash_of(data: bytes) -> str:
    import hashlib

    builders = ("demos/counter/build_image.py", "packaging/oci_image.py", "packaging/debian_files.py")
    return hashlib.sha256(data + b"".join((REPOSITORY / name).read_bytes() for name in builders)).hexdigest()[:12]


@dataclass
class Install:
    """One running install. `image` is the counter's reference in its store."""

    root: Path
    api: Api
    router: str
    image: str
    process: subprocess.Popen[bytes]
    ate: list[str] = field(default_factory=list)

    # -- set-up -----------------------------------------------------------------------------------------------------

    async def set_up(self, *, replicas: int = 2, location: str = "", golden: bool = True, **fields: Any) -> None:
        """The atespace `demo`, a pool and the template `counter`; waits for workers and golden snapshot."""
        control, provider = self.api.control, self.api.provider
        demo = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
        await control.CreateAtespace(pb.CreateAtespaceRequest(atespace=demo), timeout=30)
        pool = pb.WorkerPool(metadata=pb.ResourceMetadata(name="p"), spec=pb.WorkerPoolSpec(replicas=replicas))
        await provider.CreateWorkerPool(pb.CreateWorkerPoolRequest(worker_pool=pool), timeout=30)
        await self.until(lambda: self.ready_workers(replicas))
        await self.add_template("counter", location=location, golden=golden, **fields)

    async def add_template(self, name: str, *, location: str = "", golden: bool = True, **fields: Any) -> None:
        value = self.template(name, location or f"file://{self.root}/objects")
        value.MergeFrom(pb.ActorTemplate(**fields))
        await self.api.control.CreateActorTemplate(pb.CreateActorTemplateRequest(actor_template=value), timeout=30)
        if golden:
            await self.until(lambda: self.golden(name), 120)

    def template(self, name: str, location: str) -> pb.ActorTemplate:
        probe = pb.ContainerReadyz(http_get=pb.HTTPGetAction(path="/readyz", port=80))
        return pb.ActorTemplate(
            metadata=pb.ResourceMetadata(atespace="demo", name=name),
            containers=[pb.Container(name="counter", image=self.image, readyz=probe)],
            sandbox_config=pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_GVISOR, config_name="gvisor-default"),
            snapshots_config=pb.SnapshotsConfig(storage_location=location),
        )

    async def ready_workers(self, count: int) -> bool:
        answer = await self.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
        return len(answer.workers) == count

    async def golden(self, name: str = "counter") -> bool:
        request = pb.GetActorTemplateRequest(actor_template=pb.ObjectRef(atespace="demo", name=name))
        template = await self.api.control.GetActorTemplate(request, timeout=30)
        status = template.status.golden_snapshot_status
        assert not status.error_message, status.error_message
        return bool(status.HasField("golden_tag"))

    async def add_actor(self, name: str, template: str = "counter") -> pb.Actor:
        actor = pb.Actor(
            metadata=pb.ResourceMetadata(atespace="demo", name=name),
            actor_template=pb.ObjectRef(atespace="demo", name=template),
        )
        made: pb.Actor = await self.api.control.CreateActor(pb.CreateActorRequest(actor=actor), timeout=30)
        return made

    # -- using ------------------------------------------------------------------------------------------------------

    def ref(self, name: str) -> pb.ObjectRef:
        return pb.ObjectRef(atespace="demo", name=name)

    async def get(self, name: str) -> pb.Actor:
        actor: pb.Actor = await self.api.control.GetActor(pb.GetActorRequest(actor=self.ref(name)), timeout=30)
        return actor

    async def suspend(self, name: str) -> pb.Actor:
        answer = await self.api.control.SuspendActor(pb.SuspendActorRequest(actor=self.ref(name)), timeout=120)
        actor: pb.Actor = answer.actor
        return actor

    async def resume(self, name: str) -> pb.Actor:
        answer = await self.api.control.ResumeActor(pb.ResumeActorRequest(actor=self.ref(name)), timeout=120)
        actor: pb.Actor = answer.actor
        return actor

    async def revert(self, name: str) -> pb.Actor:
        answer = await self.api.control.RevertActor(pb.RevertActorRequest(actor=self.ref(name)), timeout=120)
        actor: pb.Actor = answer.actor
        return actor

    async def delete(self, name: str) -> None:
        """Deletes the actor, whatever role is just restarting."""
        request = pb.DeleteActorRequest(actor=self.ref(name), any_state=True)

        async def gone() -> bool:
            with suppress(NotFound):
                await self.api.control.DeleteActor(request, timeout=120)
            return True

        await self.until(gone)

    async def raw(
        self,
        name: str,
        path: str = "/",
        *,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """Status and body of one request through the router."""

        def ask() -> tuple[int, str]:
            host, _, port = self.router.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=90)
            try:
                connection.request(method, path, body, {"ate-target-actor": f"demo/{name}", **(headers or {})})
                response = connection.getresponse()
                return response.status, response.read().decode()
            finally:
                connection.close()

        return await trio.to_thread.run_sync(ask)

    async def count(self, name: str) -> dict[str, Any]:
        """Counts once; the actor's answer."""
        status, body = await self.raw(name)
        assert status == 200, (status, body)
        answer: dict[str, Any] = json.loads(body)
        assert answer["ram"] == answer["file"], "memory and file system are of different moments"
        return answer

    # -- waiting and killing ----------------------------------------------------------------------------------------

    async def until(self, check: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
        """Returns when `check` holds; a role that is restarting meanwhile is no failure of it."""
        with trio.fail_after(seconds):
            while True:
                with suppress(AteError, OSError):
                    if await check():
                        return
                await trio.sleep(0.05)

    async def settled(self, name: str, seconds: float = 30) -> pb.Actor:
        """The actor once it is in a state that people can act on."""
        found: list[pb.Actor] = []

        async def check() -> bool:
            found[:] = [await self.get(name)]
            return found[0].status.state in STATES

        await self.until(check, seconds)
        return found[0]

    def pids(self, role: str) -> list[int]:
        """Processes of a role of this install, outermost first."""
        found = []
        for path in sorted(Path("/proc").glob("[0-9]*/cmdline"), key=lambda p: int(p.parent.name)):
            with suppress(OSError):
                words = path.read_bytes().decode().split("\0")
                if f"--role={role}" in words and f"--root={self.root}" in words:
                    found.append(int(path.parent.name))
        return found

    def worker_pids(self, worker_uid: str) -> list[int]:
        return [pid for pid in self.pids("ateom") if f"--worker-uid={worker_uid}" in _cmdline(pid)]

    def kill(self, role: str) -> None:
        """kill -9 of a role's (outermost) process."""
        os.kill(self.pids(role)[0], signal.SIGKILL)


def _cmdline(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def launch(root: Path, *flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts `ate dev` on ports of its own. From the main thread only: it ends with the thread that started it."""
    root.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "ate", "dev", f"--root={root}", "--die-with-parent"]
    argv += ["--api-port=0", "--router-port=0", "--status-port=0", *flags]
    (root / "ready").unlink(missing_ok=True)  # of a former run that was killed
    with (root / "dev.log").open("ab") as output:
        return subprocess.Popen(
            argv,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def is_ready(root: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether it has said so; fails with what it printed when it has ended instead."""
    assert process.poll() is None, (root / "dev.log").read_text()
    return (root / "ready").exists()


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for one that takes far too long."""
    process.terminate()
    try:
        process.wait(150)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(root: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """An install for a whole module of tests, ready; each test joins it."""
    process = launch(root, *flags)
    try:
        deadline = time.monotonic() + 60
        while not is_ready(root, process):
            assert time.monotonic() < deadline, (root / "dev.log").read_text()
            time.sleep(0.05)
        yield process
    finally:
        stop(process)


@asynccontextmanager
async def joined(root: Path, process: subprocess.Popen[bytes]) -> AsyncIterator[Install]:
    """The install that runs on `root`, from a test's point of view."""
    (image,) = await import_path(root / "images", counter_layout())
    async with connect(root, "", "cluster.local") as api:
        yield Install(root, api, installs.endpoints(root)["router"], image, process)


@asynccontextmanager
async def open_install(root: Path, *flags: str, env: dict[str, str] | None = None) -> AsyncIterator[Install]:
    """Starts `ate dev` and yields once it is ready; stops it as Ctrl-C would."""
    process = launch(root, *flags, env=env)
    try:
        with trio.fail_after(60):
            while not is_ready(root, process):
                await trio.sleep(0.05)
        async with joined(root, process) as install:
            yield install
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stop, process)
