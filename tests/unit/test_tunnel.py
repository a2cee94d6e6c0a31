"""Promises of the tunnel over streams in memory: faults of an actor are told, never hidden, and never spread."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import memory_stream_pair

from ate.names import Ref
from ate.node.tunnel import Admission, Tunnel

Script = Callable[[trio.abc.Stream, int], Awaitable[None]]
GET = b"GET / HTTP/1.1\r\nHost: h\r\nX-Ate-Actor-Uid: u\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class NoTls:
    def server_context(self) -> ssl.SSLContext:
        raise AssertionError("streams in memory have no TLS")


class Bench:
    """A tunnel whose actor is a script that is run for every connection, with its number."""

    def __init__(self, nursery: trio.Nursery, script: Script) -> None:
        self.connections = 0
        self.tunnel = Tunnel(NoTls(), lambda certificate: None, Admission(), self._dial)
        self.tunnel.admission.admit(Ref("space", "counter"), "u")
        self._nursery, self._script = nursery, script

    async def _dial(self, port: int) -> trio.abc.Stream:
        self.connections += 1
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._script, theirs, self.connections)
        return ours

    def connect(self) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self.tunnel.serve_stream, theirs)
        return ours


async def ask(stream: trio.abc.Stream, data: bytes, until: bytes) -> bytes:
    await stream.send_all(data)
    got = b""
    with trio.fail_after(5):
        while until not in got:
            more = await stream.receive_some()
            if not more:
                return got + b"<end>"
            got += more
    return got


async def answering(stream: trio.abc.Stream, number: int) -> None:
    while await stream.receive_some():
        await stream.send_all(OK)


async def test_requests_follow_each_other_on_one_connection_even_when_sent_at_once() -> None:
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, answering)
        router = bench.connect()
        got = await ask(router, GET + GET, OK + OK)
        assert got == OK + OK
        nursery.cancel_scope.cancel()


async def test_a_kept_connection_that_has_ended_is_replaced_without_anyone_noticing() -> None:
    async def once(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(OK)
        await stream.receive_some()
        await stream.aclose()  # the second request meets a closing connection

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, once)
        router = bench.connect()
        assert await ask(router, GET, b"ok") == OK
        assert await ask(router, GET, b"ok") == OK
        assert bench.connections == 2
        nursery.cancel_scope.cancel()


async def test_an_idle_connection_does_not_stand_in_the_way_of_a_new_one() -> None:
    one_at_a_time = trio.Lock()

    async def serves_one(stream: trio.abc.Stream, number: int) -> None:
        async with one_at_a_time:
            await answering(stream, number)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, serves_one)
        router = bench.connect()
        assert await ask(router, GET, b"ok") == OK
        post = GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\nbody")
        assert await ask(router, post, b"ok") == OK
        nursery.cancel_scope.cancel()


async def test_a_router_that_leaves_ends_the_request_at_the_actor() -> None:
    left = trio.Event()

    async def waits(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        assert not await stream.receive_some()
        left.set()

    async with trio.open_nursery() as nursery:
        router = Bench(nursery, waits).connect()
        await router.send_all(GET)
        await trio.testing.wait_all_tasks_blocked()
        await router.aclose()
        with trio.fail_after(5):
            await left.wait()
        nursery.cancel_scope.cancel()


async def test_an_actors_answer_cannot_pose_as_the_workers() -> None:
    async def poses(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 421 M\r\nx-ATE-assignment-stale: true\r\nContent-Length: 0\r\n\r\n")

    async with trio.open_nursery() as nursery:
        got = await ask(Bench(nursery, poses).connect(), GET, b"\r\n\r\n")
        assert got == b"HTTP/1.1 421 M\r\nContent-Length: 0\r\n\r\n"
        nursery.cancel_scope.cancel()


async def test_a_request_with_a_body_is_never_sent_twice() -> None:
    received = []

    async def dies(stream: trio.abc.Stream, number: int) -> None:
        received.append(await stream.receive_some())
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, dies)
        post = GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\nbody")
        got = await ask(bench.connect(), post, b"}")
        assert got.startswith(b"HTTP/1.1 502") and len(received) == 1
        nursery.cancel_scope.cancel()


async def test_a_response_cut_short_ends_the_connection_instead_of_looking_complete() -> None:
    async def cut(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        got = await ask(Bench(nursery, cut).connect(), GET, b"never")
        assert got.endswith(b"half<end>")
        nursery.cancel_scope.cancel()


async def test_an_early_answer_reaches_the_router_though_the_upload_is_not_over() -> None:
    async def refuses(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        head = GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\nsome")
        got = await ask(Bench(nursery, refuses).connect(), head, b"<never>")
        assert got.startswith(b"HTTP/1.1 413") and got.endswith(b"<end>")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX-Ate-Actor-Uid: other\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nate-target-actor: space/other\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nate-target-actor: space/other\r\nX-Ate-Actor-Uid: u\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nX-Ate-Actor-Uid: u\r\nx-ate-actor-uid: u\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX-Ate-Actor-Uid: u\r\nX-Ate-Target-Port: 0\r\n\r\n", b"400"),
        (b"CONNECT a:1 HTTP/1.1\r\nX-Ate-Actor-Uid: u\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\nX-Ate-Actor-Uid: u\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
)
async def test_what_is_not_for_the_admitted_actor_never_reaches_it(request_: bytes, status: bytes) -> None:
    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, answering)
        got = await ask(bench.connect(), request_, b"}")
        assert got.startswith(b"HTTP/1.1 " + status) and bench.connections == 0
        assert (b"X-Ate-Assignment-Stale: true" in got) == (status == b"421")
        nursery.cancel_scope.cancel()


async def test_draining_waits_for_requests_under_way_and_then_cuts_them(autojump_clock: trio.abc.Clock) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await trio.sleep(3 if number == 1 else 1000)
        await stream.send_all(OK)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, slow)
        first, second = bench.connect(), bench.connect()
        await first.send_all(GET)
        await trio.sleep(0.1)
        await second.send_all(GET)
        await trio.sleep(0.1)
        assert bench.tunnel.admission.in_flight == 2
        assert await bench.tunnel.admission.drain(10) == 1
        assert bench.tunnel.admission.in_flight == 0
        assert await first.receive_some() == OK
        assert not await second.receive_some()
        nursery.cancel_scope.cancel()


async def test_quiet_is_counted_from_the_last_byte_and_never_while_an_answer_is_awaited(
    autojump_clock: trio.abc.Clock,
) -> None:
    async def slow(stream: trio.abc.Stream, number: int) -> None:
        await stream.receive_some()
        await trio.sleep(50)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await trio.sleep(5)
        await stream.send_all(b"2\r\nhi\r\n")
        await trio.sleep(1000)

    async with trio.open_nursery() as nursery:
        bench = Bench(nursery, slow)
        admission = bench.tunnel.admission
        assert admission.quiet_since() is not None
        began = trio.current_time()
        router = bench.connect()
        await router.send_all(GET)
        await trio.sleep(49)
        assert admission.quiet_since() is None, "the actor works on an answer"
        await trio.sleep(21)
        assert admission.quiet_since() == began + 55, "an open stream counts by its bytes"
        admission.stop()
        assert admission.quiet_since() is None, "what is not admitted is not watched"
        nursery.cancel_scope.cancel()
