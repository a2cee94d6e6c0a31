"""Promises of a worker: one actor, real sandbox, reached by RPC on its unix socket and by HTTP through its tunnel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from grpclib.const import Status

from ate.errors import NOT_STARTED, AteError, reason_of
from ate.node.tunnel.exchange import end_sending, receive
from ate.proto import ateom_pb2 as pb
from tests.system import ateom_process
from tests.system.ateom_process import STRANGER, Actor, Ateom, read_response
from tests.system.conftest import NOTHING, RUNSC_BUILDS, leftovers

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not RUNSC_BUILDS, reason="needs root and runsc")
NEWEST = RUNSC_BUILDS[-1] if RUNSC_BUILDS else Path()


@pytest.fixture
async def ateom(short_dir: Path) -> AsyncIterator[Ateom]:
    async with ateom_process.start(short_dir / "r") as started:
        yield started


async def nothing_left(ateom: Ateom) -> None:
    """Waits for it, since the janitor and the kernel's dismantling of namespaces come last."""
    with trio.move_on_after(20):
        while leftovers(ateom.install_id) != NOTHING or leftovers(str(ateom.root)) != NOTHING:
            await trio.sleep(0.02)
    assert leftovers(ateom.install_id) == leftovers(str(ateom.root)) == NOTHING


async def cycle(ateom: Ateom, actor: Actor, scope: int = pb.SNAPSHOT_SCOPE_FULL) -> pb.CheckpointWorkloadResponse:
    """A checkpoint, and a restore of the same actor from it."""
    saved = await ateom.stub.CheckpointWorkload(actor.checkpoint(scope))
    actor.stage(saved.snapshot_files)
    await ateom.stub.RestoreWorkload(actor.restore(scope))
    return saved


