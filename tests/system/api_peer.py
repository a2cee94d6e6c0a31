"""The real api role in a thread of its own, and the official C-core client calling it as user, router, node agent...

`open_api` starts the role on a store of its own over real mutual TLS, with one node whose agent is the simulation's
model, its snapshots real files. A `Caller` calls any RPC of the descriptors by name; it asserts the server's time in
the trailers of every answer, and `refused` says what an error must be.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ate import names
from ate.api.access.gate import ELAPSED_TRAILER
from ate.api.minting import MintingConfig
from ate.api.server import ApiConfig, run_api
from ate.identity import ca, jwt_pool, spiffe
from ate.identity.ca import CaPool, make_authority
from ate.identity.tls import Credentials, Identity
from ate.objects import MANIFEST
from ate.proto import ateapi_pb2 as pb
from ate.proto import events_pb2, node_pb2
from ate.proto.node_grpc import ActorLogsBase
from ate.rpc import Call, Server, open_tcp_listener, server_streaming
from tests.simulation.cluster import FakeNode

DOMAIN = "test.local"
NODE = "n1"
TIMEOUT = 60.0
"""Seconds after which a call is a failure of the test; nothing is asserted about shorter times."""
METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for file in (pb.DESCRIPTOR, node_pb2.DESCRIPTOR, events_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
    if service.name != "ActorCredentials"  # the node agent's, for its workers
}
"""Every RPC of the api role's protos, by its name."""
_BUSY = "another operation"


def identity_of(pool: CaPool, spiffe_id: str, pod: spiffe.PodIdentity | None = None) -> Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    chain = pool.issue(key.public_key(), spiffe_id, holder=pod, hosts=["localhost"])
    return Identity(Credentials(key, tuple(chain), pool.trust_bundle_pem))


def account(role: str) -> str:
    return names.service_account_id(DOMAIN, names.SERVICE_ACCOUNTS[role])


def request_of(method: str, **fields: Any) -> Any:
    """The request message of an RPC."""
    return GetMessageClass(METHODS[method].input_type)(**fields)


