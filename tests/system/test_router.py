"""Promises of the router's data plane, before a real tunnel: what passes is unchanged, what is not plain is refused."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from ate.errors import NotFound
from tests.system.routing import Bench, Line, Worker, decoded, fields_of, open_bench, request

BIG = 50 << 20


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as opened:
        yield opened


def answering(bench: Bench, answer: bytes, *, close: bool = False) -> None:
    """The actor answers every request with these bytes."""

    async def script(line: Line) -> None:
        while True:
            await bench.origin.request(line)
            await line.send(answer)
            if close:
                return

    bench.origin.script = script


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_bytes_pass_both_ways_before_either_body_ends(bench: Bench) -> None:
    async def echo(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for piece in line.chunks():
            await line.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await line.send(b"0\r\n\r\n")

    bench.origin.script = echo
    client = await bench.connect()
    await client.send(request("POST /\r\nTransfer-Encoding: chunked"))
    await client.until(b"\r\n\r\n")
    for piece in (b"first", b"second"):
        await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert await client.until(b"\r\n" + piece + b"\r\n")
    await client.send(b"0\r\n\r\n")
    assert await client.until(b"0\r\n\r\n") == b"0\r\n\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_fifty_megabytes_go_up_and_down_whole_in_bounded_memory(bench: Bench, framing: str) -> None:
    block = os.urandom(1 << 20)
    received = hashlib.sha256()

    async def script(line: Line) -> None:
        head = await line.until(b"\r\n\r\n")
        if b"chunked" in head:
            async for piece in line.chunks():
                received.update(piece)
        else:
            for _ in range(BIG >> 20):
                received.update(await line.exactly(1 << 20))
        kind = b"Transfer-Encoding: chunked" if framing == "chunked" else b"Content-Length: %d" % BIG
        await line.send(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
        for _ in range(BIG >> 20):
            await line.send(b"100000\r\n" + block + b"\r\n" if framing == "chunked" else block)
        if framing == "chunked":
            await line.send(b"0\r\n\r\n")

    bench.origin.script = script
    client = await bench.connect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kind = "Transfer-Encoding: chunked" if framing == "chunked" else f"Content-Length: {BIG}"
    await client.send(request(f"PUT /big\r\n{kind}"))
    for _ in range(BIG >> 20):
        await client.send(b"100000\r\n" + block + b"\r\n" if framing == "chunked" else block)
    if framing == "chunked":
        await client.send(b"0\r\n\r\n")
    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    sent, got = hashlib.sha256(), hashlib.sha256()
    for _ in range(BIG >> 20):
        sent.update(block)
    if framing == "chunked":
        async for piece in client.chunks():
            got.update(piece)
    else:
        for _ in range(BIG >> 20):
            got.update(await client.exactly(1 << 20))
    assert received.digest() == sent.digest() == got.digest()
    # All parties live in this process; none may hold a whole body.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10


async def test_a_slow_reader_makes_the_actor_wait_instead_of_filling_memory(bench: Bench) -> None:
    sent = 0

    async def script(line: Line) -> None:
        nonlocal sent
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 30))
        while True:
            await line.send(bytes(1 << 20))
            sent += 1

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request("GET /"))
    await client.until(b"\r\n\r\n")
    before = -1
    while sent != before:
        before = sent
        await trio.sleep(0.3)
    assert sent < 40


@pytest.mark.parametrize("status", [200, 204, 304])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_answers_without_a_body_end_where_they_should(bench: Bench, method: str, status: int) -> None:
    length = b"Content-Length: 5\r\n" if method == "HEAD" or status == 304 else b""
    kept = length or (b"Content-Length: 0\r\n" if status == 200 else b"")
    answering(bench, b"HTTP/1.1 %d Fine\r\n%b\r\n" % (status, kept))
    client = await bench.connect()
    for _ in range(2):
        await client.send(request(f"{method} /"))
        got = await client.answer(head_only=True)
        assert got.head == b"HTTP/1.1 %d Fine\r\n%b\r\n" % (status, kept)
    assert not client.buffer


async def test_expect_100_continue_waits_for_the_actor(bench: Bench) -> None:
    async def script(line: Line) -> None:
        head = await line.until(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head and not line.buffer
        await line.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        body = await line.exactly(4)
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request("POST /\r\nExpect: 100-continue\r\nContent-Length: 4"))
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 103")
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    await client.send(b"body")
    assert (await client.answer()).body == b"body"


async def test_an_actor_that_refuses_an_upload_early_is_heard(bench: Bench) -> None:
    async def script(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    bench.origin.script = script
    for _ in range(5):
        client = await bench.connect()
        await client.send(request("POST /\r\nContent-Length: 99999999") + bytes(1 << 20))
        got = await client.answer()
        assert (got.status, got.body) == (413, b"big")
        await client.close()


# -- connections ------------------------------------------------------------------------------------------------------


async def test_requests_follow_each_other_on_one_connection_and_pipelined_ones_are_answered_in_order(
    bench: Bench,
) -> None:
    client = await bench.connect()
    for number in range(3):
        await client.send(request("POST /", b"%d" % number))
        assert (await client.answer()).body == b"%d" % number
    await client.send(b"".join(request(f"POST /{n}", b"p%d" % n) for n in range(20)))
    assert [(await client.answer()).body for _ in range(20)] == [b"p%d" % n for n in range(20)]


async def test_connections_to_workers_are_used_again(bench: Bench) -> None:
    taken = []
    original = bench.origin.script

    async def script(line: Line) -> None:
        taken.append(1)
        await original(line)

    bench.origin.script = script
    for _ in range(5):
        assert (await bench.ask("GET /")).status == 200
    assert len(bench.origin.heads) == 5 and bench.control.calls["a"] == 1


async def test_an_http_1_0_client_gets_a_plain_body_and_a_closed_connection(bench: Bench) -> None:
    answering(
        bench,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: 1\r\n\r\n",
    )
    client = await bench.connect()
    await client.send(b"GET / HTTP/1.0\r\nate-target-actor: demo/a\r\n\r\n")
    got = await client.rest()
    head, _, body = got.partition(b"\r\n\r\n")
    assert body == b"hello world" and b"chunked" not in head and b"Connection: close" in head


async def test_an_http_1_0_client_may_keep_its_connection(bench: Bench) -> None:
    client = await bench.connect()
    for number in range(2):
        await client.send(request("POST / HTTP/1.0\r\nConnection: keep-alive", b"%d" % number))
        got = await client.answer()
        assert got.body == b"%d" % number and got.headers["connection"] == "keep-alive"


async def test_an_answer_that_ends_with_its_connection_arrives_whole(bench: Bench) -> None:
    async def script(line: Line) -> None:
        await bench.origin.request(line)
        await line.send(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\n")
        for _ in range(20):
            await line.send(b"x" * 10_000)

    bench.origin.script = script
    client = await bench.connect()
    for _ in range(2):
        await client.send(request("GET /"))
        assert (await client.answer()).body == b"x" * 200_000
    await client.send(request("GET / HTTP/1.0"))
    assert (await client.answer()).body == b"x" * 200_000


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhalf",
    ],
    ids=["length", "chunked", "until closed"],
)
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_an_answer_that_breaks_off_never_looks_complete(bench: Bench, head: bytes, version: str) -> None:
    async def script(line: Line) -> None:
        await bench.origin.request(line)
        await line.send(head)
        line.stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0: a reset, as of a process that is killed
        await trio.sleep(0.2)
        await line.close()

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request(f"GET / {version}"))
    await client.until(b"half")
    with pytest.raises((trio.BrokenResourceError, EOFError)):
        await client.rest()
        raise AssertionError("ended cleanly")


async def test_a_client_that_leaves_ends_its_request_at_the_actor(bench: Bench) -> None:
    started, left = trio.Event(), trio.Event()

    async def script(line: Line) -> None:
        await bench.origin.request(line)
        started.set()
        assert not await line.stream.receive_some()
        left.set()

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request("GET /"))
    await started.wait()
    await client.close()
    await left.wait()


# -- what arrives -----------------------------------------------------------------------------------------------------


async def test_names_values_order_and_repetition_of_headers_arrive_untouched(bench: Bench) -> None:
    fields = [
        "HOST-like: x",
        "x-lower: 1",
        "X-UPPER: 2",
        "Cookie: a=b",
        "cookie: c=d",
        "X-Latin: caf\xe9 \xff",
        "X-Empty: ",
        "Accept-Encoding: br",
        "Content-Type: ",
        "TE-like: x",
    ]
    answering(
        bench,
        b"HTTP/1.1 299 Odd Words\r\nset-COOKIE: a=1\r\nSet-Cookie: b=2\r\nX-Raw: \xe9\xff\r\nContent-Length: 0\r\n\r\n",
    )
    got = await bench.ask("GET /\r\n" + "\r\n".join(fields))
    assert fields_of(bench.origin.heads[0]) == [b"Host: h", *(f.encode("latin-1") for f in fields)]
    assert got.head == (
        b"HTTP/1.1 299 Odd Words\r\nset-COOKIE: a=1\r\nSet-Cookie: b=2\r\nX-Raw: \xe9\xff\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize(
    "target",
    ["/", "//a", "/a%2Fb", "/?x=%00", "/?", "/a?b?c&d=e#f", "/./../x", "/a;b=c", "/caf%C3%A9", "/[x]|^", "*",
     "http://elsewhere/a?b", "/%zz", "/+%20"],
)  # fmt: skip
async def test_the_request_target_arrives_untouched(bench: Bench, target: str) -> None:
    assert (await bench.ask(f"OPTIONS {target}")).status == 200
    assert bench.origin.heads[0].split(b"\r\n")[0] == f"OPTIONS {target} HTTP/1.1".encode()


async def test_what_only_the_router_may_set_neither_arrives_nor_fools_the_tunnel(bench: Bench) -> None:
    bench.workers[0].hold("a")
    fields = [
        "X-Ate-Actor-Uid: uid-b",
        "x-ate-actor-uid: uid-c",
        "X-ATE-TARGET-PORT: 22",
        "X-Ate-Target-Port: 23",
        "x-AtE-Anything: 1",
        "Connection: keep-alive, X-Hop, host, content-length, ate-target-actor, x-ate-actor-uid",
        "X-Hop: 1",
        "Keep-Alive: 5",
        "Proxy-Connection: keep-alive",
        "Proxy-Authorization: secret",
        "TE: trailers",
        "Upgrade: h2c",
        "Kept: 1",
    ]
    got = await bench.ask("POST /\r\n" + "\r\n".join(fields), b"body")
    assert got.body == b"body"
    assert fields_of(bench.origin.heads[0]) == [b"Host: h", b"Content-Length: 4", b"Kept: 1"]


async def test_what_an_actor_may_not_say_does_not_reach_router_or_client(bench: Bench) -> None:
    answering(
        bench, b"HTTP/1.1 421 Misdirected\r\nX-Ate-Assignment-Stale: true\r\nx-ate-a: b\r\nContent-Length: 0\r\n\r\n"
    )
    got = await bench.ask("GET /")
    assert got.head == b"HTTP/1.1 421 Misdirected\r\nContent-Length: 0\r\n\r\n"
    assert len(bench.origin.heads) == 1 and bench.control.calls["a"] == 1


@pytest.mark.parametrize(
    "fields",
    ["", "ate-target-actor: ", "ate-target-actor: a", "ate-target-actor: demo/a/b", "ate-target-actor: Demo/a",
     "ate-target-actor: demo/a\r\nAte-Target-Actor: demo/a", "ATE-TARGET-ACTOR: demo/b\r\nate-target-actor: demo/a"],
)  # fmt: skip
async def test_a_missing_invalid_or_repeated_target_is_404(bench: Bench, fields: str) -> None:
    client = await bench.connect()
    await client.send(f"GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n{'' if not fields else chr(13) + chr(10)}".encode())
    got = await client.answer()
    assert (got.status, got.text) == (404, "invalid actor reference")
    assert got.headers["content-type"].startswith("text/plain") and not bench.control.order


async def test_connect_is_not_allowed(bench: Bench) -> None:
    assert (await bench.ask("CONNECT h:443")).status == 405


# -- shapes that smuggle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbodyx",
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: 4, 4\r\n\r\nbody",
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: +4\r\n\r\nbody",
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: 0x4\r\n\r\nbody",
        b"POST / HTTP/1.1\r\nA\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nA\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nA\r\nX: 1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\nA\n\n",
        b"GET / HTTP/1.1\r\nA\nX: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\r\nX: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET  / HTTP/1.1\r\nA\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nA\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\r\n" + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\n",
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(bench: Bench, raw: bytes) -> None:
    client = await bench.connect()
    await client.send(raw.replace(b"\nA", b"\nate-target-actor: demo/a", 1) + request("GET /smuggled"))
    got = await client.answer()
    assert got.status in (400, 431, 501) and got.headers["connection"] == "close"
    assert await client.rest() == b"" and not bench.origin.heads


@pytest.mark.parametrize(
    "chunk",
    [b"x\r\n", b"5\nhello\r\n", b"-1\r\n", b"5\r\nhello!\r\n", b"0x5\r\nhello\r\n", b"fffffffffffffffff\r\n",
     b"5\r\nhello\n0\r\n", b" 5\r\nhello\r\n", b"0\r\nbad trailer\r\n\r\n"],
)  # fmt: skip
async def test_a_malformed_chunk_ends_the_request_and_nothing_after_it_is_read_as_one(
    bench: Bench, chunk: bytes
) -> None:
    client = await bench.connect()
    await client.send(
        request("POST /\r\nTransfer-Encoding: chunked") + b"3\r\nabc\r\n" + chunk + request("GET /second")
    )
    got = await client.answer()
    assert got.status == 400 and await client.rest() == b""
    assert not bench.origin.bodies and not any(b"second" in head for head in bench.origin.heads)


# -- upgrades ---------------------------------------------------------------------------------------------------------

UPGRADE = "GET /ws\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo"


async def switching(line: Line) -> None:
    head = await line.until(b"\r\n\r\n")
    assert b"\r\nUpgrade: echo" in head and b"pgrade\r\n" in head
    await line.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome|")
    if line.buffer:
        await line.send(line.buffer)
    while more := await line.stream.receive_some(65536):
        await line.send(more)
    await line.send(b"|the end")


async def test_after_an_upgrade_bytes_pass_both_ways_and_each_way_ends_on_its_own(bench: Bench) -> None:
    bench.origin.script = switching
    client = await bench.connect()
    await client.send(request(UPGRADE) + b"early|")
    got = await client.answer()
    assert (got.status, got.headers["upgrade"], got.headers["connection"]) == (101, "echo", "Upgrade")
    assert await client.until(b"early|") == b"welcome|early|"
    blob = os.urandom(3 << 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, blob)
        assert await client.exactly(len(blob)) == blob
    await client.stream.send_eof()
    assert await client.rest() == b"|the end"


async def test_an_actor_may_end_its_direction_first(bench: Bench) -> None:
    got = bytearray()

    async def script(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nbye")
        await line.stream.send_eof()
        got.extend(await line.rest())

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request(UPGRADE))
    await client.answer()
    assert await client.rest() == b"bye"
    await client.send(b"still here")
    await client.stream.send_eof()
    while bench.origin.open:
        await trio.sleep(0.01)
    assert got == b"still here"


async def test_a_refused_upgrade_passes_the_actors_answer_on_and_keeps_the_connection(bench: Bench) -> None:
    big = b"y" * 300_000
    answering(
        bench,
        b"HTTP/1.1 403 No\r\nX-Why: because\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (len(big), big),
    )
    client = await bench.connect()
    await client.send(request(UPGRADE))
    got = await client.answer()
    assert (got.status, got.headers["x-why"], got.body) == (403, "because", big)
    await client.send(request("GET /"))
    assert (await client.answer()).status == 403


async def test_a_switch_that_nobody_asked_for_is_a_bad_answer(bench: Bench) -> None:
    answering(bench, b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
    assert (await bench.ask("GET /")).status == 502


async def test_an_upgraded_connection_that_breaks_is_a_break_for_the_other_side(bench: Bench) -> None:
    async def script(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhalf")
        await line.until(b"now")
        line.stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")
        await line.close()

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request(UPGRADE))
    await client.until(b"half")
    await client.send(b"now")
    with pytest.raises(trio.BrokenResourceError):
        await client.rest()


# -- leaks and secrets ------------------------------------------------------------------------------------------------


async def test_two_hundred_connections_leave_nothing_open(bench: Bench) -> None:
    async def script(line: Line) -> None:
        await (switching(line) if b"/ws" in (await _peek(line)) else bench.origin.speak(line))

    bench.origin.script = script
    await bench.ask("GET /")

    async def one(number: int) -> None:
        client = await bench.connect()
        if number % 4 == 0:
            await client.send(request(UPGRADE))
            await client.answer()
        elif number % 4 == 1:
            await client.send(request("POST /", b"whole"))
            await client.answer()
        elif number % 4 == 2:
            await client.send(request("POST /\r\nContent-Length: 100") + b"half")
        else:
            await client.send(b"GET / HT")
        await client.close()

    before = len(os.listdir("/proc/self/fd"))
    for batch in range(0, 200, 10):
        async with trio.open_nursery() as nursery:
            for number in range(batch, batch + 10):
                nursery.start_soon(one, number)
    while await _open_connections(bench):
        await trio.sleep(0.02)
    # Ten at a time leave ten idle connections at most, to the worker and to the actor, of which we hold both ends.
    while bench.origin.open > 10 or len(os.listdir("/proc/self/fd")) > before + 50:
        await trio.sleep(0.02)


async def _peek(line: Line) -> bytes:
    while b"\r\n" not in line.buffer:
        more = await line.stream.receive_some(65536)
        if not more:
            raise EOFError
        line.buffer += more
    return line.buffer


async def _open_connections(bench: Bench) -> int:
    """Established connections to the router's port that this process still holds a descriptor of."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    mark = f":{bench.port:04X}"
    return sum(1 for line in lines if line.split()[1].endswith(mark) and line.split()[3] in ("01", "08"))


async def test_nothing_secret_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "Authorization: Bearer s3cret-a\r\nCookie: session=s3cret-b\r\nX-Api-Key: s3cret-c"
    await bench.ask(f"GET /?token=s3cret-d\r\n{secret}")

    async def gone(name: str) -> Worker:
        raise NotFound("no such actor")

    bench.control.on_resume = gone
    assert (await bench.ask(f"GET /?token=s3cret-d\r\n{secret}", actor="nobody")).status == 404
    answering(bench, b"nonsense s3cret-e\r\n\r\n")
    await bench.origin_reset()
    assert (await bench.ask(f"GET /?token=s3cret-d\r\n{secret}")).status == 502
    await bench.ask(f"GET /?token=s3cret-d\r\n{secret}\r\nAuthorization : Bearer s3cret-f")
    text = decoded(caplog.records)
    assert "demo/a" in text and "s3cret" not in text
