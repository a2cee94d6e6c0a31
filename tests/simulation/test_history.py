"""Promises of an actor's history: every state change is in it, in order, with what brought it about; it is bounded,
survives the role, and goes with its actor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import outcome
import pytest
import trio
import trio.testing

from ate.api import workers
from ate.api.events import EventLog
from ate.api.kinds import ACTOR_EVENTS, ACTORS
from ate.api.workflows import history, revert
from ate.errors import AteError, Internal, InvalidArgument, NotFound
from ate.names import Ref, new_uid
from ate.proto import ateapi_pb2 as api
from ate.proto import events_pb2 as pb
from ate.proto.events_grpc import EventLogStub
from ate.rpc import Server
from ate.store import Key, Tx, open_sqlite
from ate.telemetry import trace
from tests.rpc_echo import memory_channel
from tests.simulation.cluster import Cluster, open_cluster

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


async def told(cluster: Cluster, name: str = "a", **fields: Any) -> pb.ListActorEventsResponse:
    async with memory_channel(Server([EventLog(cluster.ctx)])) as channel:
        asked = EventLogStub(channel).ListActorEvents
        request = pb.ListActorEventsRequest(atespace="demo", actor_name=name, **fields)
        answer = await outcome.acapture(asked, request)
    return answer.unwrap()  # type: ignore[no-any-return]


def short(event: pb.ActorEvent) -> str:
    def state(value: Any) -> str:
        return api.ActorState.Name(value).removeprefix("ACTOR_STATE_") if value else ""

    return f"{event.operation}: {state(event.from_state)} > {state(event.to_state)}"


async def test_every_state_change_is_told_with_what_brought_it_about(clock: object) -> None:
    async with open_cluster() as cluster:
        worker = await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        token = trace.enter(trace.TraceContext(TRACE, "00f067aa0ba902b7", False))
        await cluster.resume("a")
        trace.leave(token)
        await trio.sleep(10)
        await cluster.suspend("a")
        events = (await told(cluster)).events
        assert [short(event) for event in events] == [
            "create:  > SUSPENDED",
            "resume: SUSPENDED > RESUMING",
            "resume: RESUMING > RUNNING",
            "suspend: RUNNING > SUSPENDING",
            "suspend: SUSPENDING > SUSPENDED",
        ]
        assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
        assert [event.worker for event in events] == ["", *[worker] * 4]
        assert [event.node for event in events] == ["", *["n1"] * 4]
        assert [event.trace_id for event in events] == ["", TRACE, TRACE, "", ""]
        assert events[3].time.ToNanoseconds() - events[2].time.ToNanoseconds() >= 10e9
        assert {(event.atespace, event.actor_name) for event in events} == {("demo", "a")}


async def test_a_crash_says_why_and_where(clock: object) -> None:
    async with open_cluster(recover=False) as cluster:
        worker = await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")

        def broken(what: str) -> None:
            if what == "start":
                raise Internal("its kernel is on fire")

        cluster.node.before = broken
        with pytest.raises(AteError):
            await cluster.resume("a")
        cluster.node.before = lambda what: None
        last = (await told(cluster)).events[-1]
        assert short(last) == "resume: RESUMING > CRASHED" and "on fire" in last.message and last.worker == worker
        await revert.revert(cluster.ctx, Ref("demo", "a"))
        await cluster.resume("a")
        await workers.delete(cluster.ctx, api.DeleteWorkerRequest(worker=api.ObjectRef(name=worker)))
        last = (await told(cluster)).events[-1]
        assert short(last) == ": RUNNING > CRASHED" and last.message == "its worker went away" and last.worker == worker


async def test_a_history_is_bounded_and_paged(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        for _ in range(15):
            await cluster.resume("a")
            await cluster.suspend("a")
        events = list((await told(cluster)).events)
        assert len(events) == history.KEPT and events[-1].sequence == 61
        row = await cluster.ctx.store.get(ACTOR_EVENTS, Key("demo", "a"))
        assert row is not None and row.value.ByteSize() < 3000
        paged: list[pb.ActorEvent] = []
        token = ""
        while True:
            page = await told(cluster, page_size=7, page_token=token)
            paged += page.events
            token = page.next_page_token
            if not token:
                break
        assert paged == events
        with pytest.raises(InvalidArgument, match="page_token"):
            await told(cluster, page_token="made-up")
        with pytest.raises(InvalidArgument, match=r"actor_name: .*page_size: may not be negative"):
            await told(cluster, name="", page_size=-1)


async def test_a_history_goes_with_its_actor(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        await cluster.add_template()
        await cluster.add_actor("a")
        await cluster.resume("a")
        await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=True, options=api.DeleteOptions())
        assert await cluster.ctx.store.get(ACTOR_EVENTS, Key("demo", "a")) is None
        with pytest.raises(NotFound, match="demo/a"):
            await told(cluster)
        await cluster.add_actor("a")
        assert [short(event) for event in (await told(cluster)).events] == ["create:  > SUSPENDED"]


async def test_a_change_that_is_not_written_is_not_told_and_what_is_told_survives_the_role(tmp_path: Path) -> None:
    actor = api.Actor(metadata=api.ResourceMetadata(atespace="demo", name="a"))
    actor.status.state = api.ACTOR_STATE_SUSPENDED
    noted = history.note(1.5, "create")

    def change(tx: Tx) -> None:
        history.record(tx, noted, history.NOTHING, tx.insert(ACTORS, Key("demo", "a"), actor))

    def fails(tx: Tx) -> None:
        row = tx.get(ACTORS, Key("demo", "a"))
        assert row is not None
        before = history.standing(row.value)
        row.value.status.state = api.ACTOR_STATE_RESUMING
        row.value.status.worker_assignment.worker.name = new_uid()
        history.record(tx, noted, before, row)
        raise Internal("no")

    async with open_sqlite(tmp_path / "store.db") as store:
        await store.transact(change)
        with pytest.raises(Internal):
            await store.transact(fails)
    async with open_sqlite(tmp_path / "store.db") as store:
        row = await store.get(ACTOR_EVENTS, Key("demo", "a"))
        assert row is not None
        (event,) = history.events_of(row.value, row.key)
        assert short(event) == "create:  > SUSPENDED" and event.time.ToNanoseconds() == 1_500_000_000