class Caller:
    """A C-core channel with one certificate, a token, or both. Blocking; used from the test's thread."""

    def __init__(
        self, port: int, credentials: Credentials | None, trust_bundle_pem: str, *, token: str | None = None
    ) -> None:
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        key = chain = None
        if credentials is not None:
            key = credentials.key.private_bytes(
                Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            chain = load_der_x509_certificate(credentials.chain[0]).public_bytes(Encoding.PEM)
        options = [
            ("grpc.ssl_target_name_override", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        tls = grpc.ssl_channel_credentials(trust_bundle_pem.encode(), key, chain)
        self.channel = grpc.secure_channel(f"127.0.0.1:{port}", tls, options)

    def __call__(self, method: str, **fields: Any) -> Any:
        """The reply to a request of these fields; grpc.RpcError when refused. Waits while the resource is busy."""
        return self.send(method, request_of(method, **fields))

    def send(self, method: str, request: Message) -> Any:
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.once(method, request)
            except grpc.RpcError as error:
                busy = error.code() is grpc.StatusCode.ABORTED and error.details().startswith(_BUSY)
                if not busy or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def once(self, method: str, request: Message) -> Any:
        """Like `send`, without trying again."""
        try:
            if METHODS[method].server_streaming:
                with self.stream(method, request) as answers:
                    return next(answers, None)
            reply, call = self._method(method).with_call(request, timeout=TIMEOUT, metadata=self.metadata)
        except grpc.RpcError as error:
            _assert_elapsed(error)
            raise
        _assert_elapsed(call)
        return reply

    def later(self, method: str, request: Message) -> Any:
        """A call under way: its `result()` waits for the reply."""
        return self._method(method).future(request, timeout=TIMEOUT, metadata=self.metadata)

    def at_once(self, method: str, requests: list[Message]) -> list[Any]:
        """The replies to many calls under way together."""
        calls = [self.later(method, request) for request in requests]
        return [call.result() for call in calls]

    def codes_at_once(self, method: str, requests: list[Message]) -> list[str]:
        """How many calls under way together ended: names of gRPC statuses."""
        calls = [self.later(method, request) for request in requests]
        return [call.code().name for call in calls]

    @contextmanager
    def stream(self, method: str, request: Message) -> Iterator[Iterator[Any]]:
        """The answers of a streaming RPC, cancelled at the end."""
        call = self._method(method)(request, timeout=TIMEOUT, metadata=self.metadata)
        try:
            yield call
        finally:
            call.cancel()

    def _method(self, name: str) -> Any:
        method = METHODS[name]
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        return make(
            f"/{method.containing_service.full_name}/{name}",
            lambda message: message.SerializeToString(),
            GetMessageClass(method.output_type).FromString,
        )


def _assert_elapsed(call: Any) -> None:
    unknown_method = call.code() is grpc.StatusCode.UNIMPLEMENTED and call.details().startswith("method /")
    if unknown_method or (call.code() is grpc.StatusCode.UNAVAILABLE and not call.trailing_metadata()):
        return  # no handler, or no server at all
    trailers = dict(call.trailing_metadata() or ())
    assert trailers.get(ELAPSED_TRAILER, "").isdigit(), f"no {ELAPSED_TRAILER} in {trailers}: {call.details()}"


@contextmanager
def refused(code: str, *words: str) -> Iterator[Any]:
    """What happens inside must end with the gRPC status named `code`, its message holding all `words`.

    Yields what will hold the error as `value`.
    """
    with pytest.raises(grpc.RpcError) as caught:
        yield caught
    told = f"{caught.value.code().name}: {caught.value.details()}"
    assert caught.value.code().name == code, told
    for word in words:
        assert word in caught.value.details(), told


class Snapshots(MutableMapping[str, int]):
    """The model's object storage in real files: an actor's memory, and the manifest that commits it."""

    def __getitem__(self, uri: str) -> int:
        try:
            return int(json.loads((self.folder(uri) / MANIFEST).read_text())["memory"])
        except FileNotFoundError:
            raise KeyError(uri) from None

    def __setitem__(self, uri: str, memory: int) -> None:
        folder = self.folder(uri)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory").write_text(str(memory))
        (folder / MANIFEST).write_text(json.dumps({"memory": memory}))

    def __delitem__(self, uri: str) -> None:
        for path in self.folder(uri).iterdir():
            path.unlink()

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("the model never lists its snapshots")

    def __len__(self) -> int:
        raise NotImplementedError("the model never counts its snapshots")

    @staticmethod
    def folder(uri: str) -> Path:
        return Path(urlsplit(uri).path)


class RoomyNode(FakeNode):
    """A model whose workers hold as many actors as the control plane gives them. `held`: its starts take their time."""

    held = False

    async def _start(self, request: Any, call: Call, memory: int) -> None:
        while self.held:
            await trio.sleep(0.01)
        request.target_ateom_uid += f"/{request.actor_uid}"
        await super()._start(request, call, memory)

    async def _checkpoint(self, request: Any, call: Call) -> Any:
        request.target_ateom_uid += f"/{request.actor_uid}"
        return await super()._checkpoint(request, call)


class FakeLogs(ActorLogsBase):
    """The node's ActorLogs: one line an actor."""

    @server_streaming
    async def ReadActorLogs(self, request: node_pb2.ReadActorLogsRequest, call: Call) -> None:
        await call.send(node_pb2.ReadActorLogsResponse(container="c", line=request.actor_uid))


@dataclass
class Api:
    """A running api role, who may call it, and the node it works with."""

    user: Caller
    router: Caller
    controller: Caller
    atelet: Caller
    """The agent of the node `NODE`."""
    far_atelet: Caller
    """The agent of another node."""
    homeless_atelet: Caller
    """An agent whose certificate names no node."""
    outsiders: dict[str, Caller]
    """Certificates of our own CA that may call nothing here, by who they are."""
    nameless: Caller
    """Shows no certificate."""
    node: RoomyNode
    node_address: str
    folder: Path
    """The role's own; for other files of a row too."""
    minting: MintingConfig
    port: int
    pool: CaPool
    """Its own certificates' authority."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def location(self) -> str:
        """Where templates keep their snapshots: a file:// URI."""
        return f"file://{self.folder}/objects"

    def fresh(self, prefix: str) -> str:
        """A name nobody else uses."""
        return f"{prefix}-{next(self._numbers)}"

    def atespace(self) -> str:
        """A new atespace."""
        name = self.fresh("space")
        self.user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name=name)))
        return name

    @contextmanager
    def node_holds_starts(self) -> Iterator[None]:
        """While inside, nothing that the node is asked to start gets ahead."""
        self.node.held = True
        try:
            yield
        finally:
            self.node.held = False

    @contextmanager
    def node_fails(self, what: str, error: Exception) -> Iterator[None]:
        """While inside, the node answers `what` (start, checkpoint, upload, terminate) with `error`."""

        def before(now: str) -> None:
            if now == what:
                raise error

        self.node.before = before
        try:
            yield
        finally:
            self.node.before = lambda what: None


