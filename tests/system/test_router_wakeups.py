"""Promises of the router about finding actors: what it answers when it cannot, and that no request is done twice."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from ate.errors import (
    ACTOR_CRASHED,
    AteError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    with_reason,
)
from ate.half_close import tell_breaks
from ate.router.parking import ParkingRules
from tests.system.routing import Answer, Bench, Line, Worker, identity, open_bench, request

SHORT = ParkingRules(budget=0.6, retry_interval=0.05)
NEVER_BY_CLOCK = ParkingRules(budget=60, retry_interval=1000)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, workers=2, parking=SHORT) as opened:
        yield opened


def failing(bench: Bench, error: AteError) -> None:
    async def on_resume(name: str) -> Worker:
        raise error

    bench.control.on_resume = on_resume


def finding(bench: Bench, *workers: Worker) -> None:
    """The control plane says these one after the other, the last one for ever."""
    left = list(workers)

    async def on_resume(name: str) -> Worker:
        return left.pop(0) if len(left) > 1 else left[0]

    bench.control.on_resume = on_resume


# -- the error table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (NotFound("gone"), 404, "actor demo/x not found"),
        (PermissionDenied("internal text"), 403, "actor demo/x: permission denied"),
        (Unauthenticated("internal text"), 401, "actor demo/x: unauthenticated"),
        (DeadlineExceeded("slow"), 504, "actor demo/x request timed out"),
        (Internal("broken"), 500, "actor demo/x unavailable: broken"),
        (
            with_reason(FailedPrecondition("actor demo/x has crashed: revert or delete it"), ACTOR_CRASHED),
            503,
            "actor demo/x unavailable: actor demo/x has crashed: revert or delete it",
        ),
    ],
)
async def test_errors_are_told_at_once_as_the_reference_has_them(
    bench: Bench, error: AteError, status: int, body: str
) -> None:
    failing(bench, error)
    client = await bench.connect()
    for number in range(1, 3):  # the connection is good for another try
        await client.send(request("POST /", b"small body", actor="x"))
        got = await client.answer()
        assert (got.status, got.text) == (status, body)
        assert got.headers["content-type"] == "text/plain; charset=utf-8"
        assert bench.control.calls["x"] == number and ("retry-after" in got.headers) == (status == 503)


async def test_no_room_within_the_budget_is_503_with_a_time_to_come_back(bench: Bench) -> None:
    failing(bench, ResourceExhausted("no worker has room"))
    got = await bench.ask("GET /", actor="x")
    assert (got.status, got.text) == (503, "actor demo/x unavailable: no worker has room")
    assert int(got.headers["retry-after"]) >= 1 and bench.control.calls["x"] > 1


async def test_a_full_lot_turns_away_at_once(tmp_path: Path) -> None:
    async with open_bench(tmp_path, parking=ParkingRules(budget=60, most_requests=2, retry_interval=1000)) as bench:
        waiting = [await bench.connect() for _ in range(2)]
        for number, client in enumerate(waiting):
            await client.send(request("GET /", actor=f"w{number}"))
            while not bench.control.calls[f"w{number}"]:
                await trio.sleep(0.01)
        got = await bench.ask("GET /", actor="x")
        assert (got.status, got.text) == (503, "router at capacity")
        assert int(got.headers["retry-after"]) >= 1 and not bench.control.calls["x"]
        assert (await bench.ask("GET /", actor="a")).status == 503  # also one that runs, as nothing of it is known
        await waiting[0].close()
        while (await bench.ask("GET /", actor="a")).status != 200:
            await trio.sleep(0.01)
        await waiting[1].close()


async def test_a_resume_that_takes_too_long_is_504_and_goes_on(tmp_path: Path) -> None:
    async with open_bench(tmp_path, parking=ParkingRules(longest_wait=0.3)) as bench:
        wake, woke = trio.Event(), trio.Event()

        async def on_resume(name: str) -> Worker:
            await wake.wait()
            woke.set()
            return bench.workers[0]

        bench.control.on_resume = on_resume
        got = await bench.ask("GET /")
        assert (got.status, got.text) == (504, "actor demo/a request timed out")
        wake.set()
        await woke.wait()
        assert (await bench.ask("GET /")).status == 200 and bench.control.calls["a"] <= 2


# -- moved, dead, and broken workers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_request_to_a_stale_worker_arrives_once_and_whole_at_the_new_one(bench: Bench, framing: str) -> None:
    assert (await bench.ask("GET /")).status == 200
    bench.origin.bodies.clear()
    old, new = bench.workers
    old.admission.stop()
    new.hold("a")
    finding(bench, new)
    body = bytes(range(256)) * 3000  # within what is kept, far beyond one read
    if framing == "length":
        got = await bench.ask("POST /", body)
    else:
        coded = b"".join(b"%x\r\n%b\r\n" % (1000, body[n : n + 1000]) for n in range(0, len(body), 1000)) + b"0\r\n\r\n"
        client = await bench.connect()
        await client.send(request("POST /\r\nTransfer-Encoding: chunked") + coded)
        got = await client.answer()
    assert got.status == 200 and got.body == body
    assert bench.origin.bodies == [body]


async def test_a_stale_worker_and_a_body_too_large_to_keep_is_said_honestly(bench: Bench) -> None:
    assert (await bench.ask("GET /")).status == 200
    bench.origin.heads.clear()
    old, new = bench.workers
    old.admission.stop()
    new.hold("a")
    finding(bench, new)
    body = bytes(8 << 20)
    got = await bench.ask("POST /", body)
    if got.status == 200:  # the worker said it before too much was sent
        assert got.body == body and len(bench.origin.heads) == 1
    else:
        assert got.status == 503 and int(got.headers["retry-after"]) >= 1 and not bench.origin.heads
        assert "moved" in got.text
    assert (await bench.ask("GET /")).status == 200


async def test_an_upgrade_to_a_stale_worker_goes_on_to_the_new_one(bench: Bench) -> None:
    assert (await bench.ask("GET /")).status == 200
    old, new = bench.workers
    old.admission.stop()
    new.hold("a")
    finding(bench, new)

    async def script(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        await line.send(await line.until(b"!"))

    bench.origin.script = script
    client = await bench.connect()
    await client.send(request("GET /\r\nConnection: Upgrade\r\nUpgrade: x") + b"hello!")
    assert (await client.answer()).status == 101 and await client.until(b"!") == b"hello!"


async def test_a_dead_worker_is_asked_about_again_until_the_actor_is_found_elsewhere(bench: Bench) -> None:
    dead, new = bench.workers
    dead.scope.cancel()
    new.hold("a")
    finding(bench, dead, dead, new)
    got = await bench.ask("POST /", b"once")
    assert got.body == b"once" and bench.origin.bodies == [b"once"] and bench.control.calls["a"] == 3


async def test_a_worker_that_stays_dead_is_503(bench: Bench) -> None:
    bench.workers[0].scope.cancel()
    for head in ("POST /", "GET /\r\nConnection: Upgrade\r\nUpgrade: x"):
        got = await bench.ask(head)
        assert got.status == 503 and int(got.headers["retry-after"]) >= 1 and not bench.origin.heads


async def test_an_actor_that_moves_for_ever_is_503(bench: Bench) -> None:
    bench.workers[0].admission.stop()
    got = await bench.ask("POST /", b"body")
    assert got.status == 503 and "moved" in got.text and not bench.origin.heads


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_a_request_whose_connection_broke_after_it_was_sent_is_not_sent_again(bench: Bench, method: str) -> None:
    assert (await bench.ask("GET /")).status == 200  # a connection is kept, as libraries repeat requests on such
    bench.origin.heads.clear()
    bench.workers[1].hold("a")

    async def script(line: Line) -> None:
        await bench.origin.request(line)
        finding(bench, bench.workers[1])
        bench.workers[0].scope.cancel()
        await trio.sleep_forever()

    bench.origin.script = script
    # Not over the actor's kept connection, which has the old script.
    await bench.origin_reset()
    got = await bench.ask(f"{method} /", b"body" if method != "GET" else b"")
    assert got.status == 502 and "may have run" in got.text and "retry-after" not in got.headers
    assert len(bench.origin.heads) == 1


@pytest.mark.parametrize("pod_uid", ["worker-1", "worker-9"])
@pytest.mark.parametrize("upgrade", [False, True])
async def test_a_worker_that_is_another_one_gets_no_byte(bench: Bench, upgrade: bool, pod_uid: str) -> None:
    got: list[bytes] = []
    handshakes = await impostor(bench, "ateom", pod_uid, got)
    head = "GET /?secret\r\nConnection: Upgrade\r\nUpgrade: x" if upgrade else "POST /?secret"
    answer = await bench.ask(head, b"" if upgrade else b"secret body", actor="x")
    assert answer.status == 503 and handshakes and not b"".join(got)


async def test_a_server_with_a_certificate_of_another_role_gets_no_byte(bench: Bench) -> None:
    got: list[bytes] = []
    handshakes = await impostor(bench, "atelet", "worker-0", got)
    assert (await bench.ask("POST /", b"secret", actor="x")).status == 503
    assert handshakes and not b"".join(got)


async def impostor(bench: Bench, role: str, pod_uid: str, got: list[bytes]) -> list[str]:
    """Listens where worker-0's tunnel is said to be, with another certificate; what it was told goes to `got`."""
    worker = Worker("worker-0", "127.0.0.77")
    finding(bench, worker)
    handshakes: list[str] = []
    context = tell_breaks(identity(bench.pool, role, pod_uid).http_server_context())

    async def serve(raw: trio.SocketStream) -> None:
        stream = trio.SSLStream(raw, context, server_side=True)
        with contextlib.suppress(trio.BrokenResourceError):
            handshakes.append("begun")
            await stream.do_handshake()
            while more := await stream.receive_some(65536):
                got.append(more)
        await trio.aclose_forcefully(stream)

    listeners = await trio.open_tcp_listeners(bench.tunnel_port, host=worker.host)
    bench.nursery.start_soon(trio.serve_listeners, serve, listeners)
    return handshakes


