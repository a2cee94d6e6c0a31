"""Promises of a connection: flow control both ways, keepalive, drain, replay, and calm under a broken peer."""

from contextlib import asynccontextmanager

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from hyperframe.frame import Frame, GoAwayFrame, PingFrame
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from ate.errors import DeadlineExceeded, Unavailable
from ate.rpc import Channel, Keepalive, Peer, Server, Tuning
from tests.rpc_echo import Echo, EchoStub, memory_channel

SMALL = Tuning(stream_window=4096, connection_window=65535, write_buffer=8192)


@pytest.mark.parametrize("server_tuning", [SMALL, Tuning()], ids=["small", "default"])
@pytest.mark.parametrize("client_tuning", [SMALL, Tuning()], ids=["small", "default"])
async def test_six_megabytes_pass_windows_of_any_size_both_ways(server_tuning, client_tuning):
    blob = bytes(range(256)) * 24_000
    async with memory_channel(Server([Echo()], tuning=server_tuning), tuning=client_tuning) as channel:
        assert (await EchoStub(channel).Unary(BytesValue(value=blob))).value == blob


async def test_many_large_calls_share_one_connection_without_stalling():
    blob = bytes(300_000)
    async with memory_channel(Server([Echo()], tuning=SMALL), tuning=SMALL) as channel:
        stub = EchoStub(channel)

        async def one():
            for _ in range(3):
                assert len((await stub.Unary(BytesValue(value=blob))).value) == len(blob)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)


async def test_a_slow_reader_holds_the_server_back_and_stops_no_other_call(autojump_clock):
    echo = Echo()
    async with memory_channel(Server([echo])) as channel:
        stub = EchoStub(channel)
        async with stub.Flood.open() as stream:
            await stream.send_message(Int64Value(value=10_000), end=True)
            assert await stream.recv_message() is not None
            await trio.sleep(60)
            held = echo.flooded
            assert held * 10_000 < 1_500_000  # a stream's window and the write buffers
            blob = bytes(6_000_000)
            assert (await stub.Unary(BytesValue(value=blob))).value == blob
            assert echo.flooded == held
            for _ in range(200):
                assert await stream.recv_message() is not None
            await trio.sleep(1)
            assert echo.flooded > held


async def test_giving_up_on_a_message_half_way_loses_nothing(autojump_clock):
    async with memory_channel(Server([Echo()])) as channel:
        async with EchoStub(channel).Chat.open() as stream:
            await stream.send_message(BytesValue(value=b"one"))
            assert (await stream.recv_message()).value == b"one"
            with trio.move_on_after(3):
                await stream.recv_message()
            await stream.send_message(BytesValue(value=b"two"), end=True)
            assert (await stream.recv_message()).value == b"two"


async def test_cancelling_a_blocked_send_spares_the_connection(autojump_clock):
    async def deaf(call, proceed):
        await trio.sleep_forever()

    async with memory_channel(Server([Echo()], interceptors=[deaf]), tuning=SMALL) as channel:
        stub = EchoStub(channel)
        for _ in range(3):
            with pytest.raises(DeadlineExceeded):
                await stub.Unary(BytesValue(value=bytes(2_000_000)), timeout=2)
        connections = set(channel._peers)
        assert len(connections) == 1
        assert next(iter(connections)).lost is None


async def test_calls_beyond_the_servers_stream_limit_wait_their_turn(autojump_clock):
    echo = Echo()
    async with memory_channel(Server([echo], tuning=Tuning(max_streams=2))) as channel:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(EchoStub(channel).Sleep, DoubleValue(value=10))
        assert echo.ended == ["slept"] * 6
        assert trio.current_time() == pytest.approx(30, abs=0.1)


async def test_drain_lets_a_call_finish_and_refuses_new_ones(autojump_clock):
    echo = Echo()
    server = Server([echo])
    async with memory_channel(server) as channel:
        stub = EchoStub(channel)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stub.Sleep, DoubleValue(value=5))
            await echo.sleeping.wait()
            async with HealthStub(channel).Watch.open() as watch:
                await watch.send_message(HealthCheckRequest(), end=True)
                assert (await watch.recv_message()).status == HealthCheckResponse.SERVING
                nursery.start_soon(server.drain, 60)
                assert (await watch.recv_message()).status == HealthCheckResponse.NOT_SERVING
                with pytest.raises(Unavailable):
                    await watch.recv_message()
            with pytest.raises(Unavailable):
                await stub.Unary(BytesValue())
        assert echo.ended == ["slept"]
        assert echo.calls == 0
        assert trio.current_time() < 10


