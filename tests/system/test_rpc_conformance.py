"""ate.rpc against the official C-core gRPC, its client with our server and our client with its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
import trio
from google.protobuf import descriptor_pb2
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, StringValue
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from grpclib.const import Cardinality
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1 import reflection_pb2 as reflection_v1
from grpclib.reflection.v1alpha import reflection_pb2 as reflection_v1alpha

from ate.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from ate.proto import ateapi_pb2
from ate.rpc import Channel, Keepalive, Server, open_tcp_listener, open_unix_listener
from tests.rpc_echo import Echo, EchoStub
from tests.system.rpc_peers import Authority, CoreEcho, CoreStub, Files, core_server, wait_for

KINDS = ["tcp", "unix", "mtls"]
BLOB = bytes(range(256)) * 24_000  # six megabytes


class Ours:
    """Our server on one of the transports, and how each client reaches it."""

    def __init__(self, kind: str, tmp_path: Any, server: Server, echo: Echo, tls: Files | None) -> None:
        self.server, self.echo, self.tls, self.kind = server, echo, tls, kind
        self.path = tmp_path / "echo.sock"
        self.port = 0

    def core(self, options: list[tuple[str, Any]] | None = None) -> CoreStub:
        target = f"unix:{self.path}" if self.kind == "unix" else f"127.0.0.1:{self.port}"
        return CoreStub(target, self.tls, options)

    def channel(self, **options: Any) -> Channel:
        if self.kind == "unix":
            return Channel.unix(self.path, **options)
        return Channel.tcp("127.0.0.1", self.port, self.tls, **options)


@asynccontextmanager
async def ours(kind: str, tmp_path: Any, **options: Any) -> AsyncIterator[Ours]:
    echo = Echo()
    server = Server([echo], **options)
    tls = Authority("test CA").issue(tmp_path / "tls", "peer") if kind == "mtls" else None
    it = Ours(kind, tmp_path, server, echo, tls)
    listener = await (open_unix_listener(it.path) if kind == "unix" else open_tcp_listener("127.0.0.1", 0, tls))
    it.port = listener.port
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [listener])
        yield it
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def theirs(
    kind: str, tmp_path: Any, options: Any = None, **client: Any
) -> AsyncIterator[tuple[Channel, CoreEcho]]:
    echo = CoreEcho()
    tls = Authority("test CA").issue(tmp_path / "tls", "peer") if kind == "mtls" else None
    path = tmp_path / "core.sock"
    with core_server(f"unix:{path}" if kind == "unix" else "127.0.0.1:0", echo, tls, options) as (_, port):
        where = Channel.unix(path, **client) if kind == "unix" else Channel.tcp("127.0.0.1", port, tls, **client)
        async with where as channel:
            yield channel, echo


async def blocking(function: Any, *args: Any, **kwargs: Any) -> Any:
    with trio.fail_after(60):
        return await trio.to_thread.run_sync(partial(function, *args, **kwargs))


# C-core client, our server


@pytest.mark.parametrize("kind", KINDS)
async def test_core_client_makes_every_kind_of_call(kind, tmp_path):
    def calls(stub: CoreStub) -> None:
        with stub:
            assert stub.Unary(BytesValue(value=b"hi"), timeout=20).value == b"hi"
            assert [m.value for m in stub.Count(Int64Value(value=1000), timeout=20)] == list(range(1000))
            assert stub.Sum(iter([Int64Value(value=n) for n in range(100)]), timeout=20).value == 4950
            assert stub.Sum(iter([]), timeout=20).value == 0
            chat = stub.Chat(iter([BytesValue(value=bytes([n])) for n in range(50)]), timeout=20)
            assert [m.value for m in chat] == [bytes([n]) for n in range(50)]
            assert stub.Unary(BytesValue(value=BLOB), timeout=20).value == BLOB
            reply, call = stub.Metadata.with_call(StringValue(value="x-key"), metadata=[("x-key", "v")], timeout=20)
            assert reply.value == "v"
            assert dict(call.initial_metadata())["x-initial"] == "first"
            assert dict(call.trailing_metadata())["x-trailing-bin"] == b"\x00\xff"

    async with ours(kind, tmp_path) as it:
        await blocking(calls, it.core())
        peer = it.echo.peers[0]
        assert (peer.uid is not None) == (kind == "unix")
        assert (peer.certificate is not None) == (kind == "mtls")


async def test_core_client_gets_errors_with_details_and_unimplemented(tmp_path):
    def calls(stub: CoreStub) -> None:
        with stub:
            with pytest.raises(grpc.RpcError) as caught:
                stub.Fail(StringValue(value="ünï "), timeout=20)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert caught.value.details() == "no such thing: ünï "
            status = rpc_status.from_call(caught.value)
            info = error_details_pb2.ErrorInfo()
            assert status.details[0].Unpack(info)
            assert info.reason == "GONE"
            for call, code in [
                (stub.Nope, grpc.StatusCode.UNIMPLEMENTED),
                (stub.Crash, grpc.StatusCode.INTERNAL),
            ]:
                with pytest.raises(grpc.RpcError) as caught:
                    call(BytesValue(), timeout=20)
                assert caught.value.code() is code
            with pytest.raises(grpc.RpcError) as caught:
                stub.Unary(BytesValue(value=bytes(5000)), timeout=20, compression=grpc.Compression.Gzip)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert stub.Unary(BytesValue(value=b"on"), timeout=20).value == b"on"

    async with ours("tcp", tmp_path) as it:
        await blocking(calls, it.core())


async def test_core_client_deadline_and_cancel_reach_our_handler(tmp_path):
    def deadline(stub: CoreStub) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Sleep(DoubleValue(value=1000), timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async with ours("tcp", tmp_path) as it:
        with it.core() as stub:
            await blocking(deadline, stub)
            await it.echo.over.wait()
            assert it.echo.ended == ["cancelled"]
            it.echo.sleeping, it.echo.over = trio.Event(), trio.Event()
            call = stub.Sleep.future(DoubleValue(value=1000))
            await it.echo.sleeping.wait()
            call.cancel()
            await it.echo.over.wait()
            assert it.echo.ended == ["cancelled", "cancelled"]


async def test_core_client_is_told_of_the_size_limit(tmp_path):
    def calls(stub: CoreStub) -> None:
        with stub:
            for call in (
                partial(stub.Unary, BytesValue(value=BLOB)),
                lambda **k: list(stub.Flood(Int64Value(value=2_000_000), **k)),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call(timeout=20)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert stub.Unary(BytesValue(value=b"on"), timeout=20).value == b"on"

    async with ours("tcp", tmp_path, max_message_bytes=1 << 20) as it:
        await blocking(calls, it.core())


async def test_keepalive_of_both_sides_keeps_a_living_core_client(tmp_path):
    options = [("grpc.keepalive_time_ms", 200), ("grpc.keepalive_timeout_ms", 5000)]

    def calls(stub: CoreStub) -> None:
        with stub:
            assert stub.Sleep(DoubleValue(value=2), timeout=30).value == 2

    async with ours("tcp", tmp_path, keepalive=Keepalive(0.2, 5)) as it:
        await blocking(calls, it.core(options))


async def test_drain_lets_a_core_clients_call_finish(tmp_path):
    async with ours("tcp", tmp_path) as it:
        with it.core() as stub:
            call = stub.Sleep.future(DoubleValue(value=1), timeout=30)
            await it.echo.sleeping.wait()
            await it.server.drain(30)
            assert (await blocking(call.result)).value == 1

            def refused() -> None:
                with pytest.raises(grpc.RpcError) as caught:
                    stub.Unary(BytesValue(), timeout=20)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

            await blocking(refused)


async def test_core_client_sees_health_and_reflection(tmp_path):
    def health(stub: CoreStub, server: Server) -> None:
        check = stub.call(
            "/grpc.health.v1.Health/Check", Cardinality.UNARY_UNARY, HealthCheckRequest, HealthCheckResponse
        )
        watch = stub.call(
            "/grpc.health.v1.Health/Watch", Cardinality.UNARY_STREAM, HealthCheckRequest, HealthCheckResponse
        )
        assert check(HealthCheckRequest(service="test.Echo"), timeout=20).status == HealthCheckResponse.SERVING
        stream = watch(HealthCheckRequest(service="test.Echo"), timeout=20)
        assert next(stream).status == HealthCheckResponse.SERVING
        trio.from_thread.run_sync(partial(server.health.set, "test.Echo", serving=False))
        assert next(stream).status == HealthCheckResponse.NOT_SERVING
        stream.cancel()

    def reflection(stub: CoreStub, package: str, pb: Any) -> None:
        path = f"/grpc.reflection.{package}.ServerReflection/ServerReflectionInfo"
        ask = stub.call(path, Cardinality.STREAM_STREAM, pb.ServerReflectionRequest, pb.ServerReflectionResponse)
        requests = [
            pb.ServerReflectionRequest(list_services=""),
            pb.ServerReflectionRequest(file_containing_symbol="ateapi.Control"),
            pb.ServerReflectionRequest(file_containing_symbol="nope.Nope"),
        ]
        services, files, missing = ask(iter(requests), timeout=20)
        names = {service.name for service in services.list_services_response.service}
        assert {"test.Echo", "grpc.health.v1.Health"} <= names
        protos = [
            descriptor_pb2.FileDescriptorProto.FromString(raw)
            for raw in files.file_descriptor_response.file_descriptor_proto
        ]
        assert protos[0].name == ateapi_pb2.DESCRIPTOR.name
        assert {dependency for proto in protos for dependency in proto.dependency} <= {proto.name for proto in protos}
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]

    async with ours("tcp", tmp_path) as it:
        with it.core() as stub:
            await blocking(health, stub, it.server)
            await blocking(reflection, stub, "v1", reflection_v1)
            await blocking(reflection, stub, "v1alpha", reflection_v1alpha)


# Our client, C-core server


@pytest.mark.parametrize("kind", KINDS)
async def test_our_client_makes_every_kind_of_call_on_a_core_server(kind, tmp_path):
    async with theirs(kind, tmp_path) as (channel, _):
        stub = EchoStub(channel)
        assert (await stub.Unary(BytesValue(value=b"hi"), timeout=20)).value == b"hi"
        assert [m.value for m in await stub.Count(Int64Value(value=1000), timeout=20)] == list(range(1000))
        assert (await stub.Sum([Int64Value(value=n) for n in range(100)], timeout=20)).value == 4950
        assert (await stub.Sum([], timeout=20)).value == 0
        async with stub.Chat.open(timeout=20) as stream:
            for n in range(50):
                await stream.send_message(BytesValue(value=bytes([n])))
                assert (await stream.recv_message()).value == bytes([n])
            await stream.end()
            assert await stream.recv_message() is None
        assert (await stub.Unary(BytesValue(value=BLOB), timeout=20)).value == BLOB
        async with stub.Metadata.open(timeout=20, metadata={"x-key": "v"}) as stream:
            await stream.send_message(StringValue(value="x-key"), end=True)
            assert (await stream.recv_message()).value == "v"
        assert stream.initial_metadata["x-initial"] == "first"
        assert stream.trailing_metadata["x-trailing-bin"] == b"\x00\xff"
        assert (stream.peer.certificate is not None) == (kind == "mtls")


async def test_our_client_gets_a_core_servers_errors(tmp_path):
    async with theirs("tcp", tmp_path, max_message_bytes=1 << 20) as (channel, _):
        stub = EchoStub(channel)
        with pytest.raises(NotFound) as caught:
            await stub.Fail(StringValue(value="ünï "), timeout=20)
        assert caught.value.message == "no such thing: ünï "
        assert [d.reason for d in caught.value.details] == ["GONE"]
        with pytest.raises(Unimplemented):
            await stub.Crash(StringValue(), timeout=20)
        with pytest.raises(ResourceExhausted):
            await stub.Flood(Int64Value(value=2_000_000), timeout=20)
        assert (await stub.Unary(BytesValue(value=b"on"), timeout=20)).value == b"on"


async def test_our_deadline_and_cancel_reach_a_core_handler(tmp_path):
    async with theirs("tcp", tmp_path) as (channel, echo):
        stub = EchoStub(channel)
        with pytest.raises(DeadlineExceeded):
            await stub.Sleep(DoubleValue(value=60), timeout=0.3)
        await blocking(wait_for, lambda: echo.events == ["cancelled"])
        echo.sleeping.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stub.Sleep, DoubleValue(value=60))
            await blocking(echo.sleeping.wait)
            nursery.cancel_scope.cancel()
        await blocking(wait_for, lambda: echo.events == ["cancelled"] * 2)
        async with stub.Flood.open() as stream:
            await stream.send_message(Int64Value(value=100_000), end=True)
            for _ in range(100):
                assert await stream.recv_message() is not None


async def test_our_keepalive_keeps_a_living_core_server(tmp_path):
    permissive = [("grpc.http2.min_ping_interval_without_data_ms", 100), ("grpc.http2.max_ping_strikes", 0)]
    async with theirs("tcp", tmp_path, permissive, keepalive=Keepalive(0.2, 5)) as (channel, _):
        assert (await EchoStub(channel).Sleep(DoubleValue(value=2), timeout=30)).value == 2


async def test_our_calls_survive_a_core_server_that_ends_connections_by_age(tmp_path):
    age = [("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 20_000)]
    async with theirs("tcp", tmp_path, age) as (channel, _):
        stub = EchoStub(channel)

        async def caller() -> None:
            for n in range(10):
                assert (await stub.Sleep(DoubleValue(value=0.05 * (n % 3)), timeout=30)) is not None

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(caller)


async def test_our_client_comes_back_to_a_restarted_core_server(tmp_path):
    path = tmp_path / "core.sock"
    async with Channel.unix(path) as channel:
        stub = EchoStub(channel)
        with pytest.raises(Unavailable, match=r"core\.sock"):
            await stub.Unary(BytesValue(), timeout=20)
        for _ in range(3):
            with core_server(f"unix:{path}", CoreEcho()):
                assert (await stub.Unary(BytesValue(value=b"x"), timeout=20)).value == b"x"


# Transports of our own


async def test_renewed_certificates_are_used_without_a_restart(tmp_path):
    old, new = Authority("old CA"), Authority("new CA")
    files = old.issue(tmp_path / "server", "server")
    old_client, new_client = old.issue(tmp_path / "old", "client"), new.issue(tmp_path / "new", "client")
    listener = await open_tcp_listener("127.0.0.1", 0, files)

    def core(tls: Files) -> bytes:
        with CoreStub(f"127.0.0.1:{listener.port}", tls) as stub:
            return stub.Unary(BytesValue(value=b"x"), timeout=5).value

    async with trio.open_nursery() as nursery:
        await nursery.start(Server([Echo()]).serve, [listener])
        async with Channel.tcp("127.0.0.1", listener.port, old_client) as early:
            await EchoStub(early).Unary(BytesValue())
            async with Channel.tcp("127.0.0.1", listener.port, new_client) as channel:
                with pytest.raises(Unavailable, match=f"127.0.0.1:{listener.port}.*certificate verify failed"):
                    await EchoStub(channel).Unary(BytesValue())
                new.issue(tmp_path / "server", "server")
                await EchoStub(channel).Unary(BytesValue())
            assert await blocking(core, new_client) == b"x"
            await EchoStub(early).Unary(BytesValue())  # what was connected stays
            async with Channel.tcp("127.0.0.1", listener.port, old_client) as channel:
                with pytest.raises(Unavailable):
                    await EchoStub(channel).Unary(BytesValue())
        nursery.cancel_scope.cancel()


async def test_a_client_without_a_good_certificate_is_refused_and_blocks_nobody(tmp_path):
    stranger = Authority("other CA").issue(tmp_path / "stranger", "client")
    async with ours("mtls", tmp_path) as it:
        stranger.ca = it.tls.ca
        (stranger.where / "ca.pem").write_bytes(it.tls.ca)  # trusts the server, is not trusted by it
        async with await trio.open_tcp_stream("127.0.0.1", it.port):  # a handshake that never comes
            async with Channel.tcp("127.0.0.1", it.port, stranger) as channel:
                with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                    await EchoStub(channel).Unary(BytesValue(), timeout=20)
            async with it.channel() as channel:
                await EchoStub(channel).Unary(BytesValue(), timeout=20)
        assert it.echo.calls == 1


@pytest.mark.parametrize("kind", ["mtls", "unix"])
async def test_verify_peer_sees_who_answers_before_a_byte_of_a_request(kind, tmp_path):
    seen = []

    def verify(peer):
        seen.append(peer)
        raise PermissionDenied("not the one")

    async with ours(kind, tmp_path) as it:
        async with it.channel(verify_peer=verify) as channel:
            with pytest.raises(PermissionDenied, match="not the one"):
                await EchoStub(channel).Unary(BytesValue(), timeout=20)
        assert it.echo.calls == 0
        assert (seen[0].certificate is not None) == (kind == "mtls")
        assert (seen[0].uid is not None) == (kind == "unix")


async def test_a_unix_socket_is_private_taken_once_and_taken_over_when_stale(tmp_path):
    path = tmp_path / "s.sock"
    first = await open_unix_listener(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FailedPrecondition, match="already listens"):
        await open_unix_listener(path)
    await first._listener.aclose()  # as a killed process leaves it: the file stays
    second = await open_unix_listener(path, mode=0o666)
    assert path.stat().st_mode & 0o777 == 0o666
    await first.aclose()
    assert path.exists()  # the file is not the first one's any more
    await second.aclose()
    assert not path.exists()
    path.write_text("data")
    with pytest.raises(FailedPrecondition, match="no socket"):
        await open_unix_listener(path)
    assert path.read_text() == "data"