# -- wake-ups ---------------------------------------------------------------------------------------------------------


async def test_a_hundred_requests_for_a_sleeping_actor_are_one_resume(bench: Bench) -> None:
    awake = trio.Event()

    async def on_resume(name: str) -> Worker:
        await awake.wait()
        return bench.workers[0]

    bench.control.on_resume = on_resume
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await bench.ask("POST /", b"x"))

    async with trio.open_nursery() as nursery:
        clients = [nursery.start_soon(one) for _ in range(100)]
        while not bench.control.calls["a"]:
            await trio.sleep(0.01)
        await trio.sleep(0.2)
        awake.set()
    assert len(clients) == len(answers) == 100 and {a.status for a in answers} == {200}
    assert bench.control.calls["a"] == 1 and len(bench.origin.bodies) == 100


async def test_a_client_that_leaves_does_not_undo_a_resume(bench: Bench) -> None:
    awake, done = trio.Event(), trio.Event()

    async def on_resume(name: str) -> Worker:
        await awake.wait()
        done.set()
        return bench.workers[0]

    bench.control.on_resume = on_resume
    first, second = await bench.connect(), await bench.connect()
    await first.send(request("GET /first"))
    while not bench.control.calls["a"]:
        await trio.sleep(0.01)
    await first.close()
    await second.send(request("GET /second"))
    await trio.sleep(0.1)
    awake.set()
    assert (await second.answer()).status == 200 and done.is_set()
    assert bench.control.calls["a"] == 1 and [h.split()[1] for h in bench.origin.heads] == [b"/second"]


