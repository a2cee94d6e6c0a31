"""The real router before real tunnels, on loopback: `open_bench`. Only the control plane and the actors are ours.

The control plane is a gRPC server (mutual TLS) whose answers a test scripts; an actor is a TCP server whose bytes a
test scripts, or the small program `Origin.speak`. Each worker is a tunnel on its own address with its own identity.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio
from cryptography.hazmat.primitives.asymmetric import ec
from grpclib.const import Cardinality, Handler

from ate import names
from ate.errors import ResourceExhausted
from ate.identity import spiffe
from ate.identity.ca import CaPool, load_or_make
from ate.identity.tls import Credentials, Identity
from ate.names import Ref
from ate.node.tunnel import Admission, Tunnel
from ate.proto import ateapi_pb2 as pb
from ate.router.parking import ParkingRules
from ate.router.server import RouterConfig, run_router
from ate.rpc import Call, Server, open_tcp_listener, server_streaming, unary

DOMAIN = "test.local"
ID = {role: names.service_account_id(DOMAIN, account) for role, account in names.SERVICE_ACCOUNTS.items()}
Script = Callable[["Line"], Awaitable[None]]


def identity(pool: CaPool, role: str, pod_uid: str = "") -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    pod = spiffe.PodIdentity(names.SERVICE_ACCOUNTS[role], "node", pod_uid) if pod_uid else None
    return Identity(Credentials(key, tuple(pool.issue(key.public_key(), ID[role], holder=pod)), pool.trust_bundle_pem))


class Line:
    """A raw connection with what was read and not used; both clients and actors of tests speak through it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream, self.buffer = stream, b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def until(self, mark: bytes) -> bytes:
        """What comes up to and with `mark`; EOFError when the peer ends before."""
        while mark not in self.buffer:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EOFError(self.buffer)
            self.buffer += more
        found, _, self.buffer = self.buffer.partition(mark)
        return found + mark

    async def exactly(self, size: int) -> bytes:
        parts, have = [self.buffer], len(self.buffer)
        while have < size:
            more = await self.stream.receive_some(65536)
            if not more:
                raise EOFError(b"".join(parts)[-200:])
            parts.append(more)
            have += len(more)
        data = b"".join(parts)
        self.buffer = data[size:]
        return data[:size]

    async def rest(self) -> bytes:
        """Everything up to the peer's clean end."""
        parts = [self.buffer]
        self.buffer = b""
        while more := await self.stream.receive_some(65536):
            parts.append(more)
        return b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.until(b"\r\n")).split(b";")[0], 16):
            yield await self.exactly(size)
            assert await self.exactly(2) == b"\r\n"
        while await self.until(b"\r\n") != b"\r\n":
            pass

    async def answer(self, *, head_only: bool = False) -> Answer:
        """One whole HTTP answer; interim ones are collected."""
        interim = []
        while True:
            head = await self.until(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status >= 200 or status == 101:
                break
            interim.append(status)
        fields = [tuple(line.split(b": ", 1)) for line in head[:-4].split(b"\r\n")[1:]]
        got = Answer(status, head, {k.lower().decode(): v.decode("latin-1") for k, v in fields}, b"", interim)
        if head_only or status in (101, 204, 304):
            return got
        if "content-length" in got.headers:
            return replace(got, body=await self.exactly(int(got.headers["content-length"])))
        if got.headers.get("transfer-encoding") == "chunked":
            return replace(got, body=b"".join([piece async for piece in self.chunks()]))
        return replace(got, body=await self.rest())

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)


@dataclass(frozen=True)
class Answer:
    status: int
    head: bytes
    headers: dict[str, str]
    body: bytes
    interim: list[int]

    @property
    def text(self) -> str:
        return self.body.decode()


