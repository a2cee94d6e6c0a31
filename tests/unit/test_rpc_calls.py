"""Promises of a call: every way it can end reaches the other side, as the same error, in trio's time."""

import math

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, StringValue
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from ate.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from ate.rpc import Channel, Server
from tests.rpc_echo import Echo, EchoStub, memory_channel


async def test_every_kind_of_call_answers():
    async with memory_channel(Server([Echo()])) as channel:
        stub = EchoStub(channel)
        assert (await stub.Unary(BytesValue(value=b"hi"))).value == b"hi"
        assert (await stub.Unary(BytesValue())).value == b""
        assert [m.value for m in await stub.Count(Int64Value(value=4))] == [0, 1, 2, 3]
        assert (await stub.Count(Int64Value(value=0))) == []
        assert (await stub.Sum([Int64Value(value=n) for n in (1, 2, 3)])).value == 6
        assert (await stub.Sum([])).value == 0
        async with stub.Chat.open() as stream:
            for n in range(3):
                await stream.send_message(BytesValue(value=bytes([n])))
                assert (await stream.recv_message()).value == bytes([n])
            await stream.end()
            assert await stream.recv_message() is None


async def test_metadata_goes_both_ways():
    async with memory_channel(Server([Echo()])) as channel:
        async with EchoStub(channel).Metadata.open(metadata={"x-key": "value", "x-raw-bin": b"\x01"}) as stream:
            await stream.send_message(StringValue(value="x-key"), end=True)
            assert (await stream.recv_message()).value == "value"
        assert stream.initial_metadata["x-initial"] == "first"
        assert stream.trailing_metadata["x-trailing-bin"] == b"\x00\xff"


async def test_an_error_of_a_handler_is_the_same_error_at_the_client():
    async with memory_channel(Server([Echo()])) as channel:
        with pytest.raises(NotFound) as caught:
            await EchoStub(channel).Fail(StringValue(value="ünï ☃\n%"))
        assert caught.value.message == "no such thing: ünï ☃\n%"
        assert [d.reason for d in caught.value.details] == ["GONE"]


async def test_a_bug_in_a_handler_is_internal_and_the_connection_goes_on():
    async with memory_channel(Server([Echo()])) as channel:
        stub = EchoStub(channel)
        with pytest.raises(Internal, match="ValueError: a bug"):
            await stub.Crash(StringValue())
        assert (await stub.Unary(BytesValue(value=b"on"))).value == b"on"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ExceptionGroup("g", [AlreadyExists("one")]), AlreadyExists),
        (ExceptionGroup("g", [ExceptionGroup("h", [AlreadyExists("one")])]), AlreadyExists),
        (ExceptionGroup("g", [AlreadyExists("one"), KeyError("two")]), Internal),
        (GRPCError(Status.PERMISSION_DENIED, "no"), PermissionDenied),
    ],
)
async def test_groups_and_grpclib_errors_keep_their_status(raised, expected):
    async def reject(call, proceed):
        raise raised

    async with memory_channel(Server([Echo()], interceptors=[reject])) as channel:
        with pytest.raises(expected):
            await EchoStub(channel).Unary(BytesValue())


async def test_an_error_leaves_the_channel_block_as_itself():
    with pytest.raises(KeyError):
        async with Channel(trio.sleep_forever):
            raise KeyError("mine")


async def test_unknown_methods_are_unimplemented():
    async with memory_channel(Server([Echo()])) as channel:
        for path in ("/test.Echo/Nope", "/nope.Nope/Nope"):
            with pytest.raises(Unimplemented, match="Nope"):
                await UnaryUnaryMethod(channel, path, BytesValue, BytesValue)(BytesValue())


async def test_a_timeout_ends_the_call_on_both_sides(autojump_clock):
    echo = Echo()
    async with memory_channel(Server([echo])) as channel:
        with pytest.raises(DeadlineExceeded):
            await EchoStub(channel).Sleep(DoubleValue(value=100), timeout=5)
        assert trio.current_time() == pytest.approx(5, abs=0.01)
        await echo.over.wait()
        assert echo.ended == ["cancelled"]


async def test_a_timeout_covers_connecting(autojump_clock):
    async with Channel(trio.sleep_forever) as channel:
        with pytest.raises(DeadlineExceeded):
            await EchoStub(channel).Unary(BytesValue(), timeout=5)


async def test_a_deadline_of_an_outer_scope_is_sent_and_stays_the_outer_scopes(autojump_clock):
    deadlines = []

    async def note(call, proceed):
        deadlines.append(call.deadline)
        await proceed()

    async with memory_channel(Server([Echo()], interceptors=[note])) as channel:
        with trio.move_on_after(7) as scope:
            await EchoStub(channel).Sleep(DoubleValue(value=100), timeout=50)
        assert scope.cancelled_caught
        assert deadlines == [pytest.approx(7, abs=0.01)]


async def test_a_handler_without_a_client_deadline_is_bounded_by_the_server(autojump_clock):
    async with memory_channel(Server([Echo()], max_deadline=9)) as channel:
        with pytest.raises(DeadlineExceeded, match=r"/test\.Echo/Sleep"):
            await EchoStub(channel).Sleep(DoubleValue(value=math.inf))
        assert trio.current_time() == pytest.approx(9)