async def test_drain_ends_what_outlasts_its_grace_as_unavailable(autojump_clock):
    echo = Echo()
    server = Server([echo])
    async with memory_channel(server) as channel:

        async def call():
            with pytest.raises(Unavailable, match="shutting down"):
                await EchoStub(channel).Sleep(DoubleValue(value=1000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await echo.sleeping.wait()
            await server.drain(3)
        assert echo.ended == ["cancelled"]
        assert trio.current_time() < 10


async def test_drain_does_not_wait_for_idle_connections(autojump_clock):
    server = Server([Echo()])
    async with memory_channel(server) as channel:
        await EchoStub(channel).Unary(BytesValue())
        await server.drain(1000)
        assert trio.current_time() < 10


async def test_a_connection_lost_between_calls_is_made_anew_and_one_lost_in_a_call_is_unavailable(autojump_clock):
    echo = Echo()
    server = Server([echo])
    ends = []
    async with trio.open_nursery() as nursery:

        async def connect():
            ours, theirs = memory_stream_pair()
            ends.append(theirs)
            nursery.start_soon(server.serve_stream, theirs, Peer("memory"))
            return ours

        async with Channel(connect) as channel:
            stub = EchoStub(channel)
            await stub.Unary(BytesValue())
            await trio.aclose_forcefully(ends[-1])
            await trio.sleep(0.1)
            await stub.Unary(BytesValue())
            assert len(ends) == 2

            async def cut():
                await echo.sleeping.wait()
                await trio.aclose_forcefully(ends[-1])

            nursery.start_soon(cut)
            with pytest.raises(Unavailable, match="may have taken effect"):
                await stub.Sleep(DoubleValue(value=1000))
            await echo.over.wait()
            assert echo.ended == ["cancelled"]
            await stub.Unary(BytesValue())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("silent_side", ["server", "client"])
async def test_a_silent_peer_is_found_by_keepalive(silent_side, autojump_clock):
    """The peer's bytes stop in a pipe that stays open, as when a machine loses power."""
    echo = Echo()
    keepalive = Keepalive(interval=20, timeout=5)
    server = Server([echo], keepalive=keepalive if silent_side == "client" else None)
    async with trio.open_nursery() as nursery:
        cut = trio.Event()

        async def pump(source, sink):
            while True:
                data = await source.receive_some(65536)
                if not cut.is_set():
                    await sink.send_all(data)

        async def connect():
            ours, near = memory_stream_pair()
            far, theirs = memory_stream_pair()
            nursery.start_soon(pump, near, far)
            nursery.start_soon(pump, far, near)
            nursery.start_soon(server.serve_stream, theirs, Peer("memory"))
            return ours

        async with Channel(connect, keepalive=keepalive if silent_side == "server" else None) as channel:

            async def call():
                with pytest.raises(Unavailable, match="keepalive"):
                    await EchoStub(channel).Sleep(DoubleValue(value=100_000))
                nursery.cancel_scope.cancel()

            nursery.start_soon(call)
            await echo.sleeping.wait()
            cut.set()
            if silent_side == "client":
                await echo.over.wait()
                assert echo.ended == ["cancelled"]
                assert trio.current_time() < 60
                nursery.cancel_scope.cancel()
            await trio.sleep_forever()
    assert trio.current_time() < 60


async def test_a_living_peer_survives_keepalive(autojump_clock):
    quick = Keepalive(interval=1, timeout=1)
    async with memory_channel(Server([Echo()], keepalive=quick), keepalive=quick) as channel:
        await EchoStub(channel).Sleep(DoubleValue(value=1000))


@asynccontextmanager
async def scripted_server(script):
    """A channel whose connections are each served by `script(h2, number of connection, event)`, in raw HTTP/2."""
    async with trio.open_nursery() as nursery:
        count = 0

        async def serve(stream, number):
            h2 = H2Connection(H2Configuration(client_side=False))
            h2.initiate_connection()
            await stream.send_all(h2.data_to_send())
            while data := await stream.receive_some(65536):
                for event in h2.receive_data(bytes(data)):
                    script(h2, number, event)
                if out := h2.data_to_send():
                    await stream.send_all(out)

        async def connect():
            nonlocal count
            count += 1
            ours, theirs = memory_stream_pair()
            nursery.start_soon(serve, theirs, count)
            return ours

        async with Channel(connect) as channel:
            yield channel
        nursery.cancel_scope.cancel()


def _reply(h2, stream_id):
    h2.send_headers(stream_id, [(":status", "200"), ("content-type", "application/grpc")])
    h2.send_data(stream_id, b"\0\0\0\0\0")
    h2.send_headers(stream_id, [("grpc-status", "0")], end_stream=True)


@pytest.mark.parametrize("how", ["refused", "goaway"])
async def test_a_call_that_never_reached_the_server_is_replayed_once(how):
    asked = []

    def script(h2, number, event):
        if isinstance(event, events.StreamEnded):
            asked.append(number)
            if number > 1:
                _reply(h2, event.stream_id)
            elif how == "refused":
                h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            else:
                h2.close_connection(last_stream_id=0)

    async with scripted_server(script) as channel:
        assert await EchoStub(channel).Unary(BytesValue(value=b"x")) == BytesValue()
    assert asked == [1, 2]


async def test_a_call_refused_twice_is_unavailable():
    def script(h2, number, event):
        if isinstance(event, events.StreamEnded):
            h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)

    async with scripted_server(script) as channel:
        with pytest.raises(Unavailable):
            await EchoStub(channel).Unary(BytesValue(value=b"x"))


async def test_goaway_lets_accepted_calls_finish():
    def script(h2, number, event):
        if isinstance(event, events.StreamEnded):
            before = h2.data_to_send()
            _reply(h2, event.stream_id)
            reply = h2.data_to_send()
            h2.close_connection(last_stream_id=event.stream_id)
            h2._data_to_send += before + h2.data_to_send() + reply  # GOAWAY ahead of the reply

    async with scripted_server(script) as channel:
        for _ in range(3):
            assert await EchoStub(channel).Unary(BytesValue(value=b"x")) == BytesValue()


async def test_a_server_that_is_no_grpc_is_told_apart():
    def script(h2, number, event):
        if isinstance(event, events.RequestReceived):
            h2.send_headers(event.stream_id, [(":status", "503"), ("content-type", "text/html")], end_stream=True)

    async with scripted_server(script) as channel:
        with pytest.raises(Unavailable, match="HTTP status 503"):
            await EchoStub(channel).Unary(BytesValue())


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99]
)
async def test_a_client_that_speaks_no_http2_is_dropped(garbage):
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Server([Echo()]).serve_stream, theirs, Peer("memory"))
        await ours.send_all(garbage)
        with trio.fail_after(30):
            while await ours.receive_some(65536):
                pass