async def test_parked_requests_are_served_oldest_first_as_room_appears(tmp_path: Path) -> None:
    async with open_bench(tmp_path, parking=NEVER_BY_CLOCK) as bench:
        room, served = 0, []

        async def on_resume(name: str) -> Worker:
            nonlocal room
            if not room:
                raise ResourceExhausted("no worker has room")
            room -= 1
            bench.workers[0].hold(name)
            return bench.workers[0]

        bench.control.on_resume = on_resume

        async def one(name: str) -> None:
            assert (await bench.ask("GET /", actor=name)).status == 200
            served.append(name)

        names = [f"p{n}" for n in range(8)]
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)
                while not bench.control.calls[name]:
                    await trio.sleep(0.005)
            await trio.sleep(0.3)  # the last one's refusal is on its way
            for count in range(1, 9):
                room += 1
                await bench.control.worker_changed()
                while len(served) < count:
                    await trio.sleep(0.005)
        assert served == names


async def test_room_that_nobody_announced_is_found_by_the_clock(bench: Bench) -> None:
    failures = 3

    async def on_resume(name: str) -> Worker:
        nonlocal failures
        if failures:
            failures -= 1
            raise ResourceExhausted("no worker has room")
        return bench.workers[0]

    bench.control.on_resume = on_resume
    assert (await bench.ask("GET /")).status == 200 and bench.control.calls["a"] == 4