@contextmanager
def open_api(folder: Path, *, debug: bool = False, **settings: Any) -> Iterator[Api]:
    """Starts the role and its node, and registers the node. Stops both at the end, in order.

    `settings` are further ones of ApiConfig.
    """
    pool = CaPool((make_authority("1"),))
    pod = partial(spiffe.PodIdentity, names.SERVICE_ACCOUNTS["atelet"])
    agent = identity_of(pool, account("atelet"), pod(NODE))
    node = RoomyNode(Snapshots(), delay=0)  # type: ignore[arg-type]
    minting = MintingConfig(folder / "actor-ca.json", folder / "actor-jwt.json")
    ca.make_if_absent(minting.ca_pool)
    jwt_pool.make_if_absent(minting.jwt_pool)
    config = ApiConfig(
        folder / "store.db",
        listen_port=0,
        trust_domain=DOMAIN,
        minting=minting,
        audit=folder / "audit",
        debug=debug,
        drain_timeout=2,
        **settings,
    )
    with ExitStack() as stack:
        port, node_port = stack.enter_context(_running(config, identity_of(pool, account("api")), node, agent))

        def caller(identity: Identity | None) -> Caller:
            made = Caller(port, identity.credentials if identity else None, pool.trust_bundle_pem)
            stack.callback(made.channel.close)
            return made

        others = {
            "an ateom": account("ateom"),
            "another service account": names.service_account_id(DOMAIN, "default"),
            "a router of another namespace": names.service_account_id(DOMAIN, "atenet-router", "elsewhere"),
            "a user of another domain": names.user_id("else.where", "eve"),
            "an actor": "spiffe://substrate-actor.local/atespace/demo/actor/a",
        }
        api = Api(
            user=caller(identity_of(pool, names.user_id(DOMAIN, "ann"))),
            router=caller(identity_of(pool, account("router"))),
            controller=caller(identity_of(pool, account("controller"))),
            atelet=caller(agent),
            far_atelet=caller(identity_of(pool, account("atelet"), pod("n2"))),
            homeless_atelet=caller(identity_of(pool, account("atelet"))),
            outsiders={who: caller(identity_of(pool, spiffe_id)) for who, spiffe_id in others.items()},
            nameless=caller(None),
            node=node,
            node_address=f"127.0.0.1:{node_port}",
            folder=folder,
            minting=minting,
            port=port,
            pool=pool,
        )
        api.atelet("RegisterNode", node_name=NODE, address=api.node_address, boot_id=str(uuid.uuid4()))
        yield api


@contextmanager
def _running(config: ApiConfig, identity: Identity, node: FakeNode, agent: Identity) -> Iterator[tuple[int, int]]:
    """Runs role and node in a thread; their ports."""

    async def main(started: Callable[[tuple[int, int]], None], stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            listener = await open_tcp_listener("127.0.0.1", 0, tls=agent)
            await nursery.start(Server([node, FakeLogs()]).serve, [listener])
            async with trio.open_nursery() as role:
                port = await role.start(run_api, config, identity, stop)
                started((port, listener.port))
            nursery.cancel_scope.cancel()

    with in_thread(main) as ports:
        yield ports


T = TypeVar("T")


@contextmanager
def in_thread(main: Callable[[Callable[[T], None], trio.Event], Awaitable[None]]) -> Iterator[T]:
    """Runs `main(started, stop)` in a trio thread and yields what it calls `started` with; sets `stop` at the end.

    What the thread dies of is raised here.
    """
    told: list[T] = []
    failed: list[BaseException] = []
    ready = threading.Event()
    stop_from_outside: list[Callable[[], None]] = []

    async def run() -> None:
        stop, token = trio.Event(), trio.lowlevel.current_trio_token()
        stop_from_outside.append(lambda: token.run_sync_soon(stop.set))

        def started(value: T) -> None:
            told.append(value)
            ready.set()

        await main(started, stop)

    def thread() -> None:
        try:
            trio.run(run)
        except BaseException as error:
            failed.append(error)
        ready.set()

    runner = threading.Thread(target=thread, name="api")
    runner.start()
    ready.wait()
    try:
        if not failed:
            yield told[0]
    finally:
        if not failed:
            with suppress(trio.RunFinishedError):
                stop_from_outside[0]()
        runner.join()
        if failed:
            raise failed[0]
