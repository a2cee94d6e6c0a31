"""What node agents tell the control plane of themselves and of sandboxes that ended, and the logs they keep."""

from __future__ import annotations

import uuid
from typing import Any

from ate.api.access.gate import ELAPSED_TRAILER
from ate.proto import node_pb2
from tests.system.api_peer import NODE, Api, refused, request_of
from tests.system.api_table.lifecycle import name_of
from tests.system.api_table.makers import add_actor, add_running, on, own_worker, read_actor, ref_of
from tests.system.api_table.resources import BAD_SHORT, BAD_UUID
from tests.system.api_table.rows import row


def registration(api: Api, **fields: Any) -> dict[str, Any]:
    return {"node_name": NODE, "address": api.node_address, "boot_id": "b", **fields}


@row("RegisterNode", "what is missing or malformed is INVALID_ARGUMENT, all in one error")
def _bad(api: Api) -> None:
    for field, wrong in (
        ("node_name", ("", "Upper", "x" * 254)),
        ("address", ("", "nowhere", ":1", "host:", "host:x", "host:0", "host:65536", "host:-1", "host:1_0", "host:²")),
        ("boot_id", ("",)),
    ):
        for value in wrong:
            with refused("INVALID_ARGUMENT", field):
                api.atelet("RegisterNode", **registration(api, **{field: value}))
    with refused("INVALID_ARGUMENT", "node_name", "address", "boot_id"):
        api.atelet("RegisterNode")


@row("RegisterNode", "an agent speaks for its own node only: PERMISSION_DENIED")
def _own_node(api: Api) -> None:
    for agent in (api.far_atelet, api.homeless_atelet):
        with refused("PERMISSION_DENIED", "node"):
            agent("RegisterNode", **registration(api))


@row("RegisterNode", "tells when to call again, and can be repeated")
def _again(api: Api) -> None:
    for boot in ("first", "second"):
        assert api.atelet("RegisterNode", **registration(api, boot_id=boot)).heartbeat_seconds > 0


@row("RegisterNode", "tells which of the actors named are gone, and which left the node")
def _actors(api: Api) -> None:
    here, elsewhere, gone, paused = add_running(api), add_actor(api), add_actor(api), add_running(api)
    api.user("DeleteActor", actor=ref_of(gone))
    api.user("PauseActor", actor=ref_of(paused))
    local = [
        node_pb2.LocalActorRef(atespace=actor.metadata.atespace, name=actor.metadata.name, uid=actor.metadata.uid)
        for actor in (here, elsewhere, gone, paused)
    ]
    namesake = str(uuid.uuid4())
    local.append(node_pb2.LocalActorRef(atespace=here.metadata.atespace, name=here.metadata.name, uid=namesake))
    answer = api.atelet("RegisterNode", **registration(api, actors=local))
    assert set(answer.deleted_actor_uids) == {gone.metadata.uid, namesake}
    assert set(answer.departed_actor_uids) == {elsewhere.metadata.uid}


@row("ReportActorCrash", "what is missing or malformed is INVALID_ARGUMENT, all in one error")
def _crash_bad(api: Api) -> None:
    good = {"actor_uid": str(uuid.uuid4()), "reason": "r"}
    for wrong in ("", *BAD_UUID):
        with refused("INVALID_ARGUMENT", "actor_uid"):
            api.atelet("ReportActorCrash", **{**good, "actor_uid": wrong})
    for wrong in ("", "r" * 4097):
        with refused("INVALID_ARGUMENT", "reason"):
            api.atelet("ReportActorCrash", **{**good, "reason": wrong})
    with refused("INVALID_ARGUMENT", "actor_uid", "reason"):
        api.atelet("ReportActorCrash")


@row("ReportActorCrash", "an actor that is not on the caller's node is NOT_FOUND")
def _crash_elsewhere(api: Api) -> None:
    told = {"actor_uid": add_running(api).metadata.uid, "reason": "r"}
    with refused("NOT_FOUND"):
        api.far_atelet("ReportActorCrash", **told)
    with refused("PERMISSION_DENIED", "node"):
        api.homeless_atelet("ReportActorCrash", **told)
    with refused("NOT_FOUND"):
        api.atelet("ReportActorCrash", actor_uid=add_actor(api).metadata.uid, reason="r")
    api.atelet("ReportActorCrash", **told)


@row("ReportActorCrash", "gives the reason that the actor's crash is told with")
def _crash(api: Api) -> None:
    worker = own_worker(api)
    actor = add_running(api, **on(worker))
    reason = "out of memory" + "!" * 4083
    api.atelet("ReportActorCrash", actor_uid=actor.metadata.uid, reason=reason)
    worker = api.user("GetWorker", worker=ref_of(worker))
    worker.epoch += 1
    api.user("UpdateWorker", worker=worker)
    lost = read_actor(api, actor)
    assert name_of(lost) == "CRASHED" and lost.status.crash.message == reason


@row("ReadActorLogs", "a missing or bad name is INVALID_ARGUMENT, all in one error; an unknown actor NOT_FOUND")
def _logs_bad(api: Api) -> None:
    for wrong in BAD_SHORT:
        with refused("INVALID_ARGUMENT", "atespace"):
            api.user("ReadActorLogs", atespace=wrong, actor_name="a")
        with refused("INVALID_ARGUMENT", "actor_name"):
            api.user("ReadActorLogs", atespace="a", actor_name=wrong)
    with refused("INVALID_ARGUMENT", "atespace", "actor_name"):
        api.user("ReadActorLogs")
    with refused("NOT_FOUND", "no-such-actor"):
        api.user("ReadActorLogs", atespace=api.atespace(), actor_name="no-such-actor")


@row("ReadActorLogs", "relays what the actor's node keeps")
def _logs(api: Api) -> None:
    actor = add_running(api)
    request = request_of("ReadActorLogs", atespace=actor.metadata.atespace, actor_name=actor.metadata.name)
    with api.user.stream("ReadActorLogs", request) as lines:
        assert [line.line for line in lines] == [actor.metadata.uid]
        assert dict(lines.trailing_metadata())[ELAPSED_TRAILER].isdigit(), "the end of a stream tells the time too"