def _raw_requests(h2, count, body=bytes(541)):
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Unary"), (":authority", "x")]
    payload = BytesValue(value=body).SerializeToString()
    for n in range(count):
        h2.send_headers(2 * n + 1, [*headers, ("te", "trailers"), ("content-type", "application/grpc")])
        h2.send_data(2 * n + 1, b"\0" + len(payload).to_bytes(4, "big") + payload, end_stream=True)


async def test_calls_that_arrive_together_are_not_answered_all_at_the_end():
    order = []

    async def note(call, proceed):
        order.append("call")
        await proceed()

    ours, theirs = memory_stream_pair()
    write = theirs.send_all

    async def send_all(data):
        order.append("write")
        await write(data)

    theirs.send_all = send_all
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Server([Echo()], interceptors=[note]).serve_stream, theirs, Peer("memory"))
        h2 = H2Connection(H2Configuration(client_side=True))
        h2.initiate_connection()
        await ours.send_all(h2.data_to_send())
        await wait_all_tasks_blocked()
        order.clear()
        _raw_requests(h2, 60)
        await ours.send_all(h2.data_to_send())
        await wait_all_tasks_blocked()
        assert order.count("call") == 60
        first_write = order.index("write")
        assert order[:first_write].count("call") < 30
        nursery.cancel_scope.cancel()


def _frames(data):
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return found


async def test_frames_that_cross_our_goaway_do_not_cut_the_last_replies_short(autojump_clock):
    server = Server([Echo()])
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs, Peer("memory"))
        h2 = H2Connection(H2Configuration(client_side=True))
        h2.initiate_connection()
        await ours.send_all(h2.data_to_send())
        await wait_all_tasks_blocked()
        nursery.start_soon(server.drain, 60)
        await wait_all_tasks_blocked()
        h2.ping(b"crossing")
        await ours.send_all(h2.data_to_send())
        await wait_all_tasks_blocked()
        got = _frames(bytes(await ours.receive_some(65536)))
        assert [f.error_code for f in got if isinstance(f, GoAwayFrame)] == [0]
        assert any(isinstance(f, PingFrame) and "ACK" in f.flags for f in got)
        assert trio.current_time() == 0  # still lingering, not cut off


async def test_a_client_that_opens_and_resets_without_end_is_refused_not_served():
    running = 0
    release = trio.Event()

    async def stubborn(call, proceed):
        nonlocal running
        running += 1
        with trio.CancelScope(shield=True):
            await release.wait()

    server = Server([Echo()], interceptors=[stubborn], tuning=Tuning(max_streams=5))
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs, Peer("memory"))
        h2 = H2Connection(H2Configuration(client_side=True))
        h2.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":path", "/test.Echo/Unary"), (":authority", "x")]
        for n in range(200):
            h2.send_headers(2 * n + 1, [*headers, ("te", "trailers"), ("content-type", "application/grpc")])
            await ours.send_all(h2.data_to_send())
            await wait_all_tasks_blocked()
            h2.reset_stream(2 * n + 1, ErrorCodes.CANCEL)
        assert running == 10
        release.set()
        nursery.cancel_scope.cancel()