@pytest.mark.parametrize("prepare", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("shape", ["one", "several", "durable"])
async def test_an_actor_keeps_its_memory_and_files_over_many_cycles(
    runsc_binary: Path, short_dir: Path, prepare: bool, shape: str
) -> None:
    async with ateom_process.start(short_dir / "r", prepare=prepare) as ateom:
        actor = Actor(ateom.root, runsc_binary, several=shape == "several", durable=shape == "durable").prepare()
        await ateom.stub.RunWorkload(actor.run())
        for path in ("/write/root/in-root", "/write/durable/in-volume"):
            assert (await ateom.http(actor, path))[0] == 200
        for number in range(3):
            assert await ateom.count(actor) == number + 1
            await cycle(ateom, actor)
            assert (await ateom.http(actor, "/read/root"))[2] == b"in-root"
            assert (await ateom.http(actor, "/read/durable"))[2] == b"in-volume"
    await nothing_left(ateom)


async def test_a_clone_of_a_snapshot_is_another_actor_with_its_own_files(ateom: Ateom) -> None:
    first = Actor(ateom.root, NEWEST, durable=True).prepare()
    await ateom.stub.RunWorkload(first.run())
    await ateom.count(first)
    saved = await ateom.stub.CheckpointWorkload(first.checkpoint())
    second = Actor(ateom.root, NEWEST, durable=True, name="clone").prepare()
    second.stage(saved.snapshot_files, first.directory / "checkpoint")
    await ateom.stub.RestoreWorkload(second.restore())
    assert await ateom.count(second) == 2
    status, headers, _ = await ateom.http(first, "/")
    assert status == 421 and headers["x-ate-assignment-stale"] == "true"


async def test_the_same_run_again_is_one_sandbox_and_another_actor_is_refused_by_name(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ateom.stub.RunWorkload, actor.run())
    await ateom.count(actor)
    await ateom.stub.RunWorkload(actor.run())
    assert await ateom.count(actor) == 2
    other = Actor(ateom.root, NEWEST, name="other").prepare()
    with pytest.raises(AteError, match="space/counter") as caught:
        await ateom.stub.RunWorkload(other.run())
    assert caught.value.code is Status.UNAVAILABLE and reason_of(caught.value) == NOT_STARTED, "it may try elsewhere"
    assert await ateom.count(actor) == 3


async def test_an_operation_outlives_its_caller_and_is_joined_by_its_id(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST, env=(("START_DELAY", "1"),)).prepare()
    metadata = {"ate-operation-id": "op-1"}
    with trio.move_on_after(0.3):
        await ateom.stub.RunWorkload(actor.run(), metadata=metadata)
    await ateom.stub.RunWorkload(actor.run(), metadata=metadata)
    assert await ateom.count(actor) == 1
    sandboxes = (ateom.root / "ateom.log").read_text().count('"Actor starting"')
    assert sandboxes == 1
    with pytest.raises(AteError, match="op-1"):
        await ateom.stub.CheckpointWorkload(actor.checkpoint(), metadata=metadata)


async def test_a_repeated_checkpoint_gives_the_same_result(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST, durable=True).prepare()
    await ateom.stub.RunWorkload(actor.run())
    first = await ateom.stub.CheckpointWorkload(actor.checkpoint())
    assert first == await ateom.stub.CheckpointWorkload(actor.checkpoint())
    assert sorted(first.snapshot_files) == sorted(path.name for path in (actor.directory / "checkpoint").iterdir())
    assert list(first.data_snapshot_files) == ["durable-dir.tar"]


async def test_requests_under_way_finish_before_a_checkpoint_and_new_ones_are_sent_back(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    results: dict[str, int] = {}
    async with trio.open_nursery() as nursery:

        async def slow() -> None:
            status, _, body = await ateom.http(actor, "/slow?s=1")
            assert body == b"slow done"
            results["slow"] = status

        nursery.start_soon(slow)
        await trio.sleep(0.3)
        nursery.start_soon(ateom.stub.CheckpointWorkload, actor.checkpoint())
        await trio.sleep(0.2)
        results["new"] = (await ateom.http(actor, "/"))[0]
    assert results == {"slow": 200, "new": 421}


async def test_a_grace_that_is_over_cuts_requests_loudly_and_saves_the_actor(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    async with trio.open_nursery() as nursery:

        async def endless() -> None:
            with pytest.raises((EOFError, trio.BrokenResourceError)):
                await ateom.http(actor, "/slow?s=60")

        nursery.start_soon(endless)
        await trio.sleep(0.3)
        saved = await ateom.stub.CheckpointWorkload(actor.checkpoint(), metadata={"ate-drain-grace-ms": "200"})
    actor.stage(saved.snapshot_files)
    await ateom.stub.RestoreWorkload(actor.restore())
    assert await ateom.count(actor) == 1


async def test_only_the_router_s_certificate_gets_through_the_tunnel(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    stream = await ateom.connect(STRANGER)
    await stream.send_all(f"GET / HTTP/1.1\r\nHost: x\r\nX-Ate-Actor-Uid: {actor.uid}\r\n\r\n".encode())
    status, _, body = await read_response(stream)
    assert status == 403 and STRANGER.encode() in body
    await trio.aclose_forcefully(stream)
    assert await ateom.count(actor) == 1  # the stranger's request never arrived


async def test_http_passes_through_the_tunnel_as_it_came(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    stream = await ateom.connect()
    status, _, body = await ateom.http(
        actor, "/headers", headers="X-MiXed: 1\r\nx-ATE-Secret: 2\r\nX-Other: a, b\r\n", stream=stream
    )
    assert (status, json.loads(body)) == (200, [["Host", "example.test"], ["X-MiXed", "1"], ["X-Other", "a, b"]])
    big = os.urandom(3 << 20)
    assert (await ateom.http(actor, "/", method="POST", body=big, stream=stream))[2] == big
    chunked = "Transfer-Encoding: chunked\r\n"
    head = f"POST / HTTP/1.1\r\nHost: h\r\nX-Ate-Actor-Uid: {actor.uid}\r\n{chunked}\r\n5\r\nhello\r\n0\r\n\r\n"
    await stream.send_all(head.encode())
    assert (await read_response(stream))[2] == b"hello"
    assert (await ateom.http(actor, "/chunked", stream=stream))[2].count(b"hello") == 3
    # The connection was the same all along.
    assert (await ateom.http(actor, "/healthz", stream=stream))[2] == b"ok"
    await trio.aclose_forcefully(stream)


async def test_expect_continue_is_answered_by_the_actor_and_not_before_a_refusal(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())

    async def expect(uid: str) -> bytes:
        stream = await ateom.connect()
        await stream.send_all(
            f"POST / HTTP/1.1\r\nHost: h\r\nX-Ate-Actor-Uid: {uid}\r\nExpect: 100-continue\r\n"
            "Content-Length: 4\r\n\r\n".encode()
        )
        with trio.fail_after(10):
            answer = bytes(await stream.receive_some(4096))
        if answer.startswith(b"HTTP/1.1 100"):
            await stream.send_all(b"body")
            while not answer.endswith(b"body"):
                answer += await stream.receive_some(4096)
        await trio.aclose_forcefully(stream)
        return answer

    assert b"HTTP/1.1 200" in await expect(actor.uid)
    assert (await expect("another")).startswith(b"HTTP/1.1 421")


async def test_an_upgraded_connection_carries_raw_bytes_both_ways_and_its_half_close(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    stream = await ateom.connect()
    await stream.send_all(
        f"GET /ws HTTP/1.1\r\nHost: h\r\nX-Ate-Actor-Uid: {actor.uid}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n"
        "\r\nearly".encode()
    )
    received = b""
    with trio.fail_after(20):
        while b"early" not in received:
            received += await stream.receive_some(4096)
        await stream.send_all(b"later\x00\xff")
        while b"later\x00\xff" not in received:
            received += await stream.receive_some(4096)
        await end_sending(stream)
        while data := await receive(stream):
            received += data
    assert received.startswith(b"HTTP/1.1 101") and received.endswith(b"<eof seen>")


@pytest.mark.parametrize("which", [0, 1, 2], ids=["outer process", "init", "worker"])
async def test_kill_9_of_any_part_leaves_nothing(short_dir: Path, which: int) -> None:
    async with ateom_process.start(short_dir / "r", prepare=True) as ateom:
        actor = Actor(ateom.root, NEWEST, durable=True).prepare()
        await ateom.stub.RunWorkload(actor.run())
        await trio.sleep(1)  # a prepared sandbox is there, too
        assert leftovers(ateom.install_id)["cgroups"]
        os.kill(ateom.pids()[which], signal.SIGKILL)
        await nothing_left(ateom)


async def test_an_actor_that_is_never_ready_is_told_with_container_url_and_answer(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST, readyz="/read/tmp", ready_timeout=6).prepare()
    with pytest.raises(AteError, match=r"'app'.*http://169\.254\.17\.2:80/read/tmp: answered 404") as caught:
        await ateom.stub.RunWorkload(actor.run())
    assert caught.value.code is Status.DEADLINE_EXCEEDED
    other = Actor(ateom.root, NEWEST, name="other").prepare()
    await ateom.stub.RunWorkload(other.run())
    assert await ateom.count(other) == 1


async def test_a_program_that_ends_at_once_is_told_with_its_last_words(ateom: Ateom) -> None:
    actor = Actor(
        ateom.root, NEWEST, command=("/usr/bin/python3.11", "-S", "-c", "raise SystemExit('no database')")
    ).prepare()
    with pytest.raises(AteError, match="no database"):
        await ateom.stub.RunWorkload(actor.run())
    assert len((await ateom.stub.GetActiveWorkloadStats(pb.GetActiveWorkloadStatsRequest())).samples) == 0


async def test_a_crash_frees_the_worker_and_is_told_to_who_asks(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    assert (await ateom.http(actor, "/exit"))[0] == 502
    with trio.fail_after(20):
        while (await ateom.stub.GetActiveWorkloadStats(pb.GetActiveWorkloadStatsRequest())).samples:
            await trio.sleep(0.02)
    with pytest.raises(AteError, match="crashed") as caught:
        await ateom.stub.CheckpointWorkload(actor.checkpoint())
    assert caught.value.code is Status.FAILED_PRECONDITION
    await ateom.stub.RunWorkload(actor.run())
    assert await ateom.count(actor) == 1


async def test_terminate_stops_an_actor_that_is_still_starting_and_is_fine_twice(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST, env=(("START_DELAY", "60"),)).prepare()
    async with trio.open_nursery() as nursery:

        async def run() -> None:
            with pytest.raises(AteError) as caught:
                await ateom.stub.RunWorkload(actor.run())
            assert caught.value.code is Status.ABORTED

        nursery.start_soon(run)
        await trio.sleep(0.5)
        await ateom.stub.TerminateWorkload(actor.terminate())
    await ateom.stub.TerminateWorkload(actor.terminate())
    groups = Path("/sys/fs/cgroup").glob(f"*/ate-{ateom.install_id}/{ateom.worker_uid}/*/cgroup.procs")
    assert [path for path in groups if path.read_text()] == []


async def test_an_actor_reaches_neither_its_worker_nor_the_host(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    for target in (f"169.254.17.1:{ateom.port}", "192.0.2.1:80", "169.254.169.254:80"):
        status, _, body = await ateom.http(actor, f"/connect/{target}")
        assert status == 502, (target, body)
        assert b"refused" in body, (target, body)


async def test_lines_of_a_container_become_labelled_json(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    await ateom.http(actor, "/log")
    path = ateom.root / "logs" / actor.uid / "app.jsonl"
    with trio.fail_after(10):
        while len(path.read_text().splitlines()) < 3:
            await trio.sleep(0.02)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {record.get("message") for record in records} >= {"plain line", "to stderr"}
    structured = next(record for record in records if record.get("msg") == "structured")
    assert structured["level"] == "info" and "ate.x" not in structured and structured["time"]
    assert all(record["labels"]["ate.actor.container.name"] == "app" for record in records)
    assert all(record["labels"]["ate.actor.uid"] == actor.uid for record in records)


async def test_a_data_snapshot_boots_afresh_with_its_volumes(ateom: Ateom) -> None:
    actor = Actor(ateom.root, NEWEST, durable=True).prepare()
    await ateom.stub.RunWorkload(actor.run())
    await ateom.count(actor)
    await ateom.http(actor, "/write/durable/kept")
    await ateom.http(actor, "/write/root/not-kept")
    saved = await cycle(ateom, actor, pb.SNAPSHOT_SCOPE_DATA)
    assert list(saved.snapshot_files) == ["durable-dir.tar"]
    assert (await ateom.http(actor, "/read/durable"))[2] == b"kept"
    assert (await ateom.http(actor, "/read/root"))[0] == 404
    assert await ateom.count(actor) == 1


async def test_volumes_of_one_snapshot_go_onto_the_memory_of_another(ateom: Ateom) -> None:
    golden = Actor(ateom.root, NEWEST, durable=True, name="golden").prepare()
    await ateom.stub.RunWorkload(golden.run())
    await ateom.count(golden)
    memory = await ateom.stub.CheckpointWorkload(golden.checkpoint())
    actor = Actor(ateom.root, NEWEST, durable=True).prepare()
    await ateom.stub.RunWorkload(actor.run())
    await ateom.http(actor, "/write/durable/mine")
    await ateom.stub.CheckpointWorkload(actor.checkpoint(pb.SNAPSHOT_SCOPE_DATA))
    actor.stage([n for n in memory.snapshot_files if n != "durable-dir.tar"], golden.directory / "checkpoint")
    os.link(actor.directory / "checkpoint/durable-dir.tar", actor.directory / "restore/durable-dir.tar")
    await ateom.stub.RestoreWorkload(actor.restore(pb.SNAPSHOT_SCOPE_DATA_ON_GOLDEN))
    assert await ateom.count(actor) == 2
    assert (await ateom.http(actor, "/read/durable"))[2] == b"mine"


async def test_a_checkpoint_without_room_leaves_the_actor_serving(short_dir: Path) -> None:
    root = short_dir / "r"
    actor = Actor(root, NEWEST, env=(("BALLAST_MIB", "24"),)).prepare()
    subprocess.run(  # noqa: ASYNC221
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", actor.directory / "checkpoint"], check=True
    )
    try:
        async with ateom_process.start(root) as ateom:
            await ateom.stub.RunWorkload(actor.run())
            with pytest.raises(AteError, match=r"bytes free.*still runs"):
                await ateom.stub.CheckpointWorkload(actor.checkpoint())
            assert await ateom.count(actor) == 1
    finally:
        subprocess.run(["umount", actor.directory / "checkpoint"], check=True)  # noqa: ASYNC221


@pytest.mark.parametrize("damage", ["other runtime", "no facts", "no pages"])
async def test_a_snapshot_that_would_be_misread_is_refused_and_the_worker_stays_free(ateom: Ateom, damage: str) -> None:
    actor = Actor(ateom.root, NEWEST).prepare()
    await ateom.stub.RunWorkload(actor.run())
    saved = await ateom.stub.CheckpointWorkload(actor.checkpoint())
    actor.stage(saved.snapshot_files)
    restore = actor.directory / "restore"
    if damage == "other runtime":
        facts = json.loads((restore / "sandbox.json").read_text())
        (restore / "sandbox.json").unlink()
        (restore / "sandbox.json").write_text(json.dumps({**facts, "version": "20000101"}))
    else:
        (restore / ("sandbox.json" if damage == "no facts" else "pages.img")).unlink()
    with pytest.raises(AteError, match=r"20000101|sandbox\.json|pages\.img") as caught:
        await ateom.stub.RestoreWorkload(actor.restore())
    assert caught.value.code is Status.INVALID_ARGUMENT
    await ateom.stub.RunWorkload(actor.run())
    assert await ateom.count(actor) == 1


async def test_a_prepared_sandbox_that_died_costs_time_only(short_dir: Path) -> None:
    async with ateom_process.start(short_dir / "r", prepare=True) as ateom:
        actor = Actor(ateom.root, NEWEST).prepare()
        await ateom.stub.RunWorkload(actor.run())
        saved = await ateom.stub.CheckpointWorkload(actor.checkpoint())
        actor.stage(saved.snapshot_files)
        groups = f"*/ate-{ateom.install_id}/{ateom.worker_uid}/*/cgroup.procs"
        await trio.sleep(1)
        for path in Path("/sys/fs/cgroup").glob(groups):
            for pid in path.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        await ateom.stub.RestoreWorkload(actor.restore())
        assert await ateom.count(actor) == 1


async def test_use_of_memory_and_time_is_sampled(ateom: Ateom) -> None:
    with pytest.raises(AteError) as caught:
        await ateom.stub.GetWorkloadStats(pb.GetWorkloadStatsRequest(actor_uid="nobody"))
    assert caught.value.code is Status.NOT_FOUND
    actor = Actor(ateom.root, NEWEST, memory_bytes=512 << 20).prepare()
    await ateom.stub.RunWorkload(actor.run())
    sample = (await ateom.stub.GetWorkloadStats(pb.GetWorkloadStatsRequest(actor_uid=actor.uid))).sample
    if sample.source == pb.STATS_SOURCE_CGROUP:
        assert 1 << 20 < sample.memory_current_bytes <= 512 << 20
    assert sample.actor_name == "counter" and sample.epoch_unix_nano < sample.observed_at_unix_nano


async def test_a_stopping_worker_takes_no_new_actor_but_still_saves_the_one_it_has(short_dir: Path) -> None:
    async with ateom_process.start(short_dir / "r", eviction_grace=60) as ateom:
        actor = Actor(ateom.root, NEWEST).prepare()
        await ateom.stub.RunWorkload(actor.run())
        ateom.process.terminate()
        other = Actor(ateom.root, NEWEST, name="other").prepare()
        with trio.fail_after(10):
            while True:
                with pytest.raises(AteError) as caught:
                    await ateom.stub.RunWorkload(other.run())
                if caught.value.code is Status.UNAVAILABLE:
                    break
        assert await ateom.count(actor) == 1
        assert (await ateom.stub.CheckpointWorkload(actor.checkpoint())).snapshot_files
        with trio.fail_after(20):
            while ateom.process.poll() is None:
                await trio.sleep(0.02)
        assert ateom.process.returncode == 0