class Origin:
    """An actor's server. `script` is run for every connection; `heads` are the request heads that arrived."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.script: Script = self.speak

    async def serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=512)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._connection, listeners)

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        self.open += 1
        try:
            with contextlib.suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
                await self.script(Line(stream))
        finally:
            self.open -= 1
            await stream.aclose()

    async def request(self, line: Line) -> tuple[bytes, bytes]:
        """The next request's head and body, kept in `heads` and `bodies`."""
        head = await line.until(b"\r\n\r\n")
        self.heads.append(head)
        body = b""
        if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
            body = await line.exactly(int(length[1]))
        elif re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
            body = b"".join([piece async for piece in line.chunks()])
        self.bodies.append(body)
        return head, body

    async def speak(self, line: Line) -> None:
        """Echoes each request's body, whole."""
        while True:
            _, body = await self.request(line)
            await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


class Control:
    """The control plane's two methods that the router calls. `on_resume` answers: a worker, or raises."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.on_resume: Callable[[str], Awaitable[Worker]]
        self._watchers: set[trio.MemorySendChannel[None]] = set()

    def __mapping__(self) -> dict[str, Handler]:
        return {
            "/ateapi.Control/ResumeActor": Handler(
                self.ResumeActor, Cardinality.UNARY_UNARY, pb.ResumeActorRequest, pb.ResumeActorResponse
            ),
            "/ateapi.Control/WatchWorkers": Handler(
                self.WatchWorkers, Cardinality.UNARY_STREAM, pb.WatchWorkersRequest, pb.WatchWorkersResponse
            ),
        }

    @unary
    async def ResumeActor(self, request: pb.ResumeActorRequest, call: Call) -> pb.ResumeActorResponse:
        name = request.actor.name
        self.calls[name] += 1
        self.order.append(name)
        worker = await self.on_resume(name)
        assigned = pb.WorkerAssignment(worker_pod_uid=worker.uid, worker_pod_ips=[worker.host], worker_epoch=1)
        return pb.ResumeActorResponse(
            actor=pb.Actor(
                metadata=pb.ResourceMetadata(atespace=request.actor.atespace, name=name, uid=f"uid-{name}"),
                status=pb.ActorStatus(state=pb.ACTOR_STATE_RUNNING, worker_assignment=assigned),
            )
        )

    @server_streaming
    async def WatchWorkers(self, request: pb.WatchWorkersRequest, call: Call) -> None:
        send, receive = trio.open_memory_channel[None](1000)
        self._watchers.add(send)
        try:
            async for _ in receive:
                await call.send(pb.WatchWorkersResponse(type=pb.WATCH_EVENT_TYPE_MODIFIED))
        finally:
            self._watchers.discard(send)

    async def worker_changed(self) -> None:
        """Tells every watcher, once the router watches."""
        while not self._watchers:
            await trio.sleep(0.01)
        for watcher in self._watchers:
            watcher.send_nowait(None)


@dataclass
class Worker:
    uid: str
    host: str
    admission: Admission = field(default_factory=Admission)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def hold(self, name: str) -> None:
        """From now on the actor is active here, and no other."""
        self.admission.admit(Ref("demo", name), f"uid-{name}")


@dataclass
class Bench:
    nursery: trio.Nursery
    pool: CaPool
    control: Control
    origin: Origin
    origin_port: int
    port: int = 0
    workers: list[Worker] = field(default_factory=list)
    tunnels: list[Tunnel] = field(default_factory=list)
    tunnel_port: int = 0
    stop: trio.Event = field(default_factory=trio.Event)
    stopped: trio.Event = field(default_factory=trio.Event)
    config: RouterConfig = field(default_factory=lambda: RouterConfig("127.0.0.1", 0))

    async def add_worker(self, *, role: str = "ateom", pod_uid: str = "") -> Worker:
        """A tunnel on the next address of 127/8, on the one port that all tunnels listen on."""
        worker = Worker(f"worker-{len(self.workers)}", f"127.0.0.{10 + len(self.workers)}")
        self.workers.append(worker)

        async def dial(port: int) -> trio.abc.Stream:
            return await trio.open_tcp_stream("127.0.0.1", self.origin_port)

        listeners = await trio.open_tcp_listeners(self.tunnel_port, host=worker.host, backlog=512)
        self.tunnel_port = listeners[0].socket.getsockname()[1]
        provider = _Http(identity(self.pool, role, pod_uid or worker.uid))
        tunnel = Tunnel(provider, spiffe.demand({ID["router"]}), worker.admission, dial)

        self.tunnels.append(tunnel)

        async def serve() -> None:
            with worker.scope:
                await tunnel.serve(listeners[0])

        self.nursery.start_soon(serve)
        return worker

    async def origin_reset(self) -> None:
        """Ends the connections that the tunnels keep to the actor, so that the next request meets a new script."""
        while self.origin.open:
            for tunnel in self.tunnels:  # a connection is kept a moment after its answer has arrived
                await tunnel.forget_connections()
            await trio.sleep(0.005)

    async def stop_router(self) -> None:
        self.stop.set()
        await self.stopped.wait()

    async def start_router(self, listen_port: int = 0, **changes: Any) -> None:
        self.stop, self.stopped = trio.Event(), trio.Event()
        config = replace(self.config, tunnel_port=self.tunnel_port, listen_port=listen_port, **changes)
        stop, stopped = self.stop, self.stopped

        async def run(*, task_status: trio.TaskStatus[int]) -> None:
            await run_router(config, identity(self.pool, "router"), stop, task_status=task_status)
            stopped.set()

        self.port = await self.nursery.start(run)

    async def connect(self) -> Line:
        return Line(await trio.open_tcp_stream("127.0.0.1", self.port))

    async def ask(self, head: str, body: bytes = b"", *, actor: str = "a", head_only: bool = False) -> Answer:
        """One request on a connection of its own; `head` is its first line and whatever headers matter."""
        line = await self.connect()
        try:
            await line.send(request(head, body, actor))
            return await line.answer(head_only=head_only)
        finally:
            await line.close()


def request(head: str, body: bytes = b"", actor: str = "a") -> bytes:
    first, _, more = head.partition("\r\n")
    fields = [first if " HTTP/" in first else f"{first} HTTP/1.1", "Host: h", f"ate-target-actor: demo/{actor}"]
    if body and "\r\ncontent-length:" not in head.lower():
        fields.append(f"Content-Length: {len(body)}")
    return ("\r\n".join([*fields, *([more] if more else [])]) + "\r\n\r\n").encode("latin-1") + body


class _Http:
    def __init__(self, of: Identity) -> None:
        self._identity = of

    def server_context(self) -> Any:
        return self._identity.http_server_context()


@contextlib.asynccontextmanager
async def open_bench(root: Path, *, workers: int = 1, parking: ParkingRules | None = None) -> AsyncIterator[Bench]:
    """A router with `workers` workers; actor `a` is active on the first one and is found there."""
    pool = load_or_make(root / "ca.json")
    control, origin = Control(), Origin()
    rules = parking or ParkingRules()
    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            listener = await open_tcp_listener("127.0.0.1", 0, identity(pool, "api"))
            server = Server([control])
            await nursery.start(server.serve, [listener])
            bench = Bench(nursery, pool, control, origin, await nursery.start(origin.serve))
            bench.config = RouterConfig(
                "127.0.0.1", listener.port, listen_port=0, status_port=0, trust_domain=DOMAIN, parking=rules
            )
            for _ in range(workers):
                await bench.add_worker()
            bench.workers[0].hold("a")

            async def first(name: str) -> Worker:
                if name in ("a",):
                    return bench.workers[0]
                raise ResourceExhausted("no worker has room")

            control.on_resume = first
            await bench.start_router()
            try:
                yield bench
            finally:
                bench.stop.set()
                with trio.CancelScope(shield=True), trio.move_on_after(20):
                    await bench.stopped.wait()
                nursery.cancel_scope.cancel()


def fields_of(head: bytes) -> list[bytes]:
    """The header lines of a head as they came."""
    return head[:-4].split(b"\r\n")[1:]


def decoded(records: list[Any]) -> str:
    """Everything that was logged, as text."""
    return "\n".join(
        f"{record.getMessage()} {json.dumps(getattr(record, 'fields', {}), default=str)} {record.exc_info or ''}"
        for record in records
    )