# -- stopping ---------------------------------------------------------------------------------------------------------


async def test_a_draining_router_refuses_new_connections_and_finishes_what_it_began(bench: Bench) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def script(line: Line) -> None:
        await line.until(b"\r\n\r\n")
        await line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        begun.set()
        await go_on.wait()
        await line.send(b"-last")

    idle = await bench.connect()
    await idle.send(request("GET /"))
    assert (await idle.answer()).status == 200
    await bench.origin_reset()
    bench.origin.script = script
    busy, late = await bench.connect(), await bench.connect()
    await busy.send(request("GET /"))
    await late.send(b"GET / HTTP/1.1\r\n")  # a request that is just arriving
    await begun.wait()
    bench.stop.set()
    assert await idle.rest() == b""
    with pytest.raises(OSError):
        while True:
            await (await bench.connect()).close()
            await trio.sleep(0.01)
    go_on.set()
    assert (await busy.answer()).body == b"first-last"
    await late.send(b"Host: h\r\nate-target-actor: demo/a\r\n\r\n")
    got = await late.answer()
    assert got.body == b"first-last" and got.headers["connection"] == "close"
    for client in (idle, busy, late):
        await client.close()
    await bench.stopped.wait()


async def test_a_request_that_arrives_just_as_the_router_stops_is_answered_or_not_taken(bench: Bench) -> None:
    fresh, kept = await bench.connect(), await bench.connect()
    await kept.send(request("POST /", b"1"))
    assert (await kept.answer()).body == b"1"
    taken = len(bench.origin.bodies)
    bench.stop.set()
    await kept.send(request("POST /", b"2"))
    await fresh.send(request("POST /", b"3"))
    answered = [(await fresh.answer()).body]
    with contextlib.suppress(EOFError, trio.BrokenResourceError):
        answered.append((await kept.answer()).body)
    assert answered[0] == b"3" and sorted(bench.origin.bodies[taken:]) == sorted(answered)
    for client in (fresh, kept):
        await client.close()
    await bench.stopped.wait()


async def test_a_drain_is_bounded_and_what_is_cut_does_not_look_complete(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        await bench.stop_router()
        await bench.start_router(drain_timeout=0.3)
        begun = trio.Event()

        async def script(line: Line) -> None:
            head = await line.until(b"\r\n\r\n")
            if b"pgrade" in head:
                await line.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhalf")
            else:
                await line.send(b"HTTP/1.0 200 OK\r\n\r\nhalf")
            await line.stream.receive_some()
            begun.set()

        bench.origin.script = script
        plain, upgraded = await bench.connect(), await bench.connect()
        await plain.send(request("GET / HTTP/1.0"))
        await upgraded.send(request("GET /\r\nConnection: Upgrade\r\nUpgrade: x"))
        for client in (plain, upgraded):
            await client.until(b"half")
        bench.stop.set()
        for client in (plain, upgraded):
            with pytest.raises(trio.BrokenResourceError):
                await client.rest()
        await bench.stopped.wait()


async def test_a_router_restarted_under_load_cuts_nothing_it_took(bench: Bench) -> None:
    ended = trio.Event()
    whole, untaken = 0, 0

    async def load() -> None:
        nonlocal whole, untaken
        while not ended.is_set():
            try:
                client = await bench.connect()
            except OSError:
                await trio.sleep(0.01)
                continue
            try:
                await client.send(request("POST /", b"z" * 5000))
                got = await client.answer()
                assert got.status == 200 and got.body == b"z" * 5000
                whole += 1
            except (EOFError, trio.BrokenResourceError) as error:
                # Accepted by the kernel, never by the router: not a byte of an answer.
                assert error.args[0] == b"" or isinstance(error, trio.BrokenResourceError)
                assert not client.buffer
                untaken += 1
            finally:
                await client.close()

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(load)
        for _ in range(2):
            before = whole
            while whole < before + 50:
                await trio.sleep(0.01)
            port = bench.port
            await bench.stop_router()
            await bench.start_router(port)
        before = whole
        while whole < before + 50:
            await trio.sleep(0.01)
        ended.set()
    assert len(bench.origin.bodies) == whole
