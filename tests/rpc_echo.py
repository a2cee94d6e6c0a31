"""A small service over well-known message types that the unit and the conformance tests of ate.rpc both call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, StringValue
from google.rpc import error_details_pb2
from grpclib.client import StreamStreamMethod, StreamUnaryMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from trio.testing import memory_stream_pair

from ate.errors import NotFound
from ate.rpc import Call, Channel, Peer, Server, server_streaming, unary

METHODS: dict[str, tuple[Cardinality, Any, Any]] = {
    "Unary": (Cardinality.UNARY_UNARY, BytesValue, BytesValue),
    "Fail": (Cardinality.UNARY_UNARY, StringValue, StringValue),
    "Crash": (Cardinality.UNARY_UNARY, StringValue, StringValue),
    "Sleep": (Cardinality.UNARY_UNARY, DoubleValue, DoubleValue),
    "Metadata": (Cardinality.UNARY_UNARY, StringValue, StringValue),
    "Count": (Cardinality.UNARY_STREAM, Int64Value, Int64Value),
    "Flood": (Cardinality.UNARY_STREAM, Int64Value, BytesValue),
    "Sum": (Cardinality.STREAM_UNARY, Int64Value, Int64Value),
    "Chat": (Cardinality.STREAM_STREAM, BytesValue, BytesValue),
}
_STUBS = {
    Cardinality.UNARY_UNARY: UnaryUnaryMethod,
    Cardinality.UNARY_STREAM: UnaryStreamMethod,
    Cardinality.STREAM_UNARY: StreamUnaryMethod,
    Cardinality.STREAM_STREAM: StreamStreamMethod,
}


class Echo:
    """`started` and `ended` count Sleep handlers, `flooded` the messages that Flood has queued."""

    def __init__(self) -> None:
        self.calls = 0
        self.started = 0
        self.ended: list[str] = []
        self.flooded = 0
        self.peers: list[Peer] = []
        self.sleeping = trio.Event()
        self.over = trio.Event()

    def __mapping__(self) -> dict[str, Handler]:
        return {f"/test.Echo/{name}": Handler(getattr(self, name), *rest) for name, rest in METHODS.items()}

    @unary
    async def Unary(self, request: BytesValue, call: Call) -> BytesValue:
        self.calls += 1
        self.peers.append(call.peer)
        return request

    @unary
    async def Fail(self, request: StringValue, call: Call) -> StringValue:
        detail = error_details_pb2.ErrorInfo(reason="GONE", domain="test")
        raise NotFound(f"no such thing: {request.value}", details=[detail])

    @unary
    async def Crash(self, request: StringValue, call: Call) -> StringValue:
        raise ValueError("a bug")

    @unary
    async def Sleep(self, request: DoubleValue, call: Call) -> DoubleValue:
        self.started += 1
        self.sleeping.set()
        try:
            await trio.sleep(request.value)
        except trio.Cancelled:
            self.ended.append("cancelled")
            raise
        else:
            self.ended.append("slept")
        finally:
            self.over.set()
        return request

    @unary
    async def Metadata(self, request: StringValue, call: Call) -> StringValue:
        call.initial_metadata["x-initial"] = "first"
        call.trailing_metadata["x-trailing-bin"] = b"\x00\xff"
        return StringValue(value=str(call.metadata[request.value]))

    @server_streaming
    async def Count(self, request: Int64Value, call: Call) -> None:
        for n in range(request.value):
            await call.send(Int64Value(value=n))

    @server_streaming
    async def Flood(self, request: Int64Value, call: Call) -> None:
        while True:
            await call.send(BytesValue(value=bytes(request.value)))
            self.flooded += 1

    async def Sum(self, stream: Any) -> None:
        await stream.send_message(Int64Value(value=sum([message.value async for message in stream])))

    async def Chat(self, stream: Any) -> None:
        async for message in stream:
            await stream.send_message(message)


class EchoStub:
    """What grpclib's generator would write for the service."""

    Unary: Any
    Fail: Any
    Crash: Any
    Sleep: Any
    Metadata: Any
    Count: Any
    Flood: Any
    Sum: Any
    Chat: Any

    def __init__(self, channel: Any) -> None:
        for name, (cardinality, request, reply) in METHODS.items():
            setattr(self, name, _STUBS[cardinality](channel, f"/test.Echo/{name}", request, reply))


@asynccontextmanager
async def memory_channel(server: Server, **options: Any) -> AsyncIterator[Channel]:
    """A channel to a server over memory streams; each connection of the channel is served anew."""
    async with trio.open_nursery() as nursery:

        async def connect() -> trio.abc.Stream:
            ours, theirs = memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs, Peer("memory"))
            return ours

        async with Channel(connect, **options) as channel:
            yield channel
        nursery.cancel_scope.cancel()
