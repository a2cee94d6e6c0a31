"""Watches: a listing, a bookmark, then every change in order; a resume token goes on without a gap or a repeat."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused, request_of
from tests.system.api_table import makers
from tests.system.api_table.makers import LABELS, add_actor, ref_of
from tests.system.api_table.resources import BAD_SHORT
from tests.system.api_table.rows import add, row

ADDED, MODIFIED = pb.WATCH_EVENT_TYPE_ADDED, pb.WATCH_EVENT_TYPE_MODIFIED
DELETED, BOOKMARK = pb.WATCH_EVENT_TYPE_DELETED, pb.WATCH_EVENT_TYPE_BOOKMARK


def watch(api: Api, rpc: str, **fields: Any) -> Any:
    return api.user.stream(rpc, request_of(rpc, **fields))


def take(events: Iterator[Any], count: int) -> list[Any]:
    return [next(events) for _ in range(count)]


def told(events: list[Any], field: str) -> list[tuple[int, str, int]]:
    """Type, name and version of each event's object."""
    return [
        (event.type, getattr(event, field).metadata.name, getattr(event, field).metadata.version) for event in events
    ]


@row("WatchActors", "lists all actors of the atespace as ADDED, then a BOOKMARK without an object")
def _listing(api: Api) -> None:
    space = api.atespace()
    actors = [add_actor(api, space=space) for _ in range(3)]
    add_actor(api)
    with watch(api, "WatchActors", atespace=space) as events:
        first = take(events, 4)
    assert [event.type for event in first] == [ADDED] * 3 + [BOOKMARK]
    assert [event.actor for event in first[:3]] == sorted(actors, key=lambda actor: actor.metadata.name)
    assert not first[3].HasField("actor") and first[3].resume_token


@row("WatchActors", "tells every change in order; a token goes on just after its event")
def _changes(api: Api) -> None:
    space = api.atespace()
    with watch(api, "WatchActors", atespace=space) as events:
        [bookmark] = take(events, 1)
        assert bookmark.type == BOOKMARK
        actor = add_actor(api, space=space)
        other = add_actor(api, space=space)
        actor.worker_selector.match_labels.update(LABELS)
        changed = api.user("UpdateActor", actor=actor)
        api.user("DeleteActor", actor=ref_of(other))
        live = take(events, 5)
    expected = [
        (ADDED, actor.metadata.name, 1),
        (ADDED, other.metadata.name, 1),
        (MODIFIED, actor.metadata.name, 2),
        (MODIFIED, other.metadata.name, 2),  # DELETING
    ]
    assert told(live[:4], "actor") == expected and live[2].actor == changed
    # A delete writes the actor once more before it is gone.
    assert live[4].type in (MODIFIED, DELETED) and live[4].actor.metadata.uid == other.metadata.uid
    for at in (-1, 0, 2, 3):
        token = bookmark.resume_token if at < 0 else live[at].resume_token
        with watch(api, "WatchActors", atespace=space, resume_token=token) as events:
            assert take(events, 4 - at) == live[at + 1 :]


@row("WatchActors", "a deleted actor's event carries its last state")
def _deleted(api: Api) -> None:
    space = api.atespace()
    actor = add_actor(api, space=space)
    with watch(api, "WatchActors", atespace=space) as events:
        take(events, 2)
        api.user("DeleteActor", actor=ref_of(actor))
        last = next(event for event in events if event.type == DELETED)
    assert last.actor.metadata.uid == actor.metadata.uid and last.actor.status.state == pb.ACTOR_STATE_DELETING


@row("WatchActors", "an empty atespace means all, an unknown one is quiet, a bad one INVALID_ARGUMENT")
def _atespaces(api: Api) -> None:
    actors = [add_actor(api), add_actor(api)]
    with watch(api, "WatchActors") as events:
        listed = []
        for event in events:
            if event.type == BOOKMARK:
                break
            listed.append(event.actor.metadata.uid)
    assert {actor.metadata.uid for actor in actors} <= set(listed)
    with watch(api, "WatchActors", atespace="no-such-atespace") as events:
        assert next(events).type == BOOKMARK
    for name in BAD_SHORT:
        if name:
            with refused("INVALID_ARGUMENT", "atespace"):
                api.user("WatchActors", atespace=name)


@row("WatchWorkers", "lists all workers as ADDED, then a BOOKMARK without an object")
def _worker_listing(api: Api) -> None:
    worker = api.user("CreateWorker", worker=makers.worker(api.fresh("watched")))
    with watch(api, "WatchWorkers") as events:
        listed = {}
        for event in events:
            if event.type == BOOKMARK:
                assert not event.HasField("worker") and event.resume_token
                break
            assert event.type == ADDED
            listed[event.worker.metadata.name] = event.worker
    assert listed[worker.metadata.name] == worker


@row("WatchWorkers", "tells every change in order; a token goes on just after its event")
def _worker_changes(api: Api) -> None:
    name = api.fresh("watched")

    def of_ours(events: Iterator[Any], count: int) -> list[Any]:
        """Other rows' workers may change meanwhile."""
        found: list[Any] = []
        while len(found) < count:
            event = next(events)
            if event.type != BOOKMARK and event.worker.metadata.name == name:
                found.append(event)
        return found

    with watch(api, "WatchWorkers") as events:
        while (event := next(events)).type != BOOKMARK:
            pass
        worker = api.user("CreateWorker", worker=makers.worker(name))
        worker.labels.update(LABELS)
        api.user("UpdateWorker", worker=worker)
        api.user("DeleteWorker", worker=ref_of(worker))
        live = of_ours(events, 4)
    assert told(live, "worker") == [(ADDED, name, 1), (MODIFIED, name, 2), (MODIFIED, name, 3), (DELETED, name, 3)]
    assert live[3].worker.status.state == pb.WORKER_STATE_DRAINING
    for at in (-1, 0, 2):
        token = event.resume_token if at < 0 else live[at].resume_token
        with watch(api, "WatchWorkers", resume_token=token) as events:
            assert of_ours(events, 3 - at) == live[at + 1 :]


def foreign_token(rpc: str, api: Api) -> None:
    page_token = api.user("ListAtespaces", page_size=1).next_page_token
    for token in ("x", "!", "ключ", "AAAA", "MDEyMzQ1Njc6MQ", page_token):
        with refused("OUT_OF_RANGE", "token"):
            api.user(rpc, resume_token=token)


for name in ("WatchActors", "WatchWorkers"):
    add(name, "a token of another store, or none at all, is OUT_OF_RANGE", partial(foreign_token, name))