async def test_cancelling_a_call_cancels_its_handler(autojump_clock):
    echo = Echo()
    async with memory_channel(Server([echo])) as channel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(EchoStub(channel).Sleep, DoubleValue(value=100))
            await echo.sleeping.wait()
            nursery.cancel_scope.cancel()
        await echo.over.wait()
        assert echo.ended == ["cancelled"]
        assert (await EchoStub(channel).Unary(BytesValue(value=b"on"))).value == b"on"


async def test_leaving_a_stream_early_ends_its_handler(autojump_clock):
    echo = Echo()
    async with memory_channel(Server([echo])) as channel:
        async with EchoStub(channel).Flood.open() as stream:
            await stream.send_message(Int64Value(value=1000), end=True)
            assert await stream.recv_message() is not None
        await trio.sleep(1)
        flooded = echo.flooded
        await trio.sleep(100)
        assert echo.flooded == flooded


async def test_closing_the_channel_cancels_handlers_and_later_calls_say_so(autojump_clock):
    echo = Echo()
    server = Server([echo])
    async with trio.open_nursery() as nursery:
        async with memory_channel(server) as channel:
            with trio.move_on_after(1):
                await EchoStub(channel).Sleep(DoubleValue(value=100))
        assert echo.ended == ["cancelled"]
        with pytest.raises(FailedPrecondition, match="not open"):
            await EchoStub(channel).Unary(BytesValue())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("side", ["client sends", "server receives", "server sends", "client receives"])
async def test_a_message_over_the_limit_is_refused_on_each_side_and_the_connection_goes_on(side):
    small, large = 1000, 1 << 20
    server_limit = small if side.startswith("server") else large
    client_limit = small if side.startswith("client") else large
    async with memory_channel(
        Server([Echo()], max_message_bytes=server_limit), max_message_bytes=client_limit
    ) as channel:
        stub = EchoStub(channel)
        with pytest.raises(ResourceExhausted, match="limit of 1000"):
            if side in ("client sends", "server receives"):
                await stub.Unary(BytesValue(value=bytes(500_000)))
            else:
                await stub.Flood(Int64Value(value=500_000))
        assert (await stub.Unary(BytesValue(value=b"on"))).value == b"on"


async def test_interceptors_see_the_call_may_reject_it_and_set_trailers():
    order = []

    async def outer(call, proceed):
        order.append(("outer", call.method, call.peer.address))
        if call.metadata.get("x-deny"):
            raise PermissionDenied("denied")
        try:
            await proceed()
        finally:
            call.trailing_metadata["x-seen"] = "yes"

    async def inner(call, proceed):
        order.append(("inner",))
        await proceed()

    async with memory_channel(Server([Echo()], interceptors=[outer, inner])) as channel:
        stub = EchoStub(channel)
        async with stub.Unary.open() as stream:
            await stream.send_message(BytesValue(), end=True)
            await stream.recv_message()
        assert stream.trailing_metadata["x-seen"] == "yes"
        assert order == [("outer", "/test.Echo/Unary", "memory"), ("inner",)]
        async with stub.Fail.open() as stream:
            await stream.send_message(StringValue(), end=True)
            with pytest.raises(NotFound):
                await stream.recv_message()
        assert stream.trailing_metadata["x-seen"] == "yes"
        with pytest.raises(PermissionDenied):
            await stub.Unary(BytesValue(), metadata={"x-deny": "1"})


async def test_bad_metadata_of_a_handler_is_its_own_error():
    async def bad(call, proceed):
        await proceed()
        call.trailing_metadata["Bad Key"] = "x"

    async with memory_channel(Server([Echo()], interceptors=[bad])) as channel:
        with pytest.raises(Internal, match="Bad Key"):
            await EchoStub(channel).Unary(BytesValue())
        with pytest.raises(InvalidArgument):
            await EchoStub(channel).Unary(BytesValue(), metadata={"Bad Key": "x"})


async def test_health_is_set_a_service_and_watched():
    server = Server([Echo()])
    async with memory_channel(server) as channel:
        stub = HealthStub(channel)
        request = HealthCheckRequest(service="test.Echo")
        assert (await stub.Check(request)).status == HealthCheckResponse.SERVING
        with pytest.raises(NotFound):
            await stub.Check(HealthCheckRequest(service="nope"))
        async with stub.Watch.open() as stream:
            await stream.send_message(request, end=True)
            assert (await stream.recv_message()).status == HealthCheckResponse.SERVING
            server.health.set("test.Echo", serving=False)
            assert (await stream.recv_message()).status == HealthCheckResponse.NOT_SERVING
        assert (await stub.Check(HealthCheckRequest())).status == HealthCheckResponse.SERVING


async def test_a_peer_that_is_refused_gets_no_byte_of_a_request():
    echo = Echo()

    def refuse(peer):
        raise PermissionDenied(f"{peer.address} is not who we want")

    async with memory_channel(Server([echo]), verify_peer=refuse) as channel:
        for _ in range(2):
            with pytest.raises(PermissionDenied, match="memory is not"):
                await EchoStub(channel).Unary(BytesValue())
    assert echo.calls == 0


async def test_a_failed_connect_is_unavailable_and_the_next_call_tries_again():
    attempts = 0

    async def connect():
        nonlocal attempts
        attempts += 1
        raise OSError("no route")

    async with Channel(connect) as channel:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"memory.*no route"):
                await EchoStub(channel).Unary(BytesValue())
    assert attempts == 2
