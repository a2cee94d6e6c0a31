"""The histories of actors: what happened, in order, a page at a time."""

from __future__ import annotations

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table.makers import add_actor, add_running, ref_of
from tests.system.api_table.resources import BAD_SHORT
from tests.system.api_table.rows import row


@row("ListActorEvents", "what is missing or malformed is INVALID_ARGUMENT, all in one error")
def _bad(api: Api) -> None:
    for bad in BAD_SHORT:
        with refused("INVALID_ARGUMENT", "atespace", "actor_name"):
            api.user("ListActorEvents", atespace=bad, actor_name=bad)
    with refused("INVALID_ARGUMENT", "page_size"):
        api.user("ListActorEvents", atespace="a", actor_name="a", page_size=-1)


@row("ListActorEvents", "an actor that is not there is NOT_FOUND")
def _absent(api: Api) -> None:
    with refused("NOT_FOUND", "nobody"):
        api.user("ListActorEvents", atespace="nowhere", actor_name="nobody")


@row("ListActorEvents", "tells every change of state, oldest first, also page by page, and nothing of a namesake")
def _told(api: Api) -> None:
    actor = add_running(api)
    api.user("SuspendActor", actor=ref_of(actor))
    name = {"atespace": actor.metadata.atespace, "actor_name": actor.metadata.name}
    events = api.user("ListActorEvents", **name).events
    states = [pb.ActorState.Name(event.to_state).removeprefix("ACTOR_STATE_") for event in events]
    assert states == ["SUSPENDED", "RESUMING", "RUNNING", "SUSPENDING", "SUSPENDED"]
    paged, token = [], ""
    while True:
        answer = api.user("ListActorEvents", **name, page_size=2, page_token=token)
        paged += answer.events
        token = answer.next_page_token
        if not token:
            break
    assert paged == list(events)
    api.user("DeleteActor", actor=ref_of(actor))
    add_actor(api, metadata=pb.ResourceMetadata(atespace=name["atespace"], name=name["actor_name"]))
    assert len(api.user("ListActorEvents", **name).events) == 1
